"""The exit code that a gate reads: the first that applies, so that red names who must act."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, field

from pytest_aisbench.domain.exitcode import (
    BROKEN,
    FAILED,
    INCONCLUSIVE,
    INTERNAL,
    INTERRUPTED,
    MISSING,
    NOTHING_JUDGED,
    PASSED,
    TERMINATED,
)
from pytest_aisbench.domain.verdict import Ruling


@dataclass
class Tally:
    """How a run went: its tests as pytest saw them, and what hinders a verdict on the whole."""

    failed: int = 0  # tests that failed for a reason of their own, not by a verdict that is BROKEN or INCONCLUSIVE
    failures: int = 0  # all that failed, as pytest counts them for --maxfail
    expected: set[str] = field(default_factory=set)  # cases that selected tests were to judge
    selected: set[str] = field(default_factory=set)  # cases that selected tests are about, judged by them or not
    skipped: dict[str, str] = field(default_factory=dict)  # cases that a test chose not to judge, and its reason
    unmatched: bool = False  # --nodes matched no case, whatever else was run
    deselected: set[str] = field(default_factory=set)  # cases that were collected, and then left out
    required: tuple[str, ...] = ()  # cases that must be judged
    undelivered: int = 0  # results that the Tester must have and has not
    unrecorded: str = ""  # why the ledger or the reports could not be written
    terminated: bool = False  # by SIGTERM
    stopped_early: bool = False  # by -x or --maxfail, which xdist reports as an interrupt

    def code(self, status: int, rulings: dict[str, Ruling]) -> int:
        """`status` is what pytest would have said, `rulings` what the ledger has of each judged case.

        The ledger decides, not the colour of a test: an expected failure, or a skip after the verdict, changes nothing.
        """
        if self.terminated:
            return TERMINATED
        interrupted = status == INTERRUPTED and not self.stopped_early
        if interrupted or status not in {PASSED, FAILED, INTERRUPTED, NOTHING_JUDGED}:
            return status
        if self.unrecorded:
            return INTERNAL
        found = set(rulings.values())
        unexplained = status in {FAILED, INTERRUPTED} and not found & {Ruling.BROKEN, Ruling.INCONCLUSIVE}
        if self.failed or Ruling.FAILED in found or unexplained:
            return FAILED  # also where pytest saw a failure that we did not: fail closed
        if self.missing(rulings):
            return MISSING
        if Ruling.BROKEN in found or self.undelivered:
            return BROKEN
        if Ruling.INCONCLUSIVE in found:
            return INCONCLUSIVE
        if (self.expected or self.unmatched) and not rulings:
            return NOTHING_JUDGED
        return INTERRUPTED if self._unreported(rulings) else status

    def missing(self, judged: Iterable[str]) -> dict[str, str]:
        """Why each required case that has no verdict has none."""
        known = set(judged)
        return {case: self._why(case) for case in self.required if case not in known}

    def _why(self, case: str) -> str:
        if case in self.skipped:
            return f"skipped: {self.skipped[case]}".removesuffix(": ")
        if case in self.expected:
            return "the run ended before it was judged"
        if case in self.selected:
            return "no selected test judges it"
        return "deselected" if case in self.deselected else "not collected"

    def _unreported(self, judged: Iterable[str]) -> set[str]:
        """Cases that were to be judged, were not, and nobody said why: something ended the run before its end."""
        return self.expected - set(judged) - set(self.skipped)
