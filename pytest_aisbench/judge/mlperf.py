"""Judges result files of MLPerf by the thresholds of a case, one by one and as a set."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from pytest_aisbench.judge.evaluate import evaluate
from pytest_aisbench.judge.values import CaseValues, mean, target_accuracy
from pytest_aisbench.model.case import Case
from pytest_aisbench.model.metric import ACCURACY, THROUGHPUT, TIME_TO_ACCURACY, MissingResult
from pytest_aisbench.model.verdict import Ruling, Verdict
from pytest_aisbench.traininglog.mlperf import BENCHMARKS, Result, benchmark_name


def judge_file(case: Case, result: Result, today: str = "") -> Verdict:
    """Judge one file as a trial of the case without a history."""
    missing = (*result.missing, *_other_benchmark(case, result))
    return evaluate(CaseValues(case, _values(case, result), missing), today=today).verdict


def judge_set(case: Case, files: Sequence[tuple[Result, Verdict]], today: str = "") -> Verdict:
    """Judge all files together: every file must pass, and so must the mean over them."""
    values = [_values(case, each) for each, _ in files]
    means = {
        metric: mean([each[metric] for each in values])
        for metric in (THROUGHPUT, ACCURACY, TIME_TO_ACCURACY)
        if all(metric in each for each in values)
    }
    whole = evaluate(CaseValues(case, means), today=today).verdict
    failed = [each.name for each, verdict in files if not verdict.passed]
    if not failed:
        return whole
    named = ", ".join(failed[:5]) + (" …" if len(failed) > 5 else "")
    return Verdict(Ruling.FAILED, f"{len(failed)} of {len(files)} did not pass: {named}", whole.findings)


def _other_benchmark(case: Case, result: Result) -> Iterable[MissingResult]:
    """The speed and accuracy of another model must not be compared with these thresholds."""
    ours, theirs = benchmark_name(case.workload.name), result.benchmark
    if theirs and ours in BENCHMARKS and not theirs.startswith(ours):
        text = f"submission_benchmark is {theirs!r}, and {case.workload.name} is {ours!r} in MLPerf's words"
        yield MissingResult(THROUGHPUT, text)


def _values(case: Case, result: Result) -> dict[str, float]:
    """What the file measured; a metric with a missing result has no value."""
    target = target_accuracy(case)
    times = [seconds for seconds, accuracy in result.evaluations if target is not None and accuracy >= target]
    return {**result.measured, **({TIME_TO_ACCURACY: times[0]} if times else {})}
