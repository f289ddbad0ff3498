"""The process that owns the session: it holds the run, records what its tests say, and sets the exit code."""

from __future__ import annotations

import shutil
import threading
from collections.abc import Callable, Generator, Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

import pytest

from pytest_aisbench import collection, offers
from pytest_aisbench.collection import Plan
from pytest_aisbench.domain import exitcode
from pytest_aisbench.domain.ports import Platform, Reporter
from pytest_aisbench.domain.verdict import Ruling
from pytest_aisbench.ending import on_sigterm, one_line
from pytest_aisbench.errors import AisbenchError, LedgerError, UsageFault
from pytest_aisbench.fixtures import SETTINGS
from pytest_aisbench.judging import failure
from pytest_aisbench.order import run_ready_first
from pytest_aisbench.reporters import results
from pytest_aisbench.reporters.hosts import guarded
from pytest_aisbench.reporters.properties import case_of, properties_of
from pytest_aisbench.reporters.terminal import summary
from pytest_aisbench.services.clock import SystemClock
from pytest_aisbench.services.run import Run

if TYPE_CHECKING:
    from pytest_aisbench.domain.case import Case
    from pytest_aisbench.domain.trial import Step, Trial
    from pytest_aisbench.reporters.live import Live
    from pytest_aisbench.services.link import Link


