"""The process that owns the session: it opens the run, runs the tests, records each case, and sets the exit code."""

from __future__ import annotations

import gc
import sys
import threading
from collections import Counter
from collections.abc import Callable, Collection, Generator, Sequence
from typing import TYPE_CHECKING, Any

import pytest

from pytest_aisbench import registry
from pytest_aisbench.engine.run import Run
from pytest_aisbench.errors import UsageFault
from pytest_aisbench.judge import exit_code
from pytest_aisbench.logs import get_logger
from pytest_aisbench.model.clock import SystemClock
from pytest_aisbench.model.ports import Platform
from pytest_aisbench.report.host_plugins import PREFIX, case_id_of_report, guarded, properties_of, write_line
from pytest_aisbench.report.results import ResultsWriter
from pytest_aisbench.report.terminal import failure_of, write_exit_code, write_summary
from pytest_aisbench.session import collection
from pytest_aisbench.session.collection import Plan
from pytest_aisbench.session.outcome import (
    RunOutcome,
    Signals,
    errors_in_one_line,
    fails_by_verdict,
    verdict_of_failure,
)
from pytest_aisbench.session.reporters import Reporters
from pytest_aisbench.stash import LEDGER

if TYPE_CHECKING:
    from pytest_aisbench.config.settings import Settings
    from pytest_aisbench.engine.fleet import Fleet
    from pytest_aisbench.model.case import Case
    from pytest_aisbench.model.trial import Step, Trial
    from pytest_aisbench.report.live import Live
    from pytest_aisbench.session.xdist import Workers
_LOG = get_logger("session")
_GC_OBJECTS = 20_000  # made before Python looks for garbage again, while a run is open
_SWITCH_S = 0.02
_GLANCE_S = 0.5  # how long the main thread waits before it shows again what runs and what is logged


