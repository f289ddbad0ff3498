"""What can be known to be wrong before anything is uploaded, submitted or paid for."""

from __future__ import annotations

from collections.abc import Iterable

from pytest_aisbench.domain.case import Case
from pytest_aisbench.domain.ports import Platform
from pytest_aisbench.errors import AisbenchError, UsageFault
from pytest_aisbench.services.submission import first_trial, spec, unstaged


def check(platform: Platform, cases: Iterable[Case], run_s: float) -> None:
    """Raise UsageFault for what somebody must change; what the platform gets wrong shows in its cases."""
    for case in cases:
        trial = first_trial("preflight", case, 0.0)
        try:
            platform.render(spec(trial, unstaged(trial, platform.root), run_s))
        except UsageFault as fault:
            raise UsageFault(f"{case.id}: {fault.message}", advice=fault.advice) from None
    try:
        platform.check()
    except UsageFault:
        raise
    except AisbenchError:
        return  # unreachable now may be reachable in a minute; if not, each case says so and is BROKEN
