"""The processes of a simulation: a run of pytest, `aisbench stop` and `aisbench flush`, without pytest and a terminal.

`PytestRun` does what `session.controller` does with a run, in the same order, and with the same parts: `Run`,
`RunOutcome`, `ResultsWriter`, `Uploader`.
"""

from __future__ import annotations

import signal
from collections.abc import Sequence
from contextlib import closing
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from pytest_aisbench.config.settings import Settings
from pytest_aisbench.engine.cancel import CancelCommand
from pytest_aisbench.engine.run import Run
from pytest_aisbench.errors import AisbenchError, Crashed, GivenUp, LedgerError, UsageFault
from pytest_aisbench.judge import exit_code
from pytest_aisbench.ledger.database import Database
from pytest_aisbench.ledger.outbox import Outbox
from pytest_aisbench.ledger.runs import JobLedger
from pytest_aisbench.model.case import Case
from pytest_aisbench.model.clock import SystemClock
from pytest_aisbench.model.results import Destination, UploadItem
from pytest_aisbench.model.trial import Step
from pytest_aisbench.model.verdict import Ruling, Verdict
from pytest_aisbench.report.results import ResultsWriter
from pytest_aisbench.session.collection import Plan
from pytest_aisbench.session.outcome import RunOutcome, Signals
from pytest_aisbench.tester.transports import HttpTransport
from pytest_aisbench.tester.uploader import PATIENCE_S, Uploader, flush
from tests.sim.cloud import TESTER_TOKEN, Cloud
from tests.sim.faults import Faults
from tests.sim.machine import GreenScheduler, Machine, Process, Thread, doing

_GLANCE_S = 5.0  # the main thread is woken by every change of a trial, and by Ctrl-C