class Controller(collection.ChecksSelection):
    """A pytest plugin object. It opens and writes nothing before pytest has collected the first workload item."""

    def __init__(self, config: pytest.Config, settings: Settings) -> None:
        self._config = config
        self._settings = settings
        self._platform: Platform | None = None
        self._run: Run | None = None
        self._reporters = Reporters(config)
        self._begun = False
        self._signals = Signals(self._say)
        self._outcome = RunOutcome(config, settings, self._signals)
        self._workers: Workers | None = None
        self._live: Live | None = None
        self._opening = threading.RLock()  # workers of xdist plan, and ask for the platform, at the same time
        self._results: ResultsWriter | None = None
        self._plan = Plan()
        self._has_cases = False  # of those that were collected, in a session without xdist
        self._session: pytest.Session | None = None  # once it has ended
        self._gc_threshold, self._switch_s = gc.get_threshold(), sys.getswitchinterval()

    # RunOwner: what the fixtures ask for.

    def reached(self, case: Case, until: Step) -> Trial:
        if self._run is None:
            advice = "name the fixture among the test's arguments, and leave --setup-only away"
            raise UsageFault(f"{case.id} was not announced before the run", advice=advice)
        fleet = self._run.fleet
        fleet.want(case, until)
        while self._live and not fleet.is_ready(case, until):
            fleet.wait(_GLANCE_S)
            self._live.write_log()
        return self._run.reached(case, until)

    def platform(self) -> Platform:
        with self._opening:
            if self._platform is None:
                self._platform = registry.of_session(self._config).connect(self._settings)
            return self._platform

    def run_name(self) -> str:
        return self._run.id if self._run else ""

    # What the workers of xdist ask for, through `Workers`.

    def admit(self, node: Any) -> None:
        """A worker is about to start."""
        from pytest_aisbench.session.xdist import Workers

        if self._workers is None:
            self._workers = Workers(self._config, self)
            self._config.pluginmanager.register(self._workers, "aisbench-workers")
        self._workers.admit(node)

    def judges(self, nodeid: str) -> bool:
        """Whether a test is about a case of ours."""
        return nodeid in self._plan.cases

    # The run.

    @pytest.hookimpl(tryfirst=True)
    def pytest_collection_modifyitems(self, items: list[pytest.Item]) -> None:
        self._has_cases = any(map(collection.case_of, items))
        collection.select(self._config, items, self._settings.nodes, self._say)

    def pytest_deselected(self, items: Sequence[pytest.Item]) -> None:
        collection.leave_out(self._config, items)

    @pytest.hookimpl(wrapper=True, trylast=True)
    def pytest_runtestloop(self, session: pytest.Session) -> Generator[None, object, object]:
        """Here the selection is final, and a `finally` sees -x, Ctrl-C and pytest.exit alike.

        Inside the wrapper of pytest's log, so that it has what is logged before the first test and after the last."""
        option = self._config.option
        idle = option.collectonly or getattr(option, "setupplan", False) or getattr(option, "setuponly", False)
        if idle or (session.testsfailed and not option.continue_on_collection_errors):
            return (yield)
        self._signals.open()
        leave = False
        try:
            with errors_in_one_line():
                self.open(collection.plan(self._config, session.items))
                self.begin()
            return (yield)
        except KeyboardInterrupt:
            # pytest ends --sw by the same exception, without a signal.
            leave = self._settings.on_interrupt == "leave" and self._signals.seen is not None
            raise
        finally:
            # Before the stop: Ctrl-C would begin what is under way already, and must not end the wait for it.
            self._signals.calm()
            self._stop(leave=leave)

    @pytest.hookimpl(specname="pytest_runtestloop")
    def pytest_runtestloop_ready_first(self, session: pytest.Session) -> bool | None:
        """In place of pytest's own loop; xdist has one of its own, which cannot wait for jobs."""
        if self._run is None or self._workers:
            return None
        return run_ready_first(session, self._run.fleet, self._live.tick if self._live else lambda: None)

    def _stop(self, *, leave: bool) -> None:
        live, self._live = self._live, None
        if live:
            with guarded(self._config, "progress"):
                live.close()
        with self._outcome.noticing():
            if self._run:
                if self._signals.seen and not leave:
                    self._say("stopping what runs; once more, and it is left at once")
                for line in self._run.stop(leave=leave):
                    self._say(line)

    def open(self, plan: Plan) -> str | None:
        """Check and open everything that is not pytest's; the folder of the run, if there is one."""
        with self._opening:
            self._outcome.plan(plan)
            if plan.cases and not self._plan.cases:
                self._plan = plan
                for note in plan.notes:
                    self._say(note)
            if plan.wants and self._run is None:
                settings, meter = self._settings, registry.of_session(self._config).meter(self._settings)
                self._run = Run(settings, self.platform(), SystemClock(), plan.wants, self._say, meter=meter)
                self._config.stash[LEDGER] = self._run.ledger.database
                # A run keeps nearly all that it makes until its end: to search that for garbage takes 6 % of its CPU.
                gc.freeze()
                gc.set_threshold(_GC_OBJECTS, *self._gc_threshold[1:])
                # Ten threads that take turns every 5 ms spend a tenth of the CPU on taking turns.
                sys.setswitchinterval(_SWITCH_S)
                self._results = ResultsWriter(self._run.folder, self._run.entry)
                self._run.shown_by(self._results.write)
            return str(self._run.folder) if self._run else None

    def _say(self, line: str) -> None:
        _LOG.info("%s", line)
        if self._live:
            self._live.say(line)
        else:
            write_line(self._config, line)

    def begin(self) -> None:
        """Open the reporters, then begin the jobs."""
        if self._run is None or self._begun:
            return
        self._begun = True
        self._reporters.open(self._run.folder)
        with self._outcome.noticing():
            self._publish()
        self._run.begin()
        with guarded(self._config, "no progress is shown"):
            from pytest_aisbench.report.live import Live

            threaded = self._workers is not None
            self._live = Live(self._config, self._run, self._settings, SystemClock(), threaded=threaded)
            self._config.pluginmanager.register(self._live, "aisbench-live")

    def _publish(self) -> None:
        if self._results:
            self._results.write()

    @pytest.hookimpl(tryfirst=True)
    def pytest_runtest_logreport(self, report: pytest.TestReport) -> None:
        """Before the host plugins see the report, so that they show the case as the ledger has it."""
        if report.outcome not in {"passed", "failed", "skipped"}:
            return  # a worker crashed, and another will judge
        verdict = properties_of(report).get("verdict")
        self._outcome.count(report, verdict)
        self._heed_maxfail()
        # A worker that crashed left a report without properties.
        case_id = case_id_of_report(report) or self._plan.cases.get(report.nodeid, "")
        if case_id and case_id_of_report(report) is None:
            report.user_properties.append((f"{PREFIX}case", case_id))
        if report.skipped and verdict is None and case_id not in (self._run.stopped() if self._run else ()):
            self._outcome.skip(case_id, report)
        elif self._run and self._run.knows(case_id) and (report.when == "call" or not report.passed):
            self._record(case_id, report)

    def _record(self, case_id: str, report: pytest.TestReport) -> None:
        assert self._run is not None
        with self._outcome.noticing():
            entry = self._run.rule(case_id, verdict_of_failure(report) if report.failed else None)
            if fails_by_verdict(report):
                report.longrepr = failure_of(entry, self._run.folder, report, self._config)
            self._reporters.case(entry)
            if self._results:
                self._results.write_soon()
        if unrecorded := self._outcome.tally.unrecorded:
            # The hosts would meet the same full disk next, and end the run with a traceback.
            pytest.exit(f"the run cannot be recorded: {unrecorded}", returncode=exit_code.INTERNAL)

    def _heed_maxfail(self) -> None:
        """Cancel the jobs: xdist ends -x only when every worker has ended its test, which may wait for hours."""
        if self._run and self._workers and self._outcome.enough():
            self._run.fleet.give_up()

    def pytest_keyboard_interrupt(self, excinfo: pytest.ExceptionInfo[BaseException]) -> None:
        self._outcome.interrupted(excinfo.type)

    @pytest.hookimpl(wrapper=True, trylast=True)
    def pytest_sessionfinish(self, session: pytest.Session, exitstatus: int) -> Generator[None, object, object]:
        """Runs before the terminal prints its summary, and while junit and Allure write: their disk may be full too."""
        self._session = session
        if self._results:
            self._results.close()
            gc.freeze()  # pytest is about to search everything for garbage, five times
        code = self._outcome.code(exitstatus, self._run)
        session.exitstatus = code
        if self._run is None:
            return (yield)
        run = self._run
        with self._outcome.noticing():
            self._reporters.run(run.finish(lambda: self._outcome.code(exitstatus, run)))
            self._publish()
        with self._outcome.noticing():
            yield
        session.exitstatus = self._outcome.code(exitstatus, run)
        if session.exitstatus != code:
            with self._outcome.noticing():
                run.finish(lambda: self._outcome.code(exitstatus, run))
                self._publish()
        return None

    def pytest_terminal_summary(self, terminalreporter: Any) -> None:
        missing, run = self._outcome.missing(self._run), self._run
        # A reason is printed once: pytest prints them with -rs, and a required case says why it is missing.
        printed = self._config.getoption("reportchars", "")
        skipped = {} if {"s", "a", "A"} & set(printed) else self._outcome.skipped(self._run)
        skipped = {case: why for case, why in skipped.items() if case not in missing}
        if run or missing or skipped:
            recorded = (run.folder, run.entry()) if run else None
            unrecorded = self._outcome.tally.unrecorded
            write_summary(terminalreporter, self._config, missing, recorded, skipped=skipped, unrecorded=unrecorded)

    @pytest.hookimpl(trylast=True)
    def pytest_unconfigure(self) -> None:
        if self._session and (self._has_cases or self._plan.cases or self._settings.required):
            write_exit_code(self._config, int(self._session.exitstatus))
        gc.set_threshold(*self._gc_threshold)
        sys.setswitchinterval(self._switch_s)
        if self._workers:
            self._workers.close()
        if self._run:
            self._run.close()
        if self._platform:
            self._platform.close()
        self._signals.close()


