"""Results of MLPerf in the dialects of their submitters: what each says is read right, or not at all."""

from __future__ import annotations

import json
import random
from collections.abc import Callable
from dataclasses import replace
from typing import Any

import pytest
from factories import make_case
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from mlperf_logs import (
    CONTRADICTORY,
    READABLE,
    MlperfLog,
    ascend_bert,
    ascend_resnet,
    evaluation_counting_bert,
    interval_block_bert,
    nvidia_bert,
    nvidia_resnet,
    step_block_bert,
)

from pytest_aisbench.cli.judge import judge_file
from pytest_aisbench.model.verdict import Outcome, Ruling, Threshold
from pytest_aisbench.traininglog.mlperf import parse_result
from pytest_aisbench.traininglog.readers import MLLOG

CASES = {
    "resnet": make_case(
        "1x8", Threshold("throughput", "images/s", at_least=13_443.6), Threshold("accuracy", at_least=0.759),
        workload="resnet50",
    ),
    "bert": make_case(
        "1x8", Threshold("throughput", "sentences/s", at_least=428.0), Threshold("accuracy", at_least=0.712),
        workload="bert",
    ),
}  # fmt: skip
LOGS = st.sampled_from(list(READABLE.values()))


def verdict_on(log: MlperfLog, lines: list[str] | None = None) -> Any:
    result = parse_result("a", log.lines if lines is None else lines, log.benchmark)
    return judge_file(CASES[log.benchmark], result)


def edited(line: str, change: Callable[[dict[str, Any]], object]) -> str:
    """The line, its event changed in place."""
    if MLLOG not in line:
        return line
    before, _, text = line.partition(MLLOG)
    event = json.loads(text)
    change(event)
    return f"{before}{MLLOG} {json.dumps(event)}"


def with_events(log: MlperfLog, key: str, **metadata: Any) -> list[str]:
    """The log, these metadata set in its events of this key."""
    return [
        edited(line, lambda event: event["metadata"].update(metadata) if event["key"] == key else None)
        for line in log.lines
    ]


@pytest.mark.parametrize("dialect", READABLE)
def test_samples_and_accuracy_are_those_of_the_run(dialect: str) -> None:
    log = READABLE[dialect]
    result = parse_result("a", log.lines)
    assert (result.samples, result.epoch_num, result.seconds) == (log.samples, log.epoch_num, log.seconds)
    assert result.measured == {"throughput": pytest.approx(log.throughput), "accuracy": log.accuracy}
    assert (result.missing, result.contradictions) == ((), ())
    assert verdict_on(log).passed


@pytest.mark.parametrize("dialect", CONTRADICTORY)
def test_a_log_that_contradicts_itself_is_not_judged(dialect: str) -> None:
    log, why = CONTRADICTORY[dialect]
    verdict = verdict_on(log)
    assert (verdict.ruling, verdict.reason) == (Ruling.INCONCLUSIVE, f"throughput: not judged: {why}")
    assert "throughput" not in parse_result("a", log.lines).measured


def test_a_slow_bert_is_not_made_fast_by_counting_its_total_for_every_step() -> None:
    """263 sentences/s were read as 1.9 million, and passed."""
    assert not verdict_on(evaluation_counting_bert(speed=263.0)).passed
    for slow in (
        nvidia_bert(speed=263),
        ascend_bert(speed=263),
        interval_block_bert(speed=263),
        step_block_bert(speed=263),
    ):
        verdict = verdict_on(slow)
        assert verdict.ruling is Ruling.FAILED
        assert verdict.reason.startswith("throughput 263 sentences/s, wanted >= 428 sentences/s")


def test_what_is_missed_beside_a_contradiction_fails() -> None:
    verdict = verdict_on(evaluation_counting_bert(accuracy=0.70))
    assert verdict.ruling is Ruling.FAILED
    assert {finding.outcome for finding in verdict.findings} == {Outcome.MISSED, Outcome.UNMEASURED}


