"""What the logs of a job give for the metrics that workload.toml reads from them, and what they never give."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import pytest
from factories import UNIT, make_case, make_trial
from hypothesis import given, settings
from hypothesis import strategies as st

from pytest_aisbench.engine.logged_metrics import read_logged
from pytest_aisbench.judge.entries import case_entry
from pytest_aisbench.judge.evaluate import evaluate
from pytest_aisbench.judge.values import case_values
from pytest_aisbench.model.case import Case, Mode
from pytest_aisbench.model.job import Job, Phase
from pytest_aisbench.model.metric import ACCURACY, THROUGHPUT, LogReading, Metric
from pytest_aisbench.model.trial import Trial
from pytest_aisbench.model.verdict import Ruling, Threshold

MNIST = r"Accuracy: (?P<value>\d+)/(?P<of>\d+)"
STEP = r"per step time: (\S+) ms"
BEGIN = "[ModelArts Service Log]2026-11-18 10:00:00,000 - INFO - Begin training processes\n"
END = "[ModelArts Service Log]2026-11-18 10:00:09,000 - INFO - Training end with return code: 0\n"
CLAIMS = (Threshold(THROUGHPUT, UNIT, at_least=1.0), Threshold(ACCURACY, at_least=0.5))


def closed(*lines: str) -> str:
    """A node's log as the platform writes it."""
    return BEGIN + "".join(f"{line}\n" for line in lines) + END


def case_of(shape: str, mode: Mode = Mode.CLUSTER, *, speed: LogReading, accuracy: LogReading) -> Case:
    metrics = {THROUGHPUT: Metric(THROUGHPUT, UNIT, log=speed), ACCURACY: Metric(ACCURACY, "", log=accuracy)}
    return make_case(shape, *CLAIMS, mode=mode, metrics=metrics, parameters={"epochs": "2", "batch_size": "32"})


SPEED = LogReading(STEP, "median", "rank", scale=0.001, samples=("batch_size",))
LEARNT = LogReading(MNIST, "last", "job", times=("epochs",))


def trial_of(folder: Path, files: Mapping[str, str], case: Case, ran_s: float | None = 8.0) -> Trial:
    for name, text in files.items():
        (folder / name).write_bytes(text.encode())
    job = Job("job-1", Phase.SUCCEEDED, "Completed", ran_s=ran_s)
    return make_trial(case, logs=tuple(files), job=job)


def results(folder: Path, files: Mapping[str, str], **fields: Any) -> tuple[dict[str, list[float]], dict[str, str]]:
    """By metric the values in their order, and the reasons."""
    shape = fields.pop("shape", "1x1")
    case = case_of(shape, fields.pop("mode", Mode.CLUSTER), **{"speed": SPEED, "accuracy": LEARNT, **fields})
    found, missing = read_logged(trial_of(folder, files, case), folder)
    values: dict[str, list[float]] = {}
    for each in found:
        values.setdefault(each.metric, []).append(each.value)
    return values, {each.metric: str(each.text) for each in missing}


RANK_0 = ("step per step time: 100 ms", "Accuracy: 90/100", "step per step time: 300 ms", "Accuracy: 95/100")
RANK_1 = ("step per step time: 200 ms", "step per step time: 400 ms")


def two_ranks() -> dict[str, str]:
    """As ModelArts' engine leaves them: the node's log has all lines, that of a rank its own."""
    return {
        "worker-0.log": closed(*RANK_0, *RANK_1),
        "proc-rank-0-device-0.txt": "".join(f"{line}\n" for line in RANK_0),
        "proc-rank-1-device-1.txt": "".join(f"{line}\n" for line in RANK_1),
    }


# What is read


def test_each_rank_has_a_log_of_its_own(tmp_path: Path) -> None:
    values, why = results(tmp_path, two_ranks(), shape="1x2")
    assert why == {}
    assert values[ACCURACY] == [0.95]
    assert values[THROUGHPUT] == pytest.approx([32 / 0.2, 32 / 0.3])


