"""The exit code that a gate reads: the first that applies, so that red names who must act."""

from __future__ import annotations

from dataclasses import dataclass

PASSED = 0
FAILED = 1
INTERRUPTED = 2
INTERNAL = 3
USAGE = 4
NOTHING_JUDGED = 5
BROKEN = 12
INCONCLUSIVE = 13
TERMINATED = 143


@dataclass
class Tally:
    """How the tests of a run ended."""

    passed: int = 0
    failed: int = 0  # a verdict FAILED, or an ordinary test that failed
    broken: int = 0
    inconclusive: int = 0
    unrecorded: str = ""  # why the ledger or the reports could not be written
    stopped_early: bool = False  # by -x or --maxfail, which xdist reports as an interrupt

    @property
    def failures(self) -> int:
        """As pytest counts them for --maxfail."""
        return self.failed + self.broken + self.inconclusive

    def code(self, status: int) -> int:
        """`status` is what pytest would have said."""
        interrupted = status == INTERRUPTED and not self.stopped_early
        if interrupted or status not in {PASSED, FAILED, INTERRUPTED, NOTHING_JUDGED}:
            return status
        if self.unrecorded:
            return INTERNAL
        if self.failed:
            return FAILED
        if self.broken:
            return BROKEN
        if self.inconclusive:
            return INCONCLUSIVE
        if status in {FAILED, INTERRUPTED}:
            return FAILED  # pytest saw a failure that we did not: fail closed
        return PASSED if self.passed else NOTHING_JUDGED
