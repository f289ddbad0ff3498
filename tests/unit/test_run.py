"""What a run has shown, its ledger has too, whenever it is killed; and a run that fails says so, and judges nothing."""

from __future__ import annotations

import json
import signal
from collections.abc import Callable, Iterator
from contextlib import closing
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from pytest_aisbench.config.settings import Settings
from pytest_aisbench.engine.run import Run
from pytest_aisbench.errors import LedgerError
from pytest_aisbench.judge import exit_code
from pytest_aisbench.ledger.ledger import Ledger
from pytest_aisbench.model.case import Case
from pytest_aisbench.model.clock import SystemClock
from pytest_aisbench.model.trial import Step
from pytest_aisbench.model.verdict import Ruling, Verdict
from pytest_aisbench.report.results import ResultsWriter
from pytest_aisbench.session import collection
from pytest_aisbench.session.collection import Plan
from pytest_aisbench.session.controller import Controller
from pytest_aisbench.session.outcome import RunOutcome, Signals

FAILURE = Verdict(Ruling.FAILED, "the teardown failed")


class OpenRun(Run):
    """A run of one case on a platform without faults, with its results.json."""

    def __init__(self, platform: Any, case: Case, reports: Path) -> None:
        settings = Settings(reports=reports)
        super().__init__(settings, platform, SystemClock(), [(case, Step.DONE)], lambda _: None)
        self.writer = ResultsWriter(self.folder, self.entry)
        self.shown_by(self.writer.write)

    def shown(self) -> str | None:
        """The verdict in results.json."""
        (case,) = json.loads((self.folder / "results.json").read_bytes())["cases"]
        verdict: str | None = case["verdict"]
        return verdict

    def judged(self, case: Case) -> None:
        self.begin()
        self.reached(case, Step.DONE)
        self.rule(case.id)
        self.writer.write()


@pytest.fixture
def run(healthy: Callable[..., Any], case: Case, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[OpenRun]:
    monkeypatch.setenv("GITHUB_ACTIONS", "true")  # a CI server names the commit, and git is not started
    monkeypatch.setenv("GITHUB_SHA", "0" * 40)
    run = OpenRun(healthy(), case, tmp_path / "reports")
    yield run
    run.writer.close()
    run.close()


def test_a_verdict_that_another_run_took_over_is_withdrawn_before_the_ledger_has_another(
    run: OpenRun, case: Case
) -> None:
    """Its machine slept, and another run has its job by now."""
    run.judged(case)
    with closing(Ledger(run.ledger.path)) as other:
        other.begin("other", {}, 0.0)
        (left,) = other.left_trials(case.id, run.platform.platform_id, "other")
        assert other.swap_trial(replace(left.trial, run="other"), 0.0, left)
    shown = []

    def at_this_moment() -> int:
        """A kill now would leave results.json as it is, and in the ledger perhaps what was recorded before."""
        shown.append(run.shown())
        return exit_code.BROKEN

    assert [case.verdict for case in run.finish(at_this_moment).cases] == [Ruling.BROKEN]
    assert shown == ["PASSED", None]
    assert run.shown() is None
    run.writer.write()
    assert run.shown() == "BROKEN"


def test_a_verdict_that_a_later_test_overrules_is_withdrawn_too(run: OpenRun, case: Case) -> None:
    run.judged(case)
    assert run.shown() == "PASSED"
    assert run.rule(case.id, FAILURE).verdict is Ruling.FAILED
    assert run.shown() is None


def test_an_entry_has_no_verdict_that_came_while_the_ledger_was_synced(
    run: OpenRun, case: Case, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The thread that writes results.json waits for the disk; the ledger may not have what comes after that."""
    run.begin()
    run.reached(case, Step.DONE)
    sync = run.ledger.sync

    def sync_slowly() -> None:
        sync()
        run.rule(case.id)

    monkeypatch.setattr(run.ledger, "sync", sync_slowly)
    assert [case.verdict for case in run.entry().cases] == [None]


def test_a_test_that_fails_because_the_ledger_did_judges_nothing(run: OpenRun, case: Case) -> None:
    """The next run takes the job over and judges it: two verdicts from one job would be one too many."""
    run.fleet.fail(LedgerError("the disk is full"))
    assert run.rule(case.id, FAILURE).verdict is None
    assert run.rulings() == {}


def test_a_case_that_was_judged_before_keeps_its_verdict(run: OpenRun, case: Case) -> None:
    run.judged(case)
    run.fleet.fail(LedgerError("the disk is full"))
    assert run.rule(case.id, FAILURE).verdict is Ruling.FAILED


def test_a_run_whose_ledger_failed_says_so_even_if_it_is_interrupted(run: OpenRun) -> None:
    run.fleet.fail(LedgerError("the disk is full"))
    outcome = RunOutcome(None, Settings(), Signals(print))  # type: ignore[arg-type]  # it is only asked for --maxfail
    assert outcome.code(exit_code.PASSED, run) == exit_code.INTERNAL
    assert outcome.code(exit_code.INTERRUPTED, run) == exit_code.INTERRUPTED
    assert outcome.tally.unrecorded == "the disk is full"


def test_ctrl_c_while_jobs_are_stopped_does_not_end_the_wait_for_them(
    pytestconfig: pytest.Config, monkeypatch: pytest.MonkeyPatch
) -> None:
    lines: list[str] = []
    controller = Controller(pytestconfig, Settings())
    monkeypatch.setattr(collection, "plan", lambda *_: Plan())
    monkeypatch.setattr(controller, "_say", lines.append)
    monkeypatch.setattr(controller, "_signals", signals := Signals(lines.append))

    def stop(*, leave: bool) -> None:
        signal.raise_signal(signal.SIGINT)
        lines.append(f"stopped, leave={leave}")

    monkeypatch.setattr(controller, "_stop", stop)
    loop = controller.pytest_runtestloop(SimpleNamespace(testsfailed=0, items=[]))  # type: ignore[arg-type]
    try:
        next(loop)
        with pytest.raises(StopIteration):
            loop.send(None)
    finally:
        signals.close()
    assert lines == ["the run is ending already; once more, and it is left at once", "stopped, leave=False"]
    assert signals.seen is signal.SIGINT
