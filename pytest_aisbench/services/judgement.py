"""The end of a trial's story: what is decided about it, and what is told to whoever has to find out why."""

from __future__ import annotations

import contextlib
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

from pytest_aisbench.domain.entry import by_rank, values
from pytest_aisbench.domain.logged import remarks
from pytest_aisbench.domain.metric import THROUGHPUT
from pytest_aisbench.domain.ports import Platform
from pytest_aisbench.domain.rollcall import flaws_of
from pytest_aisbench.domain.sentence import joined
from pytest_aisbench.domain.stragglers import stragglers, summary
from pytest_aisbench.domain.text import plain
from pytest_aisbench.domain.trial import Trial
from pytest_aisbench.domain.verdict import Ruling, expectations, judge
from pytest_aisbench.domain.weighing import Weighed
from pytest_aisbench.services.logs import last_lines

_LAST = 10  # lines of the log, and events, that go with a failure


def judged(trial: Trial, weighed: Weighed, today: str) -> Trial:
    """With its verdict, what that rests on, and whether another trial is due."""
    case = trial.case
    verdict = judge(
        case.thresholds,
        values(trial),
        flaws_of(trial),
        case.judged_shape,
        settled=weighed.settled,
        remarks=_remarks(trial),
        today=today,
    )
    due = weighed.due if verdict.ruling is Ruling.INCONCLUSIVE else ""
    trial = replace(trial, judged=verdict, background=weighed.background, due=due)
    for text in (*weighed.background.warnings, *expectations(case.thresholds, verdict)):
        trial = trial.noted(text)
    return trial


def explained(trial: Trial, platform: Platform, folder: Path) -> Trial:
    """With the last events and lines of its job, which are not asked for where all is well."""
    events: Sequence[str] = ()
    with contextlib.suppress(Exception):  # of any platform: what it cannot tell changes no verdict
        events = [plain(event) for event in platform.events(trial.job_id or "")]
    _, lines = last_lines(trial, folder, _LAST)
    return replace(trial, events=tuple(events[-_LAST:]), last_lines=tuple(lines))


def _remarks(trial: Trial) -> dict[str, str]:
    said, slow = remarks(trial), summary(stragglers(by_rank(trial), trial.case.shape))
    return {**said, THROUGHPUT: joined((said.get(THROUGHPUT, ""), slow))}