@dataclass
class PytestRun:
    """One `pytest suites/`, from its start to its exit code."""

    machine: Machine
    process: Process
    cloud: Cloud
    faults: Faults
    reports: Path
    cases: Sequence[Case]
    options: dict[str, Any]
    with_xdist: bool = False  # then an error of ours fails a test, and cannot end the session at once
    exit_code: int | None = None  # None: it was killed, or is still running
    crash: BaseException | None = None
    run: Run | None = None
    lines: list[str] = field(default_factory=list)
    signals: Signals = field(init=False)
    main_thread: Thread | None = None
    interrupted: bool = False
    unrecorded: str = ""  # why the ledger or the reports could not be written

    def __post_init__(self) -> None:
        self.signals = Signals(self.lines.append)

    @property
    def name(self) -> str:
        return self.process.name

    @property
    def over(self) -> bool:
        return self.exit_code is not None or not self.process.alive or self.crash is not None

    def start(self) -> None:
        self.main_thread = self.machine.start(self.process, self._main, "main")

    def ctrl_c(self) -> None:
        """As the signal handler does: noted, and raised in the main thread."""
        if self.main_thread and not self.over and not self.interrupted:
            self.interrupted = True
            self.signals.seen = signal.SIGINT
            if not self.signals._calm:
                self.machine.interrupt(self.main_thread, KeyboardInterrupt())

    def _main(self) -> None:
        try:
            self.exit_code = self._pytest()
        except UsageFault:
            self.exit_code = exit_code.USAGE
        except AisbenchError:
            self.exit_code = exit_code.INTERNAL
        except KeyboardInterrupt:
            self.exit_code = exit_code.INTERRUPTED
        except Exception as crash:  # noqa: BLE001 - a mistake of ours: the checker reports it
            self.crash = crash

    def _pytest(self) -> int:
        settings = self.cloud.settings(self.reports, **self.options)
        outcome = RunOutcome(None, settings, self.signals)  # type: ignore[arg-type]  # it is only asked for --maxfail
        scheduler = GreenScheduler(lambda: self.machine, lambda: self.faults.between(f"{self.name}.worker", 0.0, 0.01))
        wants = [(case, Step.DONE) for case in self.cases]
        ids = [case.id for case in self.cases]
        outcome.plan(Plan(tuple(wants), dict(zip(ids, ids, strict=True)), frozenset(ids)))
        with doing(self.machine, "OPEN"):
            platform = self.cloud.connect(settings)
            self.run = run = Run(settings, platform, SystemClock(), wants, self.lines.append, scheduler=scheduler)
            results = ResultsWriter(run.folder, run.entry)
            run.shown_by(results.write)
        return self._work(run, settings, outcome, results)

    def _work(self, run: Run, settings: Settings, outcome: RunOutcome, results: ResultsWriter) -> int:
        status, uploader, leave = exit_code.PASSED, None, False
        try:
            try:
                with doing(self.machine, "OPEN"):
                    uploader = self._start_uploads(run, settings)
                    with outcome.noticing():
                        results.write()
                with doing(self.machine, "TAKEOVER"):
                    run.begin()
                status = self._tests(run, outcome, uploader, results)
            except KeyboardInterrupt:
                status, leave = exit_code.INTERRUPTED, self.options.get("on_interrupt") == "leave"
            except AisbenchError:
                status = exit_code.INTERNAL
            finally:
                self.signals.calm()
                with doing(self.machine, "CANCEL"), outcome.noticing():
                    self.lines += run.stop(leave=leave)
        except KeyboardInterrupt:
            status = exit_code.INTERRUPTED
        return self._finish(run, outcome, uploader, results, status)

    def _start_uploads(self, run: Run, settings: Settings) -> Uploader:
        outbox, address = Outbox(run.ledger.database), settings.tester or ""
        outbox.set_destination(run.id, Destination(address, settings.platform, str(run.folder)))
        transport = HttpTransport(address, TESTER_TOKEN)
        transport._session = self.cloud.tester_session  # type: ignore[assignment]
        return Uploader(outbox, run.id, transport=transport, clock=SystemClock(), warn=self.lines.append)

    def _tests(self, run: Run, outcome: RunOutcome, uploader: Uploader, results: ResultsWriter) -> int:
        """Each test waits for its trial, requires its verdict, and is recorded; ready first."""
        waiting, failed = {case.id: case for case in self.cases}, False
        while waiting:
            ready = [case for case in waiting.values() if run.fleet.is_ready(case, Step.DONE)]
            if not ready:
                run.fleet.wait(_GLANCE_S)
            for case in ready:
                del waiting[case.id]
                failed |= not self._test(run, case, outcome, uploader, results)
                if outcome.tally.unrecorded:
                    return exit_code.INTERNAL
        return exit_code.FAILED if failed else exit_code.PASSED

    def _test(self, run: Run, case: Case, outcome: RunOutcome, uploader: Uploader, results: ResultsWriter) -> bool:
        """One test, as the fixture `trial` and the controller treat it; False if it failed."""
        tally, failure = outcome.tally, None
        try:
            trial = run.reached(case, Step.DONE)
            passed = trial.judged is not None and trial.judged.passed
            if trial.judged and not passed:
                tally.failures += 1
                tally.failed += trial.judged.ruling is Ruling.FAILED
        except GivenUp as ended:
            tally.skipped[case.id] = str(ended)
            return True
        except (Crashed, LedgerError) as error:
            if not self.with_xdist:
                raise  # as pytest.exit
            passed, failure = False, Verdict(Ruling.FAILED, str(error))
            tally.failures += 1
            tally.failed += 1
        if case.id in run.stopped():
            return False
        with outcome.noticing(), doing(self.machine, "JUDGE"):
            entry = run.rule(case.id, failure)
            uploader.add(entry)
            results.write_soon()
        return passed

    def _finish(
        self, run: Run, outcome: RunOutcome, uploader: Uploader | None, results: ResultsWriter, status: int
    ) -> int:
        results.close()
        if uploader:
            with doing(self.machine, "UPLOAD"), outcome.noticing():
                uploader.close(PATIENCE_S)
        code = outcome.code(status, run)
        with doing(self.machine, "END"), outcome.noticing():
            run.finish(lambda: outcome.code(status, run))
            if uploader:
                self._report_end(run, uploader)
            results.write()
        final = outcome.code(status, run)
        if final != code:
            with outcome.noticing():
                run.finish(lambda: outcome.code(status, run))
                results.write()
        run.close()
        self.unrecorded = outcome.tally.unrecorded
        return final

    def _report_end(self, run: Run, uploader: Uploader) -> None:
        again = Uploader(
            uploader._outbox, run.id, transport=uploader._transport, clock=SystemClock(), warn=self.lines.append
        )
        with doing(self.machine, "UPLOAD"):
            again.close(PATIENCE_S)


def stop_all_mine(cloud: Cloud, reports: Path, *, force: bool = False) -> list[str]:
    """`aisbench stop --all-mine`: a line for each job."""
    settings = cloud.settings(reports)
    platform = cloud.connect(settings)
    with closing(JobLedger(settings.ledger_file)) as ledger:
        command = CancelCommand(ledger, platform, SystemClock(), force=force, who="a person")
        return [f"{report.job}: {report.text}" for report in command.all_mine()]


def flush_outbox(cloud: Cloud, reports: Path, patience_s: float) -> list[UploadItem]:
    """`aisbench flush`."""

    def transport(address: str) -> HttpTransport:
        made = HttpTransport(address, TESTER_TOKEN)
        made._session = cloud.tester_session  # type: ignore[assignment]
        return made

    with closing(Database(cloud.settings(reports).ledger_file)) as database:
        return flush(Outbox(database), transport, SystemClock(), patience_s=patience_s)
