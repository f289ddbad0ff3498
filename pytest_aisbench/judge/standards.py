"""The figures that IEEE 2937 and T/CESA 1169 ask of a training, as far as a case has them; and the energy of a job.

The names are those of ais-bench's `train_result_info`, in its own spelling, with a few beside them. What was not
measured is null with the reason, never 0. The definitions are ours: we do not claim to conform to a standard.

Energy. Between two samples of a node its power is a straight line, and beyond its first and last sample it stays as it
was there. Energy is the area under the sum over the nodes, from the first second of the window to the last; the average
is energy by time, and the highest power that of the sum. A stretch without a sample that is longer than three times the
node's usual interval is a gap, and is reported. If gaps make up more than half of a node's window, the energy of the
job is unknown.
"""

from __future__ import annotations

import math
from bisect import bisect_left
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from itertools import pairwise
from statistics import fmean, median, stdev
from typing import Any

from pytest_aisbench.judge.comparison import HARDWARE_OPTIONS, SOFTWARE_OPTIONS
from pytest_aisbench.judge.values import DERIVED, LoggedTraining, exact_sum, throughput_of_ranks, values_from_log
from pytest_aisbench.model.job import Power, Sample
from pytest_aisbench.model.messages import plain
from pytest_aisbench.model.metric import ACCURACY, THROUGHPUT
from pytest_aisbench.model.results import CaseEntry, TrialEntry
from pytest_aisbench.model.verdict import number

TIME = "time"  # the unit of a moment: seconds since the epoch, until a reporter writes it as a date
PHASES = ("total", "prepare", "dataload", "proc")
_CLOCK = "clock of the run"
_LOG = "log of the training"
_NO_POWER = "no source of power was named, or the job left no result to ask it about"
_NO_SPEED = "the throughput of some rank is missing"
_ACCELERATORS = ("npu", "gpu")


@dataclass(frozen=True)
class Field:
    """A number, a word, or None with the reason."""

    value: Any
    unit: str = ""
    source: str | None = None
    null_reason: str | None = None


def standard_fields(case: CaseEntry, config: Mapping[str, Any] | None = None) -> dict[str, Field]:
    """The figures of the case's last trial; `config` is the content of config.json, if there is one."""
    trial = case.trials[-1] if case.trials else None
    fields = {
        **_phases(trial),
        **_results(case, trial),
        **_power(case, trial),
        **_stability(case, trial),
        **_context(case, trial, config or {}),
    }
    own = {name: _metric(name, case) for name in case.metrics if name not in {THROUGHPUT, ACCURACY}}
    return fields | own  # what the workload measures itself takes precedence


def _phases(trial: TrialEntry | None) -> dict[str, Field]:
    """When each phase began and ended, and how long it took."""
    times = trial.times if trial else {}
    started = min(times.values(), default=None)
    window = trial.curve.window if trial and trial.curve else None
    running = times.get("running")
    spans: dict[str, tuple[float | None, float | None, str, str]] = {
        "total": (started, times.get("done"), _CLOCK, "the case was not judged"),
        "proc": (*(window or (None, None)), _LOG, "the log does not tell when training began and ended"),
        "prepare": (None, None, "", "the log does not tell when training began"),
        "dataload": (None, None, "", "no source tells when the data were loaded"),
    }
    if window and running is not None and running <= window[0]:
        source = f"from the job's start ({_CLOCK}) to the training's ({_LOG}), loading of data included"
        spans["prepare"] = (running, window[0], source, "")
    elif window:
        spans["prepare"] = (None, None, "", "the job was never seen running before training began")
    fields: dict[str, Field] = {}
    for phase in PHASES:
        start, end, source, why = spans[phase]
        fields[f"{phase}_start_time"] = _value(start, TIME, source, why)
        fields[f"{phase}_end_time"] = _value(end, TIME, source, why)
        lasted = end - start if start is not None and end is not None else None
        fields[f"{phase}_time"] = _value(lasted, "s", source, why)
    return fields


def _results(case: CaseEntry, trial: TrialEntry | None) -> dict[str, Field]:
    throughput = _metric(THROUGHPUT, case)
    cards = case.shape.devices if case.single_server else case.shape.world
    per_card = None if throughput.value is None else throughput.value / cards
    unit, accuracy = throughput.unit, case.metrics[ACCURACY].unit if ACCURACY in case.metrics else ""
    curve = trial.curve if trial else None
    log = LoggedTraining(curve, case.shape, case.single_server, case.target_accuracy, accuracy, unit)
    return {
        "throughput_ratio": throughput,
        "throughput_per_card": _value(per_card, unit, f"throughput by {cards} cards", throughput.null_reason or ""),
        ACCURACY: _metric(ACCURACY, case),
        "target_accuracy": _value(
            case.target_accuracy, accuracy, "claim on accuracy", "no lower bound of the accuracy is claimed"
        ),
        **{name: _derived(name, value, unit) for name, value in values_from_log(log).items()},
    }


