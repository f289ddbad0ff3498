"""The last step of a trial: gather the evidence from the run and its ledger, and judge the trial by it."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path

from pytest_aisbench.domain.background import ScalePoint
from pytest_aisbench.domain.case import Case, Shape
from pytest_aisbench.domain.messages import joined, message, plain
from pytest_aisbench.domain.metric import THROUGHPUT
from pytest_aisbench.domain.ports import Platform
from pytest_aisbench.domain.trial import Step, Trial, TrialRecord
from pytest_aisbench.domain.verdict import Ruling
from pytest_aisbench.judge import comparison
from pytest_aisbench.judge.evaluate import ANCHOR, Known, Rules, Weighed, expectations, judge, weigh
from pytest_aisbench.judge.noise_test import average, pooled
from pytest_aisbench.judge.scaling import THIS_RUN, Speed, base_of, efficiencies
from pytest_aisbench.judge.stragglers import stragglers, summary
from pytest_aisbench.judge.trend import newest_level
from pytest_aisbench.judge.values import by_rank, counts, flaws_of, remarks, values
from pytest_aisbench.logs import get_logger, ignored
from pytest_aisbench.services.history import NEWEST, History
from pytest_aisbench.services.logs import last_lines

_LOG = get_logger("fleet")
_OF_A_BASE = 10  # newest trials of another shape, whose mean stands for it
_SHOWN = 24  # shapes of a workload in a chart


@dataclass(frozen=True)
class Weighing:
    """Without a history nothing is qualified."""

    rules: Rules = field(default_factory=Rules)
    history: History | None = None
    _speeds: dict[str, float | None] = field(default_factory=dict, repr=False)

    def weigh(self, trial: Trial, others: Iterable[Trial]) -> tuple[Weighed, str]:
        """What it weighs beside all trials of the run; and, if it is not comparable to the last, why, in a line."""
        siblings = [each for each in others if _is_sibling(each, trial)]
        known, strange = self._known(trial, siblings)
        return weigh(trial, known, self.rules), strange

    def chart(self, trial: Trial, others: Iterable[Trial]) -> tuple[ScalePoint, ...]:
        """What all shapes of its workload do, as far as they are known by now."""
        siblings = [each for each in others if _is_sibling(each, trial)]
        base = self._base(trial, siblings)
        return _chart(trial.case, base, self._points(trial, siblings, base))

    def _known(self, trial: Trial, siblings: Sequence[Trial]) -> tuple[Known, str]:
        case, key, run = trial.case, comparison.key(trial.traits), trial.run
        base = self._base(trial, siblings)
        chart = _chart(case, base, self._points(trial, siblings, base))
        earlier = tuple(each for each in siblings if _precedes(each, trial))
        if self.history is None:
            return Known(earlier, base=base, scaling=chart), ""
        past = self.history.of(case.id, key, without=run, counted=False)
        first = self.history.first(case.id, key, ANCHOR, without=run) if len(past) == NEWEST else ()
        last = self.history.newest(case.id, without=run, key=key)
        changed = comparison.differences(self.history.traits(last.key), trial.traits) if last else ()
        strange = ""
        if last and (not past or past[-1].at < last.at):
            strange = message("not compared", run=last.run, changes="; ".join(changed))
        return Known(earlier, past, first, base, chart, changed), strange

    def _base(self, trial: Trial, siblings: Sequence[Trial]) -> Speed | None:
        """Of its claim on scaling, with its noise: as measured in this run, or else of the newest in its history."""
        shape = base_of(trial.case)
        if shape is None:
            return None
        at_base = ((each, self._speed(each)) for each in siblings if each.case.shape == shape)
        here = [(each, speed) for each, speed in at_base if speed is not None]
        now = [speed for _, speed in here]
        past = self._past(trial, shape, NEWEST)
        level = newest_level([each.throughput for each in past]).values
        if now:
            return Speed(shape, average(now), _here([each for each, _ in here], trial), len(now), pooled(level, now))
        if not past:
            return None
        newest = level[-_OF_A_BASE:]
        return Speed(shape, average(newest), _source(past[-len(newest) :]), len(newest), pooled(level, ()))

    def _points(self, trial: Trial, siblings: Sequence[Trial], base: Speed | None) -> dict[Shape, Speed]:
        """What the shapes of the workload do: as measured in this run, or else in its history."""
        found: dict[Shape, list[float]] = {}
        for each in (*siblings, trial):
            if (speed := self._speed(each)) is not None:
                found.setdefault(each.case.shape, []).append(speed)
        points = {shape: Speed(shape, average(speeds)) for shape, speeds in found.items()}
        if base:
            points[base.shape] = base
        return {**self._remembered(trial, points), **points}

    def _speed(self, trial: Trial) -> float | None:
        """Of a trial that was harvested, once it counts; worked out once, since each of many shapes asks for all."""
        if trial.step < Step.JUDGE:
            return None
        if trial.id not in self._speeds:
            self._speeds[trial.id] = values(trial)[THROUGHPUT] if counts(trial) else None
        return self._speeds[trial.id]

    def _remembered(self, trial: Trial, known: Collection[Shape]) -> dict[Shape, Speed]:
        if self.history is None or len(known) >= _SHOWN:
            return {}
        name, family = trial.case.workload.name, comparison.family(trial.traits)
        shapes = map(Shape.parse, self.history.shapes(name, family, _SHOWN))
        found = {shape: self._past(trial, shape, _OF_A_BASE) for shape in shapes if shape not in known}
        return {
            shape: Speed(shape, average([each.throughput for each in past]), _source(past))
            for shape, past in found.items()
            if past
        }

    def _past(self, trial: Trial, shape: Shape, limit: int) -> tuple[TrialRecord, ...]:
        """Of another shape, alike in everything else."""
        if self.history is None:
            return ()
        name, family = trial.case.workload.name, comparison.family(trial.traits)
        return self.history.base(name, str(shape), family, limit, without=trial.run)


def _is_sibling(other: Trial, trial: Trial) -> bool:
    """Of the same workload in the same mode, and not itself."""
    case, mine = other.case, trial.case
    return other.id != trial.id and case.workload.name == mine.workload.name and case.mode is mine.mode


def _precedes(other: Trial, trial: Trial) -> bool:
    """A whole trial of the same case that did not decide it."""
    same = other.case.id == trial.case.id and other.number < trial.number
    return same and other.step is Step.DONE and not other.fault and not flaws_of(other) and bool(other.measurements)


def _here(bases: Sequence[Trial], trial: Trial) -> str:
    """Logs may tell that a base of this very run was trained by other software: the text must not keep that back."""
    found = (comparison.differences_beside_shape(each.traits, trial.traits) for each in bases)
    unlike = dict.fromkeys(line for lines in found for line in lines)
    return THIS_RUN + message("unlike", changes="; ".join(unlike)) if unlike else THIS_RUN


def _source(past: Sequence[TrialRecord]) -> str:
    run = past[-1].run
    return message("history of", count=str(len(past)), run=run) if len(past) > 1 else message("history", run=run)


def _chart(case: Case, base: Speed | None, points: Mapping[Shape, Speed]) -> tuple[ScalePoint, ...]:
    """Against the claim's base, or else against the fewest cards; of very many shapes some."""
    order = sorted(points, key=lambda shape: (shape.world, shape))
    base = base or (points[order[0]] if order else None)
    if base is None or case.single_server:  # nodes that train alone do not scale
        return ()
    shown = {base.shape, case.shape, *order[:: -(-len(order) // _SHOWN)]}
    shares = efficiencies((points[shape] for shape in order if shape in shown), base)
    return tuple(
        ScalePoint(str(shape), points[shape].value, share, points[shape].source) for shape, share in shares.items()
    )


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
    # Of any platform: what it cannot tell changes no verdict.
    with ignored(_LOG, Exception, "%s: the events of its job", trial.name):
        events = [plain(event) for event in platform.events(trial.job_id or "")]
    _, lines = last_lines(trial, folder, _LAST)
    return replace(trial, events=tuple(events[-_LAST:]), last_lines=tuple(lines))


def _remarks(trial: Trial) -> dict[str, str]:
    said, slow = remarks(trial), summary(stragglers(by_rank(trial), trial.case.shape))
    return {**said, THROUGHPUT: joined((said.get(THROUGHPUT, ""), slow))}
