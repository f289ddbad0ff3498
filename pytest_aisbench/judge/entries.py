"""Make the entries that reporters read from trials and verdicts; `model/results.py` says what they hold."""

from __future__ import annotations

from pytest_aisbench.judge.stragglers import find_stragglers
from pytest_aisbench.judge.values import (
    accuracy_by_node,
    judged_values,
    target_accuracy,
    throughput_by_rank,
    throughput_by_server,
)
from pytest_aisbench.model.case import Case
from pytest_aisbench.model.messages import message
from pytest_aisbench.model.metric import THROUGHPUT, LogReading, Measurement, MetricValues
from pytest_aisbench.model.results import CaseBrief, CaseEntry, TrialEntry, Value
from pytest_aisbench.model.trial import Step, Trial
from pytest_aisbench.model.verdict import Verdict


def case_entry(case: Case, trials: tuple[Trial, ...], verdict: Verdict | None) -> CaseEntry:
    """`verdict` is the case's: the last trial's, unless the test itself did not pass."""
    values = judged_values(trials[-1], verdict) if trials else MetricValues()
    measured = trials[-1].measurements if trials else ()
    metrics = {
        name: Value(
            values.get(name), metric.unit, _source(metric.log, [each for each in measured if each.metric == name])
        )
        for name, metric in case.workload.metrics.items()
    }
    hours = sum(trial.job.ran_s or 0.0 for trial in trials if trial.job) * case.shape.world / 3600
    return CaseEntry(
        id=case.id,
        workload=case.workload.name,
        nodes=case.shape.nodes,
        devices_per_node=case.shape.devices,
        mode=case.mode.value,
        verdict=verdict.ruling if verdict else None,
        reason=verdict.reason if verdict else _why_not_judged(trials),
        card_hours=round(hours, 6),
        metrics=metrics,
        findings=verdict.findings if verdict else (),
        trials=tuple(trial_entry(trial) for trial in trials),
        background=trials[-1].background if trials else None,
        target_accuracy=target_accuracy(case),
        parameters=case.arguments,
    )


def _source(reading: LogReading | None, measurements: list[Measurement]) -> str:
    """Where a value that the script wrote to no file was read; empty for others, and for what was not measured."""
    if reading is None or not measurements:
        return ""
    if not reading.pattern:
        return message("from running time", samples=" × ".join(reading.samples))
    first, *others = dict.fromkeys(each.source for each in measurements)
    logs = message("first and more", first=first, count=str(len(others))) if others else first
    if not reading.take:
        return message("from log once", logs=logs, pattern=reading.pattern)
    return message("from log", logs=logs, pattern=reading.pattern, take=reading.take)


def trial_entry(trial: Trial) -> TrialEntry:
    shape, job = trial.case.shape, trial.job
    by_rank = throughput_by_rank(trial)
    return TrialEntry(
        trial=trial.number,
        job_id=trial.job_id,
        platform_phase=job.platform_phase if job else None,
        phase=job.phase.value if job else None,
        queued_s=job.queued_s if job else None,
        ran_s=job.ran_s if job else None,
        throughput_by_rank=by_rank,
        throughput_by_server=throughput_by_server(trial),
        accuracy_by_server=accuracy_by_node(trial),
        stragglers=find_stragglers(by_rank, shape, job.hosts if job else ()),
        pace=trial.curve.pace if trial.curve else None,
        logs=trial.logs,
        stage=str(trial.stage.root) if trial.stage else None,
        times=trial.times,
        notes=trial.notes,
        curve=trial.curve,
        events=trial.events,
        last_lines=trial.last_lines,
        excerpt=trial.excerpt,
        traits=trial.traits,
        console=trial.console,
        endpoints=trial.endpoints,
        usage=trial.usage,
        power=trial.power,
        trained_with=trial.trained_with,
        hosts=job.hosts if job else (),
    )


def _why_not_judged(trials: tuple[Trial, ...]) -> str:
    if trials and trials[-1].stopped_by:
        return trials[-1].stopped_by
    fault = trials[-1].fault if trials else None
    if fault:
        return message("not judged") + message("because", why=fault.text)
    is_over = bool(trials) and trials[-1].step is Step.DONE
    return message("no verdict asked") if is_over else message("not judged")


def brief(case: CaseEntry) -> CaseBrief:
    """What the next run is compared with."""
    speed = case.metrics.get(THROUGHPUT, Value(None, ""))
    return CaseBrief(case.id, case.verdict, speed.value, speed.unit)
