"""Runs with pytest-xdist: workers collect and run the tests; platform, Fleet and ledger stay on the controller.

A worker asks the controller for trials over a local socket that only holders of a random key can use.
"""

from __future__ import annotations

import math
import secrets
import threading
from collections.abc import Callable, Generator, Mapping, Sequence
from dataclasses import replace
from multiprocessing.connection import Client, Connection, Listener
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

from pytest_aisbench import registry
from pytest_aisbench.errors import AisbenchError, UsageFault
from pytest_aisbench.logs import get_logger, ignored, log_ignored
from pytest_aisbench.report.host_plugins import RERUN
from pytest_aisbench.session import collection
from pytest_aisbench.session.outcome import errors_in_one_line
from pytest_aisbench.session.reporters import Reporters

if TYPE_CHECKING:
    from pytest_aisbench.config.settings import Settings
    from pytest_aisbench.model.case import Case
    from pytest_aisbench.model.ports import Platform
    from pytest_aisbench.model.trial import Step, Trial
    from pytest_aisbench.session.collection import Plan
    from pytest_aisbench.session.controller import Controller
_LOG = get_logger("session")


# The controller's side


class Workers:
    """A pytest plugin object, registered when the first worker is about to start."""

    def __init__(self, config: pytest.Config, controller: Controller) -> None:
        self._config = config
        self._controller = controller
        self._failure: AisbenchError | None = None
        self._crashed: set[str] = set()
        self._over: set[str] = set()  # crashed tests that no worker runs again
        self._lost = 0  # workers
        answers: dict[str, Callable[..., Any]] = {
            "plan": self._planned,
            "fault": self._fail,
            "reached": controller.reached,
            "share": lambda: dict(controller.platform().share()),
        }
        self._link = Link(answers)

    def admit(self, node: Any) -> None:
        """Tell a worker how to reach us, and let xdist outlive its death."""
        node.workerinput["aisbench_link"] = (self._link.address, self._link.key)
        node.sendcommand = _unless_dead(node.sendcommand)

    @pytest.hookimpl(optionalhook=True, tryfirst=True)
    def pytest_xdist_node_collection_finished(self) -> None:
        """The worker has sent its plan by now: it waits for our answer before it reports to xdist."""
        with errors_in_one_line():
            if self._failure:
                raise self._failure
        self._controller.begin()

    @pytest.hookimpl(optionalhook=True)
    def pytest_testnodedown(self, error: object | None) -> None:
        self._lost += error is not None

    @pytest.hookimpl(optionalhook=True)
    def pytest_handlecrashitem(self, crashitem: str, report: pytest.TestReport, sched: Any) -> None:
        """Give the test of a killed worker to another one, once; its job runs on meanwhile. The second time the test
        itself is the killer."""
        # xdist does not know when it was; pytest-html, JUnit and Allure know a test that failed in its call.
        report.when = "call"
        self._over.add(crashitem)
        if crashitem in self._crashed or not self._controller.judges(crashitem) or self._lost > self._restarts:
            return
        self._crashed.add(crashitem)
        try:
            sched.mark_test_pending(crashitem)
        except NotImplementedError as error:  # schedulers that keep groups of tests together cannot; then it failed
            log_ignored(_LOG, error, "another try of %s", crashitem)
            return
        self._over.discard(crashitem)
        report.outcome = RERUN  # type: ignore[assignment]

    @pytest.hookimpl(wrapper=True, tryfirst=True)
    def pytest_runtest_logreport(self, report: pytest.TestReport) -> Generator[None, object, object]:
        """Add the teardown that a crashed worker never reported: report.html has a row for a test only after that."""
        result = yield
        if report.nodeid in self._over:
            self._over.remove(report.nodeid)
            end = pytest.TestReport(
                report.nodeid,
                report.location,
                {},
                "passed",
                None,
                "teardown",
                user_properties=report.user_properties,
                start=report.start,
                stop=report.stop,
            )
            end.node = getattr(report, "node", None)  # type: ignore[attr-defined]  # JUnit knows a test by its worker too
            self._config.hook.pytest_runtest_logreport(report=end)
        return result

    def pytest_report_teststatus(self, report: pytest.TestReport) -> tuple[str, str, Any] | None:
        return (RERUN, "R", ("RERUN", {"yellow": True})) if report.outcome == RERUN else None

    @property
    def _restarts(self) -> float:
        """After so many lost workers xdist ends the run, and no worker is left to judge."""
        given: str | None = self._config.getoption("maxworkerrestart", None)
        return math.inf if given is None else int(given)

    def close(self) -> None:
        self._link.close()

    def _planned(self, plan: Plan) -> str | None:
        """The folder of the run, for the worker's own reporters."""
        try:
            return self._controller.open(plan)
        except AisbenchError as failure:
            self._fail(failure)
            return None

    def _fail(self, failure: AisbenchError) -> None:
        self._failure = self._failure or failure


