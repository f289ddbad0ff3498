"""The exit code of a run, which a CI gate reads: the first that applies, so that red names who must act.

`i18n` has the meaning of each code in words.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, field

from pytest_aisbench.model.verdict import Ruling

PASSED = 0
FAILED = 1
INTERRUPTED = 2
INTERNAL = 3
USAGE = 4
NOTHING_JUDGED = 5
MISSING = 11
BROKEN = 12
INCONCLUSIVE = 13
TERMINATED = 143

_VERDICTS = {PASSED: Ruling.PASSED, FAILED: Ruling.FAILED, BROKEN: Ruling.BROKEN, INCONCLUSIVE: Ruling.INCONCLUSIVE}


def verdict_of_run(code: int | None) -> Ruling | None:
    """The verdict on a whole run, by its exit code; None if it has not judged all that it should have."""
    return None if code is None else _VERDICTS.get(code)


@dataclass
class Tally:
    """How a run went: its tests as pytest counted them, and what speaks against a green exit code."""

    failed: int = 0  # tests that failed for a reason of their own, not by a verdict that is BROKEN or INCONCLUSIVE
    failures: int = 0  # all that failed, as pytest counts them for --maxfail
    expected: set[str] = field(default_factory=set)  # cases that selected tests were to judge
    selected: set[str] = field(default_factory=set)  # cases that selected tests are about, judged by them or not
    skipped: dict[str, str] = field(default_factory=dict)  # cases that a test chose not to judge, and its reason
    unmatched: bool = False  # --nodes matched no case, whatever else was run
    deselected: set[str] = field(default_factory=set)  # cases that were collected, and then left out
    stopped: dict[str, str] = field(default_factory=dict)  # cases whose job a person stopped, and who: not judged
    required: tuple[str, ...] = ()  # cases that must be judged
    undelivered: int = 0  # results that the Tester must have and has not
    unrecorded: str = ""  # why the ledger or the reports could not be written
    terminated: bool = False  # by SIGTERM
    stopped_early: bool = False  # by -x or --maxfail, which xdist reports as an interrupt

    def code(self, status: int, rulings: dict[str, Ruling]) -> int:
        """The exit code, from `status`, that of pytest alone, and from the rulings of the judged cases in the ledger.

        The ledger decides, not the colour of a test: an xfail, or a skip after the verdict, changes nothing.
        """
        if self.terminated:
            return TERMINATED
        interrupted = status == INTERRUPTED and not self.stopped_early
        if interrupted or status not in {PASSED, FAILED, INTERRUPTED, NOTHING_JUDGED}:
            return status
        if self.unrecorded:
            return INTERNAL
        present = set(rulings.values())
        unexplained = status in {FAILED, INTERRUPTED} and not present & {Ruling.BROKEN, Ruling.INCONCLUSIVE}
        if self.failed or Ruling.FAILED in present or unexplained:
            return FAILED  # also if pytest saw a failure that we did not: fail closed
        if self.missing(rulings):
            return MISSING
        if Ruling.BROKEN in present or self.undelivered:
            return BROKEN
        if Ruling.INCONCLUSIVE in present:
            return INCONCLUSIVE
        if self.stopped:
            return INTERRUPTED
        if (self.expected or self.unmatched) and not rulings:
            return NOTHING_JUDGED
        return INTERRUPTED if self._unreported(rulings) else status

    def missing(self, judged: Iterable[str]) -> dict[str, str]:
        """By id the required cases without a verdict, and why they have none."""
        done = set(judged)
        return {case: self._why_not_judged(case) for case in self.required if case not in done}

    def _why_not_judged(self, case: str) -> str:
        if case in self.stopped:
            return self.stopped[case]
        if case in self.skipped:
            return f"skipped: {self.skipped[case]}".removesuffix(": ")
        if case in self.expected:
            return "the run ended before it was judged"
        if case in self.selected:
            return "no selected test judges it"
        return "deselected" if case in self.deselected else "not collected"

    def _unreported(self, judged: Iterable[str]) -> set[str]:
        """Cases that were neither judged nor skipped: something ended the run before they were."""
        return self.expected - set(judged) - set(self.skipped)