def run_ready_first(session: pytest.Session, fleet: Fleet, tick: Callable[[], None]) -> bool:
    """Run each test when the trial that it waits for has come far enough, not when its turn has come.

    pytest sets fixtures of a module or class up again if the order jumps between modules.
    """
    waiting = _WaitingTests(session.items)
    ready = waiting.take_ready(fleet, None)
    while waiting or ready:
        if not ready:
            tick()
            changed = fleet.wait(_GLANCE_S)
            ready = waiting.take_ready(fleet, None if fleet.closing else changed)
            continue
        batch, ready = ready, []
        for item, following in zip(batch, [*batch[1:], None], strict=True):
            session.config.hook.pytest_runtest_protocol(item=item, nextitem=following or waiting.nearest())
            if session.shouldfail:
                raise session.Failed(session.shouldfail)
            if session.shouldstop:
                raise session.Interrupted(session.shouldstop)
    return True


class _WaitingTests:
    """The tests that have not begun, in their order; looks only at those whose trial changed."""

    def __init__(self, items: Sequence[pytest.Item]) -> None:
        self._goals = {item: (collection.case_of(item), collection.needed_step(item)) for item in items}
        self._order = {item: number for number, item in enumerate(items)}
        self._of_case: dict[str, list[pytest.Item]] = {}
        self._below: Counter[pytest.Collector] = Counter()  # how many of the tests a module, class or folder has
        self._anchors: dict[pytest.Collector, _Anchor] = {}
        for item, (case, _) in self._goals.items():
            self._below.update(_collectors(item))
            if case:
                self._of_case.setdefault(case.id, []).append(item)

    def __bool__(self) -> bool:
        return bool(self._goals)

    def take_ready(self, fleet: Fleet, changed: Collection[str] | None) -> list[pytest.Item]:
        """Take the tests that can run now: of the cases that changed, or of all if None is given."""
        asked = (
            self._goals
            if changed is None
            else (item for case_id in changed for item in self._of_case.get(case_id, ()) if item in self._goals)
        )
        ready = sorted((item for item in asked if self._is_ready(item, fleet)), key=self._order.__getitem__)
        for item in ready:
            del self._goals[item]
            self._below.subtract(_collectors(item))
        return ready

    def _is_ready(self, item: pytest.Item, fleet: Fleet) -> bool:
        case, until = self._goals[item]
        return case is None or until is None or fleet.is_ready(case, until)

    def nearest(self) -> pytest.Item | None:
        """Stands for the test that follows: its fixtures are those that all waiting tests share."""
        if not self._goals:
            return None
        first = next(iter(self._goals))
        if len(self._goals) == 1:
            return first
        shared = next(node for node in reversed(_collectors(first)) if self._below[node] == len(self._goals))
        if shared not in self._anchors:
            self._anchors[shared] = _Anchor.from_parent(shared, name="whichever is ready")
        return self._anchors[shared]


def _collectors(item: pytest.Item) -> list[pytest.Collector]:
    return [node for node in item.listchain()[:-1] if isinstance(node, pytest.Collector)]


class _Anchor(pytest.Item):
    """Stands for the next test while we do not know which that will be: it needs the fixtures that all share."""

    def runtest(self) -> None:
        raise AssertionError("never run")
