"""The process that owns the session: it holds the run, records what its tests say, and sets the exit code."""

from __future__ import annotations

import shutil
import signal
import threading
from collections.abc import Callable, Generator, Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

import pytest

from pytest_aisbench import collection, offers
from pytest_aisbench.domain import exitcode
from pytest_aisbench.domain.ports import Platform, Reporter
from pytest_aisbench.domain.verdict import Ruling
from pytest_aisbench.errors import AisbenchError, LedgerError, UsageFault
from pytest_aisbench.fixtures import SETTINGS
from pytest_aisbench.reporters import results, terminal
from pytest_aisbench.reporters.hosts import guarded
from pytest_aisbench.reporters.properties import case_of, properties_of
from pytest_aisbench.services.clock import SystemClock
from pytest_aisbench.services.run import Run

if TYPE_CHECKING:
    from pytest_aisbench.domain.case import Case
    from pytest_aisbench.domain.trial import Step, Trial
    from pytest_aisbench.services.link import Link

Wants = list[tuple["Case", "Step"]]


class Controller:
    """A pytest plugin object. Nothing is opened or written before the first workload item is known."""

    def __init__(self, config: pytest.Config) -> None:
        self._config = config
        self._platform: Platform | None = None
        self._run: Run | None = None
        self._reporters: dict[str, Reporter] = {}
        self._tally = exitcode.Tally()
        self._link: Link | None = None
        self._opening = threading.Lock()  # workers of xdist plan at the same time
        self._wants: Wants = []
        self._failure: AisbenchError | None = None

    # Crew: what the fixtures ask for.

    def reached(self, case: Case, until: Step) -> Trial:
        if self._run is None:
            raise UsageFault(f"{case.id} is not run here", advice="leave --setup-only away")
        return self._run.fleet.reached(case, until)

    def platform(self) -> Platform:
        if self._platform is None:
            settings = self._config.stash[SETTINGS]
            self._platform = offers.load("platform", settings.platform, offers.platforms(self._config))(settings)
        return self._platform

    # The run.

    @pytest.hookimpl(tryfirst=True)
    def pytest_collection_modifyitems(self, items: list[pytest.Item]) -> None:
        with _one_line():
            collection.select(self._config, items)

    @pytest.hookimpl(wrapper=True, tryfirst=True)
    def pytest_runtestloop(self, session: pytest.Session) -> Generator[None, object, object]:
        """Here the selection is final, and a `finally` sees -x, Ctrl-C and pytest.exit alike."""
        option = self._config.option
        idle = option.collectonly or getattr(option, "setupplan", False) or getattr(option, "setuponly", False)
        if idle or (session.testsfailed and not option.continue_on_collection_errors):
            return (yield)
        with _terminable():
            try:
                with _one_line():
                    self._open(collection.wants(self._config, session.items))
                self._begin()
                return (yield)
            finally:
                with self._noticing():
                    if self._run:
                        self._run.stop()

    def _open(self, wants: Wants) -> None:
        """Check and open everything that is not pytest's."""
        with self._opening:
            if wants and self._run is None:
                self._wants = wants
                settings, cases = self._config.stash[SETTINGS], [case for case, _ in wants]
                self._run = Run(settings, self.platform(), SystemClock(), cases)

    def _begin(self) -> None:
        """Let the reporters in, then the jobs."""
        if self._run is None or self._reporters:
            return
        found = offers.reporters(self._config)
        for name in found:
            with guarded(self._config, f"no reporter {name!r}"):
                reporter = offers.load("reporter", name, found)(self._config, self._run.folder)
                self._config.pluginmanager.register(reporter, f"aisbench-{name}")
                self._reporters[name] = reporter
        with self._noticing():
            results.write(self._run.entry(), self._run.folder)
        self._run.want(self._wants)

    @contextmanager
    def _noticing(self) -> Iterator[None]:
        """A run that cannot be recorded is never green, and never a traceback: one line, and exit 3."""
        try:
            yield
        except (LedgerError, OSError) as error:
            self._tally.unrecorded = str(error)

    @pytest.hookimpl(tryfirst=True)
    def pytest_runtest_logreport(self, report: pytest.TestReport) -> None:
        """Before the host plugins see the report, so that they show the case as the ledger has it."""
        said = properties_of(report)
        self._count(report, said.get("verdict"))
        case_id = case_of(report)
        if self._run and case_id and (report.failed or report.when == "call"):
            failure = f"its test failed in {report.when}: {_headline(report)}" if report.failed else ""
            with self._noticing():
                entry = self._run.rule(case_id, failure)
                for name, reporter in self._reporters.items():
                    with guarded(self._config, f"reporter {name!r}"):
                        reporter.case(entry)
                results.write(self._run.entry(), self._run.folder)
            if self._tally.unrecorded:
                # The hosts would meet the same full disk next, and end the run with a traceback.
                pytest.exit(f"the run cannot be recorded: {self._tally.unrecorded}", returncode=exitcode.INTERNAL)
            self._heed_maxfail(report)

    def _heed_maxfail(self, report: pytest.TestReport) -> None:
        """xdist ends -x only when every worker has ended its test, and ours may wait for hours."""
        limit = self._config.getvalue("maxfail") or 0
        if self._run and self._link and report.failed and 0 < limit <= self._tally.failures:
            self._run.fleet.give_up()

    def _count(self, report: pytest.TestReport, verdict: Any) -> None:
        if report.passed and report.when == "call":
            self._tally.passed += 1
        elif report.failed and report.when == "setup" and verdict == Ruling.BROKEN.value:
            self._tally.broken += 1
        elif report.failed and report.when == "call" and verdict == Ruling.INCONCLUSIVE.value:
            self._tally.inconclusive += 1
        elif report.failed:
            self._tally.failed += 1

    def pytest_keyboard_interrupt(self, excinfo: pytest.ExceptionInfo[BaseException]) -> None:
        # xdist ends -x and --maxfail with an interrupt of its own; nobody pressed a key.
        self._tally.stopped_early = excinfo.type.__module__.startswith("xdist")

    @pytest.hookimpl(wrapper=True, trylast=True)
    def pytest_sessionfinish(self, session: pytest.Session, exitstatus: int) -> Generator[None, object, object]:
        """Inside the terminal's wrapper and around the hosts, whose files may meet a full disk too."""
        if self._run is None:
            return (yield)
        session.exitstatus = self._tally.code(int(exitstatus))
        with self._noticing():
            entry = self._run.finish(int(session.exitstatus))
            for name, reporter in self._reporters.items():
                with guarded(self._config, f"reporter {name!r}"):
                    reporter.run(entry)
            results.write(entry, self._run.folder)
        with self._noticing():
            yield
        if self._tally.unrecorded:
            session.exitstatus = self._tally.code(int(exitstatus))
        return None

    def pytest_terminal_summary(self, terminalreporter: Any) -> None:
        if self._run:
            folder = _relative(str(self._run.folder), str(self._config.invocation_params.dir))
            width = shutil.get_terminal_size((80, 24)).columns
            terminalreporter.section("aisbench")
            if self._tally.unrecorded:
                terminalreporter.write_line(f"not recorded: {self._tally.unrecorded}", red=True)
            for line, markup in terminal.summary(self._run.entry(), folder, width):
                terminalreporter.write_line(line, **markup)

    def pytest_unconfigure(self) -> None:
        if self._link:
            self._link.close()
        if self._run:
            self._run.close()
        if self._platform:
            self._platform.close()

    # Workers of xdist: they collect and judge, the Fleet stays here.

    def admit(self, node: Any) -> None:
        """Tell a worker how to reach us."""
        from pytest_aisbench.services.link import Link

        if self._link is None:
            answers: dict[str, Callable[..., Any]] = {
                "plan": self._plan,
                "fault": self._fail,
                "reached": self.reached,
                "share": self._share,
            }
            self._link = Link(answers)
        node.workerinput["aisbench_link"] = (self._link.address, self._link.key)

    @pytest.hookimpl(optionalhook=True, tryfirst=True)
    def pytest_xdist_node_collection_finished(self) -> None:
        """The worker has planned by now: it waited for the answer before it told xdist."""
        with _one_line():
            if self._failure:
                raise self._failure
        self._begin()

    def _plan(self, wants: Wants) -> str | None:
        """The folder of the run, for the worker's own reporters."""
        try:
            self._open(wants)
        except AisbenchError as failure:
            self._fail(failure)
        return str(self._run.folder) if self._run else None

    def _fail(self, failure: AisbenchError) -> None:
        self._failure = self._failure or failure

    def _share(self) -> dict[str, Any]:
        return dict(self.platform().share())


@contextmanager
def _one_line() -> Iterator[None]:
    """What was typed wrong is one line and exit 4; a ledger or cloud that cannot be opened is one line and exit 3."""
    try:
        yield
    except UsageFault as fault:
        raise pytest.UsageError(str(fault)) from None
    except AisbenchError as error:
        pytest.exit(str(error), returncode=exitcode.INTERNAL)


@contextmanager
def _terminable() -> Iterator[None]:
    """SIGTERM ends the run as Ctrl-C does, with its own exit code; by default it would leave the jobs running."""
    if threading.current_thread() is not threading.main_thread():
        yield
        return

    def end(*_: object) -> None:
        pytest.exit("terminated", returncode=exitcode.TERMINATED)

    before = signal.signal(signal.SIGTERM, end)
    try:
        yield
    finally:
        signal.signal(signal.SIGTERM, before)


def _headline(report: pytest.TestReport) -> str:
    crash = getattr(report.longrepr, "reprcrash", None)
    text = crash.message if crash else str(report.longrepr or "")
    return next((line for line in text.splitlines() if line.strip()), "no message")


def _relative(path: str, start: str) -> str:
    return path.removeprefix(start.rstrip("/") + "/")