def _power(case: CaseEntry, trial: TrialEntry | None) -> dict[str, Field]:
    power = (trial.power if trial else None) or Power(why=_NO_POWER)
    source = "; ".join((f"{power.source}, not net of idle power", *power.gaps))
    unit = case.metrics[THROUGHPUT].unit if THROUGHPUT in case.metrics else ""
    work = f"{unit[:-2]}/J" if unit.endswith("/s") else f"{unit}/W"
    average = _value(power.average_w, "W", source, power.why)
    average = _metric("average_power", case) if "average_power" in case.metrics else average
    # Of the trial whose power it is, and of all its nodes.
    speed = throughput_of_ranks(trial.throughput_by_rank) if trial else None
    efficiency = speed / average.value if speed is not None and average.value else None
    usage = trial.usage if trial else {}
    busy = next((name for name in _ACCELERATORS if name in usage), None)
    utilised = "mean over time and nodes, by the platform"
    return {
        "average_power": average,
        "max_power": _value(power.max_w, "W", source, power.why),
        "idle_power": _value(None, "W", "", "no source tells what the nodes draw when they are idle"),
        "energy_consumption": _value(power.energy_j, "J", source, power.why),
        "efficientcy": _value(efficiency, work, "throughput by average power", average.null_reason or _NO_SPEED),
        "resource_util_ratio": _value(
            usage[busy] if busy else None, "%", f"{busy}: {utilised}", "the platform sampled no accelerator of the job"
        ),
        **{f"{name.replace(' ', '_')}_util": _value(value, "%", utilised, "") for name, value in sorted(usage.items())},
    }


def _stability(case: CaseEntry, trial: TrialEntry | None) -> dict[str, Field]:
    """How a case scales, and how its trials and nodes differ."""
    totals = (throughput_of_ranks(each.throughput_by_rank) for each in case.trials)
    speeds = [speed for speed in totals if speed is not None]
    servers = [each for each in (trial.throughput_by_server if trial else ()) if each is not None]
    spread = max(servers) / min(servers) if len(servers) == case.nodes > 1 and min(servers) > 0 else None
    return {
        "scaling_efficiency": _value(
            case.efficiency,
            "",
            "throughput per card, by that of the base",
            "it is the base itself, or the throughput of no other shape is known",
        ),
        "throughput_cv": _value(
            _variation(speeds), "", f"{len(speeds)} trials of this run", "there are fewer than two whole trials"
        ),
        "server_spread": _value(
            spread, "", "fastest node by slowest node", "there are fewer than two nodes with a throughput"
        ),
    }


def _context(case: CaseEntry, trial: TrialEntry | None, config: Mapping[str, Any]) -> dict[str, Field]:
    traits = trial.traits if trial else {}
    not_in_config = "no config.json tells it"
    about = {
        "division": (config.get("Division", config.get("Divsion")), "config.json", not_in_config),
        "scenario": (config.get("Scenario"), "config.json", not_in_config),
        "test_object_type": ("single" if case.nodes == 1 else "cluster", "case", ""),
        "model": (config.get("Model") or case.workload, "config.json" if config.get("Model") else "workload.toml", ""),
        "hardware": (_first(traits, *HARDWARE_OPTIONS), "workload.toml", "it names no machines"),
        "dataset": (traits.get("data"), "workload.toml", "the workload names no data"),
        "framework": (traits.get("framework"), "workload.toml", "not on record"),
        "framework_version": (_first(traits, *SOFTWARE_OPTIONS), "workload.toml", "nothing names it"),
        "cann": (traits.get("cann"), _LOG, "the log does not tell it"),
        "driver": (traits.get("driver"), _LOG, "the log does not tell it"),
    }
    fields = {name: _value(_word(value), "", source, why) for name, (value, source, why) in about.items()}
    fields["nodes"] = Field(case.nodes, "", "case")
    fields["cards_per_node"] = Field(case.devices_per_node, "", "case")
    return fields


def _metric(name: str, case: CaseEntry) -> Field:
    if name not in case.metrics:
        return Field(None, null_reason=f"the workload measures no {name}")
    value, unit = case.metrics[name].value, case.metrics[name].unit
    if value is None:
        text = next((finding.text for finding in case.findings if finding.metric == name), "")
        return Field(None, unit, null_reason=plain(text or case.reason))
    across = case.metrics[name].source or ("sum over ranks" if name == THROUGHPUT else "whole job")
    if case.single_server:
        across = "; ".join(filter(None, ("mean over servers", case.metrics[name].source)))
    return Field(value, unit, f"{name}: {across}")