@pytest.mark.parametrize(
    ("lines", "why"),
    [
        (with_events(ascend_resnet(), "eval_accuracy", epoch_num=400), "says 400 epochs, and its blocks say 36 to 40"),
        (with_events(ascend_resnet(), "eval_accuracy", epoch_num=10), "says 10 epochs, and its blocks say 36 to 40"),
        (with_events(ascend_resnet(), "eval_accuracy", epoch_num=42), "says 42 epochs, and its blocks say 36 to 40"),
        (with_events(ascend_resnet(), "eval_accuracy", epoch_num=10**7), "says 10000000 epochs, which no block and no"),
        (
            with_events(nvidia_resnet(), "eval_accuracy", epoch_num=47),
            "says 47 epochs, and its epoch_start and epoch_stop say 45",
        ),
        (
            with_events(ascend_bert(), "eval_accuracy", epoch_num=2_000_000),
            "says 2000000 samples, and its blocks count 26947585 samples or steps of 4096, to 3170304",
        ),
        (
            with_events(nvidia_bert(), "eval_accuracy", epoch_num=30_412_800),
            "says 30412800 samples, and train_samples is 3041280",
        ),
        (
            with_events(step_block_bert(), "eval_accuracy", epoch_num=2_000_000),
            "says 2000000 samples, and its blocks count 952 samples or steps of 3072, to 952",
        ),
        (
            [*nvidia_resnet().lines, ':::MLLOG {"time_ms": 0, "key": "train_samples", "value": 1277952}'],
            "train_samples is 1281167 and 1277952: a run has one",
        ),
        (
            [*nvidia_resnet().lines, ':::MLLOG {"time_ms": 0, "key": "submission_benchmark", "value": "resnet50"}'],
            "submission_benchmark is 'resnet' and 'resnet50': a run has one",
        ),
    ],
)  # fmt: skip
def test_a_contradiction_names_the_numbers(lines: list[str], why: str) -> None:
    log = ascend_bert() if "samples, and" in why else ascend_resnet()
    verdict = verdict_on(log, lines)
    assert verdict.ruling is Ruling.INCONCLUSIVE
    assert why in verdict.reason
    assert verdict.reason.count("\n") == 0


def test_epoch_numbers_that_fall_are_a_contradiction() -> None:
    log = ascend_resnet()
    at = next(number for number, line in enumerate(log.lines) if '"epoch_num": 36' in line)
    lines = [
        line.replace('"epoch_num": 36', '"epoch_num": 41') if n == at else line for n, line in enumerate(log.lines)
    ]
    assert "the last eval_accuracy says epoch_num 40, and an earlier one 41" in verdict_on(log, lines).reason


def test_a_file_that_names_no_benchmark_needs_blocks_that_confirm_its_epochs() -> None:
    log = ascend_resnet()
    unnamed = [line for line in log.lines if "submission_benchmark" not in line]
    assert verdict_on(log, unnamed).passed
    bare = [line for line in unnamed if "block_" not in line]
    assert "says 40 epochs, which no block and no epoch of the log confirms" in verdict_on(log, bare).reason
    assert verdict_on(log, [line for line in log.lines if "block_" not in line]).passed  # as MLCommons reads it


def test_newer_benchmarks_count_samples_by_their_own_name() -> None:
    """`samples_count` instead of `epoch_num`, as the RCP checker reads it of language models, and of these only."""
    lines = [line.replace('"epoch_num"', '"samples_count"') for line in interval_block_bert().lines]
    named = [line.replace('"value": "bert"', '"value": "llama31_8b"') for line in lines]
    assert parse_result("a", named).measured["throughput"] == pytest.approx(interval_block_bert().throughput)
    assert "throughput" not in parse_result("a", lines).measured


# Only the window counts


def outside(log: MlperfLog, *, before: bool, accuracy: float) -> list[str]:
    """The log with one more evaluation outside the run: beyond its line and its time."""
    key, late = ("run_start", -1000) if before else ("run_stop", 1000)
    lines = list(log.lines)
    at = next(number for number, line in enumerate(lines) if f'"key": "{key}"' in line)
    event = json.loads(lines[at].partition(MLLOG)[2])
    event |= {"time_ms": event["time_ms"] + late, "key": "eval_accuracy", "value": accuracy}
    event["metadata"] = {"epoch_num": log.epoch_num}
    lines.insert(at if before else at + 1, f"{MLLOG} {json.dumps(event)}")
    return lines


@given(LOGS, st.booleans(), st.floats(0, 1))
def test_an_evaluation_outside_the_run_changes_nothing(log: MlperfLog, before: bool, accuracy: float) -> None:
    inside, beyond = parse_result("a", log.lines), parse_result("a", outside(log, before=before, accuracy=accuracy))
    assert replace(beyond, events=inside.events) == inside


@pytest.mark.parametrize("before", [True, False])
def test_a_run_whose_only_evaluation_is_outside_fails(before: bool) -> None:
    log = ascend_resnet()
    lines = [
        line for line in outside(log, before=before, accuracy=0.77) if '"value": 0.77' in line or "eval_acc" not in line
    ]
    verdict = verdict_on(log, lines)
    assert verdict.ruling is Ruling.FAILED
    assert "eval_accuracy is missing between run_start and run_stop: 1 are outside" in str(verdict)