def _unless_dead(send: Callable[..., None]) -> Callable[..., None]:
    """Sends a command to a worker; none to one that is dead.

    xdist learns of a death by an event that may still be in its queue. A command that it sends before would end the
    whole run by an INTERNALERROR; the event lets it give the tests to another worker.
    """

    def send_if_alive(name: str, **arguments: object) -> None:
        with ignored(_LOG, OSError, "the command %s to a worker that ended", name):
            send(name, **arguments)

    return send_if_alive


# A worker's side


class Worker:
    """A pytest plugin object, as the controller is one."""

    def __init__(self, config: pytest.Config, settings: Settings, address: str, key: bytes) -> None:
        self._config = config
        self._settings = settings
        self._link = RemoteLink(address, key)
        self._platform: Platform | None = None
        self._run_name = ""

    def run_name(self) -> str:
        return self._run_name

    def reached(self, case: Case, until: Step) -> Trial:
        trial: Trial = self._link.call("reached", case, until)
        return trial

    def platform(self) -> Platform:
        if self._platform is None:
            settings = replace(self._settings, **self._link.call("share"))
            self._platform = registry.of_session(self._config).connect(settings)
        return self._platform

    @pytest.hookimpl(tryfirst=True)
    def pytest_collection_modifyitems(self, items: list[pytest.Item]) -> None:
        # Silently: the controller tells the user.
        collection.select(self._config, items, self._settings.nodes, lambda _: None)

    @pytest.hookimpl(specname="pytest_collection_modifyitems", trylast=True)
    def pytest_collection_modifyitems_check(self, items: list[pytest.Item]) -> None:
        try:
            collection.check(self._config, items)
        except UsageFault as fault:
            self._link.call("fault", fault)

    def pytest_deselected(self, items: Sequence[pytest.Item]) -> None:
        collection.leave_out(self._config, items)

    @pytest.hookimpl(tryfirst=True)
    def pytest_collection_finish(self, session: pytest.Session) -> None:
        """Before xdist tells the controller that this worker has collected."""
        try:
            folder = self._link.call("plan", collection.plan(self._config, session.items))
        except UsageFault as fault:
            self._link.call("fault", fault)
        else:
            if folder:
                self._run_name = Path(folder).name
                Reporters(self._config, lambda kind: kind.on_workers).open(Path(folder))

    def pytest_unconfigure(self) -> None:
        if self._platform:
            self._platform.close()
        self._link.close()


# The connection between them


class Link:
    """The controller's end: answers calls to the named functions, each worker in a thread of its own."""

    def __init__(self, answers: Mapping[str, Callable[..., Any]]) -> None:
        self.key = secrets.token_bytes(32)
        self._answers = answers
        self._closed = False
        self._listener = Listener(authkey=self.key)
        threading.Thread(target=self._accept, name="aisbench-link", daemon=True).start()

    @property
    def address(self) -> str:
        return str(self._listener.address)

    def close(self) -> None:
        self._closed = True
        self._listener.close()

    def _accept(self) -> None:
        while True:
            try:
                connection = self._listener.accept()
            except Exception as error:  # noqa: BLE001 - a caller without the key, or that hung up; the next may be a worker
                if self._closed:
                    return
                log_ignored(_LOG, error, "a connection to the Fleet that is no worker's")
                continue
            threading.Thread(target=self._serve, args=(connection,), name="aisbench-worker-link", daemon=True).start()

    def _serve(self, connection: Connection) -> None:
        with connection, ignored(_LOG, (EOFError, OSError), "the connection of a worker that ended"):
            while True:
                name, arguments = connection.recv()
                try:
                    answer: Any = self._answers[name](*arguments)
                    failed = False
                except Exception as error:  # noqa: BLE001 - it belongs to the caller
                    answer, failed = error, True
                connection.send((failed, answer))


class RemoteLink:
    """A worker's end."""

    def __init__(self, address: str, key: bytes) -> None:
        self._connection = Client(address, authkey=key)
        self._lock = threading.Lock()

    def call(self, name: str, *arguments: Any) -> Any:
        """What the function returned on the controller, or the error that it raised there."""
        with self._lock:
            self._connection.send((name, arguments))
            failed, answer = self._connection.recv()
        if failed:
            raise answer
        return answer

    def close(self) -> None:
        self._connection.close()
