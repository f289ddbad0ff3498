"""What a trial is weighed with, brought together: the run's other trials, and the history in the ledger."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, field

from pytest_aisbench.domain import fingerprint
from pytest_aisbench.domain.background import ScalePoint
from pytest_aisbench.domain.case import Case, Shape
from pytest_aisbench.domain.entry import values
from pytest_aisbench.domain.gate import average, pooled
from pytest_aisbench.domain.level import newest_level
from pytest_aisbench.domain.measure import Measure, counts
from pytest_aisbench.domain.metric import THROUGHPUT
from pytest_aisbench.domain.rollcall import flaws_of
from pytest_aisbench.domain.scaling import THIS_RUN, Speed, efficiencies
from pytest_aisbench.domain.sentence import tell
from pytest_aisbench.domain.sequel import base_of
from pytest_aisbench.domain.trial import Step, Trial
from pytest_aisbench.domain.weighing import ANCHOR, Known, Rules, Weighed, weigh
from pytest_aisbench.services.history import NEWEST, History

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
        case, key, run = trial.case, fingerprint.key(trial.traits), trial.run
        base = self._base(trial, siblings)
        chart = _chart(case, base, self._points(trial, siblings, base))
        earlier = tuple(each for each in siblings if _precedes(each, trial))
        if self.history is None:
            return Known(earlier, base=base, scaling=chart), ""
        past = self.history.of(case.id, key, without=run, counted=False)
        first = self.history.first(case.id, key, ANCHOR, without=run) if len(past) == NEWEST else ()
        last = self.history.newest(case.id, without=run, key=key)
        changed = fingerprint.differences(self.history.traits(last.key), trial.traits) if last else ()
        strange = ""
        if last and (not past or past[-1].at < last.at):
            strange = tell("not compared", run=last.run, changes="; ".join(changed))
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
        name, family = trial.case.workload.name, fingerprint.family(trial.traits)
        shapes = map(Shape.parse, self.history.shapes(name, family, _SHOWN))
        found = {shape: self._past(trial, shape, _OF_A_BASE) for shape in shapes if shape not in known}
        return {
            shape: Speed(shape, average([each.throughput for each in past]), _source(past))
            for shape, past in found.items()
            if past
        }

    def _past(self, trial: Trial, shape: Shape, limit: int) -> tuple[Measure, ...]:
        """Of another shape, alike in everything else."""
        if self.history is None:
            return ()
        name, family = trial.case.workload.name, fingerprint.family(trial.traits)
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
    found = (fingerprint.differences_beside_shape(each.traits, trial.traits) for each in bases)
    unlike = dict.fromkeys(line for lines in found for line in lines)
    return THIS_RUN + tell("unlike", changes="; ".join(unlike)) if unlike else THIS_RUN


def _source(past: Sequence[Measure]) -> str:
    run = past[-1].run
    return tell("history of", count=str(len(past)), run=run) if len(past) > 1 else tell("history", run=run)


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