def test_the_case_has_the_sum_of_speeds_and_says_where_it_was_read(tmp_path: Path) -> None:
    case = case_of("1x2", speed=SPEED, accuracy=LEARNT)
    trial = trial_of(tmp_path, two_ranks(), case)
    found, _ = read_logged(trial, tmp_path)
    trial = make_trial(case, measurements=tuple(found), logs=trial.logs)
    judged = evaluate(case_values(trial))
    assert judged.verdict.ruling is Ruling.PASSED
    entry = case_entry(case, (trial,), judged.verdict)
    assert entry.metrics[THROUGHPUT].value == pytest.approx(32 / 0.2 + 32 / 0.3)
    assert entry.metrics[THROUGHPUT].source == (
        f"log proc-rank-0-device-0.txt and 1 more: median of the lines that match '{STEP}'"
    )
    assert entry.metrics[ACCURACY].source == f"log proc-rank-0-device-0.txt: last of the lines that match '{MNIST}'"


@pytest.mark.parametrize("prefix", ["[rank{}]:", "[1,{}]<stdout>:", "[{}]<stdout>:", "[default{}]:", "{}: "])
def test_a_launcher_names_the_ranks_in_the_nodes_log(tmp_path: Path, prefix: str) -> None:
    lines = [prefix.format(0) + line for line in RANK_0] + [prefix.format(1) + line for line in RANK_1]
    values, why = results(tmp_path, {"worker-0.log": closed(*lines)}, shape="1x2")
    assert why == {}
    assert values[THROUGHPUT] == pytest.approx([32 / 0.2, 32 / 0.3])


def test_torchrun_counts_the_ranks_of_each_node(tmp_path: Path) -> None:
    logs = {
        f"worker-{node}.log": closed(
            *(f"[default{card}]:per step time: {10 ** (node + 1) + card} ms" for card in (0, 1))
        )
        for node in (0, 1)
    }
    values, _ = results(tmp_path, logs, shape="2x2")
    assert values[THROUGHPUT] == pytest.approx([32000 / 10, 32000 / 11, 32000 / 100, 32000 / 101])


def test_the_only_rank_of_a_node_needs_no_name(tmp_path: Path) -> None:
    logs = {f"worker-{node}.log": closed(f"per step time: {100 * (node + 1)} ms") for node in (0, 1)}
    values, _ = results(tmp_path, logs, shape="2x1")
    assert values[THROUGHPUT] == pytest.approx([320, 160])


def test_nodes_that_train_alone_have_values_of_their_own(tmp_path: Path) -> None:
    logs = {
        f"worker-{node}.log": closed(
            *(f"[rank{card}]:per step time: {10 ** (node + 1)} ms" for card in (0, 1)),
            "[rank0]:Accuracy: 1/2",
            f"[rank0]:Accuracy: {8 + node}/10",
        )
        for node in (0, 1)
    }
    values, why = results(tmp_path, logs, shape="2x2", mode=Mode.SINGLE_SERVER)
    assert why == {}
    assert values == {ACCURACY: [0.8, 0.9], THROUGHPUT: pytest.approx([3200, 3200, 320, 320])}


def test_a_script_that_prints_no_speed_has_the_time_of_its_job(tmp_path: Path) -> None:
    speed = LogReading(samples=("epochs", "256", "ranks"))
    values, _ = results(tmp_path, two_ranks(), shape="1x2", speed=speed)
    assert values[THROUGHPUT] == [2 * 256 * 2 / 8.0]
    case = case_of("1x2", speed=speed, accuracy=LEARNT)
    _, missing = read_logged(trial_of(tmp_path, two_ranks(), case, ran_s=None), tmp_path)
    assert [str(each.text) for each in missing] == ["the platform does not say how long the job ran"]


def test_an_accuracy_of_each_rank_is_averaged(tmp_path: Path) -> None:
    lines = [f"[rank{rank}]:Accuracy: {90 + rank}/100" for rank in (0, 2)]
    accuracy = LogReading(MNIST, "", "rank")
    logs = {"worker-0.log": closed(*(line.replace("rank2", "rank1") for line in lines))}
    case = case_of("1x2", speed=LogReading(samples=("10",)), accuracy=accuracy)
    found, missing = read_logged(trial_of(tmp_path, logs, case), tmp_path)
    assert missing == []
    values = case_values(make_trial(case, measurements=tuple(found)))
    assert values.missing == ()
    assert values.values[ACCURACY] == pytest.approx(0.91)