class Controller:
    """A pytest plugin object. Nothing is opened or written before the first workload item is known."""

    def __init__(self, config: pytest.Config) -> None:
        self._config = config
        self._platform: Platform | None = None
        self._run: Run | None = None
        self._reporters: dict[str, Reporter] = {}
        self._tally = exitcode.Tally()
        self._link: Link | None = None
        self._live: Live | None = None
        self._opening = threading.RLock()  # workers of xdist plan, and ask for the platform, at the same time
        self._plan = Plan()
        self._failure: AisbenchError | None = None

    # Crew: what the fixtures ask for.

    def reached(self, case: Case, until: Step) -> Trial:
        if self._run is None:
            advice = "name the fixture among the test's arguments, and leave --setup-only away"
            raise UsageFault(f"{case.id} was not announced before the run", advice=advice)
        return self._run.reached(case, until)

    def platform(self) -> Platform:
        with self._opening:
            if self._platform is None:
                settings = self._config.stash[SETTINGS]
                self._platform = offers.load("platform", settings.platform, offers.platforms(self._config))(settings)
            return self._platform

    # The run.

    @pytest.hookimpl(tryfirst=True)
    def pytest_collection_modifyitems(self, items: list[pytest.Item]) -> None:
        collection.select(self._config, items, self._say)

    @pytest.hookimpl(specname="pytest_collection_modifyitems", trylast=True)
    def pytest_collection_modifyitems_check(self, items: list[pytest.Item]) -> None:
        """After -k and everybody else: what is not selected may be as it is."""
        with one_line():
            collection.check(self._config, items)

    @pytest.hookimpl(wrapper=True, tryfirst=True)
    def pytest_runtestloop(self, session: pytest.Session) -> Generator[None, object, object]:
        """Here the selection is final, and a `finally` sees -x, Ctrl-C and pytest.exit alike."""
        option = self._config.option
        idle = option.collectonly or getattr(option, "setupplan", False) or getattr(option, "setuponly", False)
        if idle or (session.testsfailed and not option.continue_on_collection_errors):
            return (yield)
        with on_sigterm(self._terminate):
            leave = False
            try:
                with one_line():
                    self._open(collection.plan(self._config, session.items))
                self._begin()
                return (yield)
            except KeyboardInterrupt:
                leave = self._config.stash[SETTINGS].on_interrupt == "leave" and not self._maxfail_reached()
                raise
            finally:
                self._stop(leave=leave)

    @pytest.hookimpl(specname="pytest_runtestloop")
    def pytest_runtestloop_ready_first(self, session: pytest.Session) -> bool | None:
        """In place of pytest's own loop; xdist has one of its own, which cannot wait for jobs."""
        if self._run is None or self._link:
            return None
        fleet = self._run.fleet

        def is_ready(item: pytest.Item) -> bool:
            case, until = collection.case_of(item), collection.until(item)
            return case is None or until is None or fleet.is_ready(case, until)

        def wait() -> None:
            if self._live:
                self._live.tick()
            fleet.wait(0.5)

        return run_ready_first(session, is_ready, wait)

    def _terminate(self) -> None:
        self._tally.terminated = True

    def _stop(self, *, leave: bool) -> None:
        live, self._live = self._live, None
        if live:
            with guarded(self._config, "progress"):
                live.close()
        with self._noticing():
            if self._run:
                self._run.stop(leave=leave)
                if isinstance(self._run.fleet.crash, LedgerError):
                    raise self._run.fleet.crash

    def _open(self, plan: Plan) -> None:
        """Check and open everything that is not pytest's."""
        with self._opening:
            self._tally.unmatched |= plan.unmatched
            if plan.cases and not self._plan.cases:
                self._plan = plan
                self._tally.expected |= plan.expected
            if plan.wants and self._run is None:
                settings = self._config.stash[SETTINGS]
                self._run = Run(settings, self.platform(), SystemClock(), plan.wants, self._say)

    def _say(self, line: str) -> None:
        if self._live:
            self._live.say(line)
            return
        terminal: Any = self._config.pluginmanager.get_plugin("terminalreporter")
        if terminal:
            terminal.ensure_newline()
            terminal.write_line(f"aisbench: {line}")

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
        self._run.begin()
        with guarded(self._config, "no progress is shown"):
            from pytest_aisbench.reporters.live import Live

            settings, threaded = self._config.stash[SETTINGS], self._link is not None
            self._live = Live(self._config, self._run, settings, SystemClock(), threaded=threaded)
            self._config.pluginmanager.register(self._live, "aisbench-live")

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
        verdict = properties_of(report).get("verdict")
        self._count(report, verdict)
        self._heed_maxfail()
        # A worker that crashed left a report without properties.
        case_id = case_of(report) or self._plan.cases.get(report.nodeid, "")
        if report.skipped and verdict is None:
            self._tally.skipped.add(case_id)  # the test did not ask what became of the job
        elif self._run and self._run.knows(case_id) and (report.when == "call" or not report.passed):
            self._record(case_id, failure(report) if report.failed else "")

    def _record(self, case_id: str, failed: str) -> None:
        assert self._run is not None
        with self._noticing():
            entry = self._run.rule(case_id, failed)
            for name, reporter in self._reporters.items():
                with guarded(self._config, f"reporter {name!r}"):
                    reporter.case(entry)
            results.write(self._run.entry(), self._run.folder)
        if self._tally.unrecorded:
            # The hosts would meet the same full disk next, and end the run with a traceback.
            pytest.exit(f"the run cannot be recorded: {self._tally.unrecorded}", returncode=exitcode.INTERNAL)

    def _count(self, report: pytest.TestReport, verdict: Any) -> None:
        if report.failed:
            broken = report.when == "setup" and verdict == Ruling.BROKEN.value
            inconclusive = report.when == "call" and verdict == Ruling.INCONCLUSIVE.value
            self._tally.failures += 1
            self._tally.failed += not (broken or inconclusive)

    def _maxfail_reached(self) -> bool:
        return 0 < (self._config.getvalue("maxfail") or 0) <= self._tally.failures

    def _heed_maxfail(self) -> None:
        """xdist ends -x only when every worker has ended its test, and ours may wait for hours."""
        if self._run and self._link and self._maxfail_reached():
            self._run.fleet.give_up()

    def pytest_keyboard_interrupt(self, excinfo: pytest.ExceptionInfo[BaseException]) -> None:
        # xdist ends -x and --maxfail with an interrupt of its own; nobody pressed a key.
        self._tally.stopped_early = excinfo.type.__module__.startswith("xdist") and self._maxfail_reached()

    @pytest.hookimpl(wrapper=True, trylast=True)
    def pytest_sessionfinish(self, session: pytest.Session, exitstatus: int) -> Generator[None, object, object]:
        """Inside the terminal's wrapper and around the hosts, whose files may meet a full disk too."""
        code = self._code(exitstatus)
        session.exitstatus = code
        if self._run is None:
            return (yield)
        with self._noticing():
            entry = self._run.finish(code)
            for name, reporter in self._reporters.items():
                with guarded(self._config, f"reporter {name!r}"):
                    reporter.run(entry)
            results.write(entry, self._run.folder)
        with self._noticing():
            yield
        session.exitstatus = self._code(exitstatus)
        return None

    def _code(self, exitstatus: int) -> int:
        return self._tally.code(int(exitstatus), self._run.rulings() if self._run else {})

    def pytest_terminal_summary(self, terminalreporter: Any) -> None:
        if self._run:
            width = shutil.get_terminal_size((80, 24)).columns
            here = f"{self._config.invocation_params.dir}/"
            folder = str(self._run.folder).removeprefix(here)
            page = str(getattr(self._config.option, "htmlpath", None) or folder).removeprefix(here)
            terminalreporter.section("aisbench")
            if self._tally.unrecorded:
                terminalreporter.write_line(f"not recorded: {self._tally.unrecorded}", red=True)
            for line, markup in summary(self._run.entry(), folder, page, width):
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
                "plan": self._planned,
                "fault": self._fail,
                "reached": self.reached,
                "share": self._share,
            }
            self._link = Link(answers)
        node.workerinput["aisbench_link"] = (self._link.address, self._link.key)

    @pytest.hookimpl(optionalhook=True, tryfirst=True)
    def pytest_xdist_node_collection_finished(self) -> None:
        """The worker has planned by now: it waited for the answer before it told xdist."""
        with one_line():
            if self._failure:
                raise self._failure
        self._begin()

    def _planned(self, plan: Plan) -> str | None:
        """The folder of the run, for the worker's own reporters."""
        try:
            self._open(plan)
        except AisbenchError as failure:
            self._fail(failure)
        return str(self._run.folder) if self._run else None

    def _fail(self, failure: AisbenchError) -> None:
        self._failure = self._failure or failure

    def _share(self) -> dict[str, Any]:
        with self._opening:
            return dict(self.platform().share())
