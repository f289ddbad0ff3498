"""What can be known to be wrong before anything is uploaded, submitted or paid for."""

from __future__ import annotations

import shutil
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from pathlib import Path

from pytest_aisbench.domain.case import Case
from pytest_aisbench.domain.ports import Platform
from pytest_aisbench.domain.stage import StoreUrl
from pytest_aisbench.errors import AisbenchError, UsageFault
from pytest_aisbench.services.code import code_tree
from pytest_aisbench.services.submission import new_trial, spec, unstaged

ROOM = 16 * 1024 * 1024  # bytes; the reports of a small run and its logs


def check(
    platform: Platform,
    cases: Iterable[Case],
    run_s: float,
    reports: Path,
    say: Callable[[str], None] | None = None,
) -> None:
    """Raise UsageFault for what somebody must change; what the platform gets wrong shows in its cases, and is told
    to `say` at once, in one line."""
    _require_room(reports)
    data: dict[StoreUrl, str] = {}
    for case in cases:
        trial = new_trial("preflight", case, 0.0)
        place = unstaged(trial, platform.root)
        with naming(case.id):
            platform.render(spec(trial, place, run_s))
            code_tree(case.workload)  # a FIFO, a link that leads out
        if place.inputs and place.inputs.bucket != platform.root.bucket:
            data[place.inputs] = case.id
    try:
        platform.check()
        for url, case_id in data.items():
            with naming(case_id):
                platform.store.check(url)
    except UsageFault:
        raise
    except AisbenchError as error:
        if say:  # unreachable now may be reachable in a minute; if not, each case says so and is BROKEN
            say(f"{platform.name} is not well, the run goes on trying: {error}")


@contextmanager
def naming(case_id: str) -> Iterator[None]:
    try:
        yield
    except UsageFault as fault:
        raise UsageFault(f"{case_id}: {fault.message}", advice=fault.advice) from None


def _require_room(reports: Path) -> None:
    """A disk that fills up in the middle costs the reports of jobs that were paid for."""
    there = next(folder for folder in (reports, *reports.parents) if folder.exists())
    free = shutil.disk_usage(there).free
    if free < ROOM:
        advice = "free some space, or name another folder with --aisbench-reports"
        raise UsageFault(f"{reports}: only {free / 2**20:.1f} MiB are free for the reports", advice=advice)