def test_ranks_that_print_one_value_of_the_job_agree(tmp_path: Path) -> None:
    same = [f"[rank{rank}]:Accuracy: {percent}/100" for percent in (50, 95) for rank in (0, 1)]
    values, _ = results(tmp_path, {"worker-0.log": closed(*same)}, shape="1x2")
    assert values[ACCURACY] == [0.95]
    _, why = results(tmp_path, {"worker-0.log": closed(*same[:-1], "[rank1]:Accuracy: 94/100")}, shape="1x2")
    assert why[ACCURACY] == (
        'worker-0.log gives 0.95, worker-0.log gives 0.94: write printed_by = "rank" if each rank has its own'
    )


# What is never read


def worker(*lines: str, **more: str) -> dict[str, str]:
    return {"worker-0.log": closed(*lines), **more}


ONE = LogReading(MNIST, "", "job")
LAST = LogReading(MNIST, "last", "job")
BY_RANK = LogReading(MNIST, "", "rank")


@pytest.mark.parametrize(
    ("files", "accuracy", "why"),
    [
        (worker("Accuracy: none"), LEARNT, f"no line of worker-0.log matches '{MNIST}'"),
        (worker("Accuracy: 1/2"), LEARNT, f"1 lines of worker-0.log match '{MNIST}', not 2: the log is cut"),
        (worker(*["Accuracy: 1/2"] * 3), LEARNT, f"3 lines of worker-0.log match '{MNIST}', not 2: the log is cut"),
        (worker("Accuracy: 1/2", "Accuracy: nan/2"), LEARNT, "no number that can be used: Accuracy: nan/2"),
        (worker("Accuracy: 1/2", "Accuracy: 1/0"), LEARNT, "no number that can be used: Accuracy: 1/0"),
        (worker("Accuracy: 1/2", "Accuracy: 2/2"), ONE, 'write which of them counts, such as take = "last"'),
        ({}, LEARNT, "worker-0.log is missing"),
        ({}, ONE, "worker-0.log is missing"),
        ({"worker-0.log": BEGIN + "Accuracy: 1/2\n"}, ONE, "worker-0.log is cut"),
        ({"worker-0.log": "Accuracy: 1/2\nmore"}, ONE, "worker-0.log is cut"),
        ({"worker-0.log": "Accuracy: 1/2\n"}, LAST, "nothing shows that worker-0.log is whole: write in times"),
        (worker("[1]<stdout>:Accuracy: 1/2"), BY_RANK, "worker-0.log has lines of rank 1, which 1x1"),
        (worker("Accuracy: 1/2", **{"proc-rank-0-device-0.txt": "\n"}), LEARNT, "no line of proc-rank-0-device-0.txt"),
    ],
)  # fmt: skip
def test_why_there_is_no_value(tmp_path: Path, files: dict[str, str], accuracy: LogReading, why: str) -> None:
    values, reasons = results(tmp_path, files, accuracy=accuracy, speed=LogReading(samples=("1",)))
    assert ACCURACY not in values
    assert why in reasons[ACCURACY]


def test_every_rank_must_print_its_value(tmp_path: Path) -> None:
    files = {**two_ranks(), "proc-rank-1-device-1.txt": "nothing\n"}
    values, why = results(tmp_path, files, shape="1x2", speed=LogReading(STEP, "last", "rank"))
    assert THROUGHPUT not in values
    assert why[THROUGHPUT] == (
        f"worker-0.log has 4 lines that match '{STEP}', the logs of its ranks have 2: one of them is cut"
    )
    speed = LogReading(STEP, "last", "rank", times=("2",))
    assert results(tmp_path, files, shape="1x2", speed=speed)[1][THROUGHPUT] == (
        f"rank 1 prints no line that matches '{STEP}'"
    )
    del files["proc-rank-1-device-1.txt"]
    assert "proc-rank-1-" in results(tmp_path, files, shape="1x2", speed=speed)[1][THROUGHPUT]


def test_a_rank_that_the_job_does_not_have_spoils_the_sum(tmp_path: Path) -> None:
    files = {**two_ranks(), "proc-rank-2-device-2.txt": "per step time: 1 ms\n"}
    _, why = results(tmp_path, files, shape="1x2")
    assert why[THROUGHPUT] == "proc-rank-2-device-2.txt has lines of rank 2, which 1x2 does not have"