def test_a_line_within_the_run_with_a_time_beyond_it_does_not_count() -> None:
    log = ascend_resnet(accuracy=0.70)
    lines = list(log.lines)
    late = json.loads(lines[-1].partition(MLLOG)[2])
    late |= {"time_ms": late["time_ms"] + 1, "key": "eval_accuracy", "value": 0.77, "metadata": {"epoch_num": 40}}
    lines.insert(-1, f"{MLLOG} {json.dumps(late)}")
    assert parse_result("a", lines).measured["accuracy"] == 0.70


def test_the_last_evaluation_by_line_must_be_the_last_by_time() -> None:
    log = ascend_resnet()
    lines = list(log.lines)
    early = json.loads(lines[-2].partition(MLLOG)[2])
    early["time_ms"] -= 100_000
    lines.insert(-1, f"{MLLOG} {json.dumps(early)}")
    verdict = verdict_on(log, lines)
    assert verdict.ruling is Ruling.INCONCLUSIVE
    assert "is 100 s older than another" in verdict.reason


# Properties


@given(LOGS, st.data())
@settings(suppress_health_check=[HealthCheck.too_slow])
def test_a_log_that_is_cut_off_is_never_green(log: MlperfLog, data: st.DataObject) -> None:
    """Cut at any character before the end of the line of run_stop."""
    whole = log.text
    end = whole.index("\n", whole.index('"run_stop"'))
    cut = data.draw(st.integers(0, end - 1))
    assert not verdict_on(log, whole[:cut].splitlines()).passed
    assert verdict_on(log, whole[: end + 1].splitlines()).passed


def rewritten(line: str, seed: random.Random) -> str:
    """The same event, written in another way."""
    if MLLOG not in line:
        return line
    event = json.loads(line.partition(MLLOG)[2])
    keys = list(event)
    seed.shuffle(keys)
    metadata = dict(sorted(event["metadata"].items(), reverse=seed.random() < 0.5))
    metadata |= {"file": seed.choice(["train.py", "/elsewhere/train.py"]), "lineno": seed.randrange(999)}
    if seed.random() < 0.5:
        metadata = {key: float(value) if type(value) is int else value for key, value in metadata.items()}
        event["time_ms"] = float(event["time_ms"])
    event = {key: metadata if key == "metadata" else event[key] for key in keys}
    separators = seed.choice([(",", ":"), (", ", ": "), (" , ", " : ")])
    prefix, blanks = seed.choice(["", "0: ", " 0: ", "[1,0]<stdout>:"]), " " * seed.randrange(3)
    return f"{prefix}{MLLOG} {json.dumps(event, separators=separators)}{blanks}"


@given(LOGS, st.integers(0, 2**32))
def test_the_same_run_is_the_same_however_it_is_written(log: MlperfLog, seed: int) -> None:
    chance = random.Random(seed)
    lines = ["another banner", *(rewritten(line, chance) for line in log.lines)]
    ours, theirs = parse_result("a", log.lines), parse_result("a", lines)
    assert ours.run == theirs.run
    assert theirs == ours


@given(LOGS, st.integers(1, 10**7))
def test_the_same_training_at_another_time_is_another_run(log: MlperfLog, later: int) -> None:
    lines = [edited(line, lambda event: event.update(time_ms=event["time_ms"] + later)) for line in log.lines]
    ours, theirs = parse_result("a", log.lines), parse_result("a", lines)
    assert ours.run != theirs.run
    assert ours.measured["accuracy"] == theirs.measured["accuracy"]
    assert ours.measured["throughput"] == pytest.approx(theirs.measured["throughput"])


@given(LOGS, st.floats(1.06, 1e6), st.booleans())
def test_no_number_of_epochs_that_is_too_large_makes_a_log_faster(log: MlperfLog, times: float, last: bool) -> None:
    """`epoch_num` alone is multiplied: the log contradicts itself, or its samples do not exceed its own total."""
    changed = [
        edited(line, lambda event: event["metadata"].update(epoch_num=event["metadata"]["epoch_num"] * times))
        if '"eval_accuracy"' in line and (not last or f'"epoch_num": {log.epoch_num}}}' in line)
        else line
        for line in log.lines
    ]
    speed = parse_result("a", changed).measured.get("throughput")
    assert speed is None or log.benchmark == "bert"
    assert speed is None or speed * log.seconds <= 3_505_152 * 1.02