def _variation(speeds: Sequence[float]) -> float | None:
    return stdev(speeds) / fmean(speeds) if len(speeds) > 1 and fmean(speeds) > 0 else None


def _derived(name: str, value: float | str, speed_unit: str) -> Field:
    """`value` is a number, or the reason why there is none."""
    metric = DERIVED[name]
    unit = speed_unit if metric.unit is None else metric.unit
    if isinstance(value, str):
        return Field(None, unit, null_reason=value)
    return Field(value, unit, f"{_LOG}, {metric.remark}" if metric.remark else _LOG)


def _value(value: Any, unit: str, source: str, why: str) -> Field:
    if value is None or (isinstance(value, float) and not math.isfinite(value)):
        return Field(None, unit, null_reason=why or "it is not a finite number")
    return Field(value, unit, source)


def _first(traits: Mapping[str, str], *names: str) -> str | None:
    return next((traits[name] for name in names if name in traits), None)


def _word(value: Any) -> str | None:
    return None if value is None or value == "" else plain(str(value), 200)


MARGIN_S = 60.0  # around the window: the samples that its ends lie between
_FEWEST_SAMPLES = 3  # of a node
_GAP = 3.0  # usual intervals
_MOST_MISSING = 0.5  # of the window
_GAPS_LISTED = 5


def power_in_window(samples: Iterable[Sample], start: float, end: float, nodes: int, source: str) -> Power:
    """The power of a job from `start` to `end`; unknown unless exactly `nodes` nodes were sampled."""
    if not start < end:
        return Power(source=source, why="the job has no time in which to draw power")
    by_node = _samples_by_node(samples, start, end)
    inside = {node: line for node, line in by_node.items() if any(start <= at <= end for at, _ in line)}
    if len(inside) != nodes:
        return Power(source=source, why=f"there are samples of {len(inside)} nodes during the job, it has {nodes}")
    few = next((node for node, line in sorted(inside.items()) if len(line) < _FEWEST_SAMPLES), None)
    if few is not None:
        return Power(source=source, why=f"node {few} has only {len(inside[few])} samples during the job")
    gaps: list[str] = []
    for node, line in sorted(inside.items()):
        gaps_of_node, missing = _gaps(line, start, end)
        if missing > _MOST_MISSING * (end - start):
            return Power(source=source, why=f"node {node} was not sampled for {missing / (end - start):.0%} of the job")
        gaps += [f"node {node}: no sample for {number(long)} s after {number(after)} s" for after, long in gaps_of_node]
    times = sorted({start, end, *(at for line in inside.values() for at, _ in line if start < at < end)})
    watts = [exact_sum(_power_at(line, moment) for line in inside.values()) for moment in times]
    energy = exact_sum((b - a) * (p + q) / 2 for (a, p), (b, q) in pairwise(zip(times, watts, strict=True)))
    if not math.isfinite(energy):
        return Power(source=source, why="the samples are beyond every finite sum")
    more = [f"and {len(gaps) - _GAPS_LISTED} gaps more"] if len(gaps) > _GAPS_LISTED else []
    return Power(energy / (end - start), max(watts), energy, source, gaps=(*gaps[:_GAPS_LISTED], *more))


_Line = Sequence[tuple[float, float]]


def _samples_by_node(samples: Iterable[Sample], start: float, end: float) -> dict[str, _Line]:
    """In order of time; of several at one moment the last counts. Samples that are no power are left out."""
    by_node: dict[str, dict[float, float]] = {}
    for sample in samples:
        near = start - MARGIN_S <= sample.at <= end + MARGIN_S
        if near and 0 <= sample.watts < math.inf:
            by_node.setdefault(sample.node, {})[sample.at] = sample.watts
    return {node: sorted(line.items()) for node, line in by_node.items()}


def _power_at(line: _Line, moment: float) -> float:
    index = bisect_left(line, (moment, -math.inf))
    if index == 0:
        return line[0][1]
    if index == len(line):
        return line[-1][1]
    (before, low), (after, high) = line[index - 1], line[index]
    return low + (high - low) * (moment - before) / (after - before)


def _gaps(line: _Line, start: float, end: float) -> tuple[list[tuple[float, float]], float]:
    """(start in seconds of the window, length) of each gap, and the length of all of them."""
    times = [at for at, _ in line]
    usual = median(b - a for a, b in pairwise(times))
    edges = [*([start] if times[0] > start else []), *times, *([end] if times[-1] < end else [])]
    gaps = [
        (max(a, start) - start, min(b, end) - max(a, start))
        for a, b in pairwise(edges)
        if b - a > _GAP * usual and b > start and a < end
    ]
    return gaps, math.fsum(long for _, long in gaps)
