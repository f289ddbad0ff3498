"""Judging: thresholds and measurements in, a verdict that can be checked by hand out."""

from __future__ import annotations

import enum
from dataclasses import dataclass

from pytest_aisbench.domain.messages import plain
from pytest_aisbench.errors import NotPassed


class Outcome(enum.Enum):
    """What became of one threshold."""

    MET = "met"
    MISSED = "missed"
    UNDECIDED = "undecided"
    UNMEASURED = "unmeasured"
    WAIVED = "waived"


class Ruling(enum.Enum):
    """The word of a verdict."""

    PASSED = "PASSED"
    FAILED = "FAILED"  # the workload is to blame
    BROKEN = "BROKEN"  # the platform is
    INCONCLUSIVE = "INCONCLUSIVE"  # the noise is larger than the margin


@dataclass(frozen=True)
class Finding:
    """One threshold, or one measurement that is missing, in one line."""

    metric: str
    outcome: Outcome
    measured: float | None
    wanted: str
    text: str


@dataclass(frozen=True)
class Verdict:
    """A ruling, the reason in one line, and the findings behind it."""

    ruling: Ruling
    reason: str
    findings: tuple[Finding, ...] = ()

    @property
    def passed(self) -> bool:
        return self.ruling is Ruling.PASSED

    def require(self) -> None:
        """Fail the test unless the case passed."""
        __tracebackhide__ = True
        if not self.passed:
            raise NotPassed(str(self))

    def __str__(self) -> str:
        lines = [f"{self.ruling.value}: {plain(self.reason)}"]
        lines += [f"  {finding.outcome.value:<10} {plain(finding.text)}" for finding in self.findings]
        return "\n".join(lines)
