"""A run while it lasts, as lines of text: bars for a terminal, one line for a log. Pure."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass

from pytest_aisbench.domain import forecast
from pytest_aisbench.domain.heard import Heard
from pytest_aisbench.domain.job import Phase
from pytest_aisbench.domain.messages import plain
from pytest_aisbench.domain.metric import THROUGHPUT
from pytest_aisbench.domain.threshold import number
from pytest_aisbench.domain.trial import Step, Trial
from pytest_aisbench.report.text import clip, display_width, fit, padded
from pytest_aisbench.reporters.curve import drawn

MOST_BARS = 10
_NAMED = 8  # running cases that a heartbeat names
_LEAST_NAME = 12
_WIDE, _NARROW = 130, 100  # columns; where there are fewer, figures take the place of bars
_CURVE = 8  # columns of a curve
_FEWEST = 3  # points of one


@dataclass(frozen=True)
class Scene:
    """All that is drawn, at one moment."""

    now: float
    began: float
    trials: Sequence[Trial]  # the newest of each case
    heard: Mapping[str, Heard]  # by trial
    max_jobs: int


def block(scene: Scene, width: int, most: int = MOST_BARS, *, curves: bool = True) -> list[str]:
    """Bars of the cases that have a job, then one line for all; none wider than `width` columns."""
    shown = sorted(filter(_is_shown, scene.trials), key=lambda trial: not _is_at_work(trial))
    hidden = shown[most:]
    name = min(max((display_width(trial.case.id) for trial in shown[:most]), default=0), max(_LEAST_NAME, width // 3))
    lines = [_bar(scene, trial, name, width, curves=curves) for trial in shown[:most]]
    if hidden:
        lines.append(f"and {len(hidden)} more in flight")
    return [clip(line, width).rstrip() for line in [*lines, _counts(scene)]]


def heartbeat(scene: Scene) -> str:
    running = [trial for trial in scene.trials if _is_at_work(trial)]
    named = ", ".join(_short(scene, trial) for trial in running[:_NAMED])
    more = f" and {len(running) - _NAMED} more" if len(running) > _NAMED else ""
    line = f"aisbench +{_hours(scene.now - scene.began)} {_counts(scene)}"
    return f"{line} | {named}{more}" if named else line


def _bar(scene: Scene, trial: Trial, name: int, width: int, *, curves: bool) -> str:
    told = scene.heard.get(trial.id)
    lasted = forecast.ran(trial, scene.now)
    start = f"{padded(fit(plain(trial.case.id), name), name)}  {_state(trial, told):<7}  {_hours(lasted):>7}"
    if not _is_running(trial):
        return start
    share = forecast.share(trial, told, scene.now)
    left = forecast.remaining(trial, told, scene.now)
    size = 20 if width >= _WIDE else 10 if width >= _NARROW else 0
    bar = f"[{'#' * int(size * share):-<{size}}] {share:>4.0%}" if share is not None and size else ""
    done = "" if share is None else bar or f"{share:>4.0%}"
    eta = "" if left is None else f"eta {_hours(left)}"
    row = start
    for beside in _beside(trial, told, curves=curves):
        row = "  ".join(filter(None, (start, done, eta, beside)))
        if display_width(row) <= width:
            break
    return row


def _beside(trial: Trial, told: Heard | None, *, curves: bool) -> Iterator[str]:
    """What is told beside a bar, then less and less of it: half a figure is a wrong one."""
    if told:
        epoch, speed, loss, curve = (
            _epoch(trial, told),
            _speed(trial, told),
            _loss(told),
            _curve(told) if curves else "",
        )
        for parts in ((epoch, speed, f"{loss} {curve}".strip()), (epoch, speed, loss), (speed, loss), (speed,)):
            yield ", ".join(filter(None, parts))
    yield ""


def _epoch(trial: Trial, told: Heard) -> str:
    progress, total = told.progress, forecast.epochs(trial.case)
    if not progress.epoch:
        return ""
    return f"epoch {progress.epoch}/{total}" if total else f"epoch {progress.epoch} step {progress.step}"


def _speed(trial: Trial, told: Heard) -> str:
    fast = forecast.throughput(trial.case, told.progress)
    metric = trial.case.workload.metrics.get(THROUGHPUT)
    if fast is not None and metric:
        return f"~{_figure(fast)} {plain(metric.unit, 20)}"
    return "" if told.progress.ms_per_step is None else f"{_figure(told.progress.ms_per_step)} ms/step"


def _loss(told: Heard) -> str:
    if told.progress.loss is not None:
        return f"loss {_figure(told.progress.loss)}"
    return "loss nan" if told.curve.loss.points else ""  # it was a number


def _curve(told: Heard) -> str:
    values = told.curve.loss.values
    return drawn(values, _CURVE) if len(values) >= _FEWEST else ""


def _figure(value: float) -> str:
    return number(float(f"{value:.4g}"))


def _short(scene: Scene, trial: Trial) -> str:
    told = scene.heard.get(trial.id)
    share = forecast.share(trial, told, scene.now) if _is_running(trial) else 1.0
    how_far = f" {share:.0%}" if share is not None else f" {_hours(forecast.ran(trial, scene.now))}"
    figures = (_speed(trial, told), _loss(told)) if told and _is_running(trial) else ()
    stalled = "stalled" if told and told.stalled else ""
    return " ".join(filter(None, (plain(trial.case.id) + how_far, stalled, *figures)))


def _counts(scene: Scene) -> str:
    done = sum(trial.step is Step.DONE for trial in scene.trials)
    running = sum(map(_is_at_work, scene.trials))
    waiting = len(scene.trials) - done - running
    left = _until_all(scene)
    eta = f", eta {_hours(left)}" if left is not None else ""
    return f"{done}/{len(scene.trials)} done, {running} running, {waiting} waiting{eta}"


def _until_all(scene: Scene) -> float | None:
    running: list[float | None] = []
    waiting: list[float | None] = []
    for trial in scene.trials:
        if _is_running(trial):
            running.append(forecast.remaining(trial, scene.heard.get(trial.id), scene.now))
        elif _is_at_work(trial):
            running.append(0.0)
        elif trial.step is not Step.DONE:
            waiting.append(trial.expected_s or None)
    return forecast.until_all(running, waiting, scene.max_jobs)


def _is_shown(trial: Trial) -> bool:
    return Step.SUBMIT < trial.step < Step.DONE


def _is_at_work(trial: Trial) -> bool:
    """Its job runs, or what it left is being read."""
    return _is_running(trial) or trial.step in {Step.HARVEST, Step.JUDGE}


def _is_running(trial: Trial) -> bool:
    return trial.step is Step.WATCH and trial.job is not None and trial.job.phase is Phase.RUNNING


def _state(trial: Trial, told: Heard | None) -> str:
    if _is_running(trial):
        return "stalled" if told and told.stalled else "stops" if trial.fault else "running"
    return "queued" if trial.step is Step.WATCH else "harvest"


def _hours(seconds: float) -> str:
    minutes, rest = divmod(int(seconds), 60)
    return f"{minutes // 60}:{minutes % 60:02d}:{rest:02d}"