@pytest.mark.parametrize("take", ["last", "mean", "median", "max"])
def test_a_number_beyond_every_sum_is_no_value(tmp_path: Path, take: str) -> None:
    speed = LogReading(STEP, take, "rank", scale=10.0)
    _, why = results(tmp_path, worker(*["per step time: 1.7e308 ms"] * 2), speed=speed)
    assert why[THROUGHPUT] == "the number in the log is too large"


def test_lines_of_unknown_ranks_are_not_shared_out(tmp_path: Path) -> None:
    values, why = results(tmp_path, {"worker-0.log": closed(*RANK_0, *RANK_1)}, shape="1x2")
    assert THROUGHPUT not in values
    assert "worker-0.log does not show which rank prints the lines" in why[THROUGHPUT]


def test_a_step_before_the_line_is_no_rank(tmp_path: Path) -> None:
    values, _ = results(tmp_path, worker("100: per step time: 10 ms"))
    assert values[THROUGHPUT] == pytest.approx([3200])


def test_a_step_before_the_line_is_no_rank_of_another_node(tmp_path: Path) -> None:
    """Both nodes print `1: …`: neither may count for the other."""
    logs = {f"worker-{node}.log": closed("1: per step time: 10 ms") for node in (0, 1)}
    values, why = results(tmp_path, logs, shape="2x1")
    assert THROUGHPUT not in values
    assert why[THROUGHPUT] == "worker-0.log and worker-1.log both have lines of rank 1"


def test_a_time_of_zero_is_no_speed(tmp_path: Path) -> None:
    _, why = results(tmp_path, worker("per step time: 0.0 ms"))
    assert why[THROUGHPUT] == "the time for the samples is 0, but a time is above 0"
    metrics = {THROUGHPUT: Metric(THROUGHPUT, UNIT, log=SPEED)}
    case = make_case("1x1", metrics=metrics, parameters={"batch_size": "many"})
    _, missing = read_logged(trial_of(tmp_path, worker("per step time: 1 ms"), case), tmp_path)
    assert str(missing[0].text) == "batch_size is not a number above 0"


# A log that is cut anywhere

CUTS = st.dictionaries(st.sampled_from(sorted(two_ranks())), st.integers(0, 400), min_size=1)
READINGS = st.builds(
    LogReading,
    st.just(STEP),
    st.sampled_from(["last", "mean", "median", "max"]),
    st.just("rank"),
    st.sampled_from([(), ("2",), ("epochs",)]),
)


@settings(max_examples=300, deadline=None)
@given(CUTS, READINGS, st.booleans())
def test_a_log_that_is_cut_gives_the_same_value_or_none(cuts: dict[str, int], speed: LogReading, by_rank: bool) -> None:
    files = (
        two_ranks()
        if by_rank
        else {"worker-0.log": closed(*(f"[rank{n}]:{line}" for n in (0, 1) for line in (RANK_0, RANK_1)[n]))}
    )
    with TemporaryDirectory() as folder:
        whole, _ = results(Path(folder), files, shape="1x2", speed=speed)
        assert set(whole) == {THROUGHPUT, ACCURACY}
        cut = {name: text[: cuts.get(name, len(text))] for name, text in files.items()}
        values, reasons = results(Path(folder), cut, shape="1x2", speed=speed)
    for name in (THROUGHPUT, ACCURACY):
        assert (name in values) != (name in reasons)
        assert values.get(name, whole[name]) == whole[name]


def test_a_metric_without_a_value_fails_its_case(tmp_path: Path) -> None:
    case = case_of("1x1", speed=SPEED, accuracy=LEARNT)
    trial = trial_of(tmp_path, worker("per step time: 1 ms", "Accuracy: 9/10"), case)
    found, missing = read_logged(trial, tmp_path)
    verdict = evaluate(case_values(make_trial(case, measurements=tuple(found), missing_results=tuple(missing)))).verdict
    assert verdict.ruling is Ruling.FAILED
    assert verdict.reason.startswith("accuracy: 1 lines of worker-0.log match")


def test_metrics_of_files_are_left_alone(tmp_path: Path) -> None:
    found, missing = read_logged(trial_of(tmp_path, worker("x"), make_case("1x1")), tmp_path)
    assert (found, missing) == ([], [])
