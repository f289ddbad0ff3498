"""Bugs that a simulation must find: each takes one safeguard out of production code."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import replace
from typing import Any

from pytest_aisbench.engine import fleet, run, submit, takeover
from pytest_aisbench.ledger import ledger
from pytest_aisbench.model.trial import Step, Trial


def _intent_after_submit() -> list[tuple[Any, str, Any]]:
    """The request leaves before the ledger has its intent on disk."""

    def is_intent(trial: Trial) -> bool:
        return trial.step is Step.WATCH and trial.fault is not None

    return [(fleet, "_is_intent", is_intent)]


def _no_fencing() -> list[tuple[Any, str, Any]]:
    """A run whose job another run has taken over writes and ends as if the job were still its own."""
    return [
        (ledger, "_SAVE_IF_OURS", ledger._SAVE),
        (ledger.Ledger, "holds", lambda *_: True),
        (run.Run, "_own_trials", lambda _: {}),
    ]


def _takeover_without_reading_again() -> list[tuple[Any, str, Any]]:
    """What was read before the wait for another run is still believed after it."""

    def left_trials(self: Any, case: Any) -> Any:
        left = self.ledger.left_trials(case.id, self.platform_id, self.run)
        doubtful = {each.trial.run: each for each in left if self._is_doubtful(each)}
        if doubtful:
            self._watch_heartbeats(case, doubtful)
        return left

    def swap(self: Any, trial: Trial, now: float, seen: Any) -> Trial:
        with self.database.transaction():
            self.database.write(ledger._SAVE, *ledger._row(trial, now))
        return trial

    return [(takeover.Takeover, "_left_trials", left_trials), (ledger.Ledger, "swap_trial", swap)]


def _report_before_ledger() -> list[tuple[Any, str, Any]]:
    """results.json shows verdicts that are not on disk in the ledger yet."""

    def entry(self: Any) -> Any:
        return replace(self._head, cases=tuple(self._entries.values()), uploads=())

    return [(run.Run, "entry", entry)]


def _create_again_without_find() -> list[tuple[Any, str, Any]]:
    """A request without an answer is sent again, without a look for the job that it may have made."""

    def job_id(request: Any, platform: Any, *, again: bool) -> str:
        return str(platform.submit(request))

    return [(submit, "_job_id", job_id)]


def _changed_under_its_report() -> list[tuple[Any, str, Any]]:
    """The ledger gets another verdict on a case while results.json still shows the first."""
    return [(run.Run, "_withdraw", lambda *_: None)]


def _verdict_by_a_crash() -> list[tuple[Any, str, Any]]:
    """A test that fails because the ledger did, with xdist, fails its case."""
    rule = run.Run.rule

    def rule_as_if_well(self: Any, case_id: str, failure: Any = None) -> Any:
        crash, self.fleet._crash = self.fleet._crash, None
        try:
            return rule(self, case_id, failure)
        finally:
            self.fleet._crash = crash

    return [(run.Run, "rule", rule_as_if_well)]


BUGS: dict[str, Callable[[], list[tuple[Any, str, Any]]]] = {
    "intent after submit": _intent_after_submit,
    "no fencing": _no_fencing,
    "takeover without reading again": _takeover_without_reading_again,
    "report before ledger": _report_before_ledger,
    "create again without find": _create_again_without_find,
    "changed under its report": _changed_under_its_report,
    "verdict by a crash": _verdict_by_a_crash,
}


@contextmanager
def planted(bug: str) -> Iterator[None]:
    """Plant the bug of that name, or none if the name is empty."""
    changes = BUGS[bug]() if bug else []
    before = [(owner, name, getattr(owner, name)) for owner, name, _ in changes]
    for owner, name, value in changes:
        setattr(owner, name, value)
    try:
        yield
    finally:
        for owner, name, value in before:
            setattr(owner, name, value)
