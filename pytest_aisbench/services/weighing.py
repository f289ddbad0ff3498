"""What a trial is weighed with, brought together: the run's other trials, and the history in the ledger."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from statistics import fmean

from pytest_aisbench.domain import fingerprint
from pytest_aisbench.domain.background import ScalePoint
from pytest_aisbench.domain.case import Case, Shape
from pytest_aisbench.domain.entry import values
from pytest_aisbench.domain.measure import Measure, counts
from pytest_aisbench.domain.metric import THROUGHPUT
from pytest_aisbench.domain.rollcall import flaws_of
from pytest_aisbench.domain.scaling import Base, efficiencies
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
        return _chart(trial.case, self._points(trial, [each for each in others if _is_sibling(each, trial)]))

    def _known(self, trial: Trial, siblings: Sequence[Trial]) -> tuple[Known, str]:
        case, key, run = trial.case, fingerprint.key(trial.traits), trial.run
        points = self._points(trial, siblings)
        earlier = tuple(each for each in siblings if _precedes(each, trial))
        if self.history is None:
            return Known(earlier, base=_base(case, points), scaling=_chart(case, points)), ""
        past = self.history.of(case.id, key, without=run, counted=False)
        first = self.history.first(case.id, key, ANCHOR, without=run) if len(past) == NEWEST else ()
        last = self.history.newest(case.id, without=run, key=key)
        changed = fingerprint.differences(self.history.traits(last.key), trial.traits) if last else ()
        strange = ""
        if last and (not past or past[-1].at < last.at):
            strange = f"not compared to run {last.run}: {'; '.join(changed)}"
        return Known(earlier, past, first, _base(case, points), _chart(case, points), changed), strange

    def _points(self, trial: Trial, siblings: Sequence[Trial]) -> dict[Shape, Base]:
        """What the shapes of the workload do: as measured in this run, or else in its history."""
        found: dict[Shape, list[float]] = {}
        for each in (*siblings, trial):
            if each.step >= Step.JUDGE and (speed := self._speed(each)) is not None:
                found.setdefault(each.case.shape, []).append(speed)
        points = {shape: Base(shape, fmean(speeds)) for shape, speeds in found.items()}
        return {**self._remembered(trial, points), **points} if self.history else points

    def _speed(self, trial: Trial) -> float | None:
        """Of a trial that was harvested, once it counts; worked out once, since each of many shapes asks for all."""
        if trial.id not in self._speeds:
            self._speeds[trial.id] = values(trial)[THROUGHPUT] if counts(trial) else None
        return self._speeds[trial.id]

    def _remembered(self, trial: Trial, known: Collection[Shape]) -> dict[Shape, Base]:
        assert self.history is not None
        name, family = trial.case.workload.name, fingerprint.family(trial.traits)
        base = base_of(trial.case)
        shapes = {base: None} if base else {}
        if len(known) < _SHOWN:
            shapes |= dict.fromkeys(map(Shape.parse, self.history.shapes(name, family, _SHOWN)))
        found: dict[Shape, Base] = {}
        for shape in shapes.keys() - known:
            past = self.history.base(name, str(shape), family, _OF_A_BASE, without=trial.run)
            if past:
                found[shape] = Base(shape, _level(past), _source(past))
        return found


def _is_sibling(other: Trial, trial: Trial) -> bool:
    """Of the same workload in the same mode, and not itself."""
    case, mine = other.case, trial.case
    return other.id != trial.id and case.workload.name == mine.workload.name and case.mode is mine.mode


def _precedes(other: Trial, trial: Trial) -> bool:
    """A whole trial of the same case that did not decide it."""
    same = other.case.id == trial.case.id and other.number < trial.number
    return same and other.step is Step.DONE and not other.fault and not flaws_of(other) and bool(other.measurements)


def _level(past: Sequence[Measure]) -> float:
    return fmean(each.throughput for each in past)


def _source(past: Sequence[Measure]) -> str:
    several = f"{len(past)} trials until " if len(past) > 1 else ""
    return f"history: {several}run {past[-1].run}"


def _base(case: Case, points: Mapping[Shape, Base]) -> Base | None:
    shape = base_of(case)
    return points.get(shape) if shape else None


def _chart(case: Case, points: Mapping[Shape, Base]) -> tuple[ScalePoint, ...]:
    """Against the claim's base, or else against the fewest cards; of very many shapes some."""
    order = sorted(points, key=lambda shape: (shape.world, shape))
    base = _base(case, points) or (points[order[0]] if order else None)
    if base is None or case.alone:  # nodes that train alone do not scale
        return ()
    shown = {base.shape, case.shape, *order[:: -(-len(order) // _SHOWN)]}
    shares = efficiencies({shape: points[shape].value for shape in order if shape in shown}, base)
    return tuple(
        ScalePoint(str(shape), points[shape].value, share, points[shape].source) for shape, share in shares.items()
    )
