"""The controller's side of pytest-xdist: workers collect and judge, platform, Fleet and ledger stay here."""

from __future__ import annotations

import math
from collections.abc import Callable, Generator
from typing import TYPE_CHECKING, Any

import pytest

from pytest_aisbench.errors import AisbenchError
from pytest_aisbench.logs import get_logger, log_ignored
from pytest_aisbench.reporters.story import RERUN
from pytest_aisbench.services.link import Link
from pytest_aisbench.session.ending import one_line

_LOG = get_logger("session")

if TYPE_CHECKING:
    from pytest_aisbench.session.collection import Plan
    from pytest_aisbench.session.controller import Controller


class Workers:
    """A pytest plugin object, registered when the first worker is about to start."""

    def __init__(self, config: pytest.Config, controller: Controller) -> None:
        self._config = config
        self._controller = controller
        self._failure: AisbenchError | None = None
        self._crashed: set[str] = set()
        self._over: set[str] = set()  # tests whose crash is the last that is heard of them
        self._lost = 0  # workers
        answers: dict[str, Callable[..., Any]] = {
            "plan": self._planned,
            "fault": self._fail,
            "reached": controller.reached,
            "share": lambda: dict(controller.platform().share()),
        }
        self._link = Link(answers)

    def admit(self, node: Any) -> None:
        """Tell a worker how to reach us."""
        node.workerinput["aisbench_link"] = (self._link.address, self._link.key)

    @pytest.hookimpl(optionalhook=True, tryfirst=True)
    def pytest_xdist_node_collection_finished(self) -> None:
        """The worker has planned by now: it waited for the answer before it told xdist."""
        with one_line():
            if self._failure:
                raise self._failure
        self._controller.begin()

    @pytest.hookimpl(optionalhook=True)
    def pytest_testnodedown(self, error: object | None) -> None:
        self._lost += error is not None

    @pytest.hookimpl(optionalhook=True)
    def pytest_handlecrashitem(self, crashitem: str, report: pytest.TestReport, sched: Any) -> None:
        """The job of a worker that was killed goes on, and another worker judges it. Only once: the second time it is
        the test that kills."""
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
        """A page has a row for a test once its teardown is told; that of a worker that crashed told nothing more.
        It is told when everybody has heard of the crash."""
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
        """After so many lost workers xdist ends the run; then nobody is left to judge."""
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
