"""What frameworks print, read line by line, and the curves it makes."""

from __future__ import annotations

import itertools
import math

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from pytest_aisbench.model.metric import MOST, AccuracyPoint, Curve, warm_up
from pytest_aisbench.traininglog.curve import Progress, extend_curve, read_curve, seconds_to_accuracy
from pytest_aisbench.traininglog.linetable import line_time
from pytest_aisbench.traininglog.readers import MOST_CHARACTERS, read_line

ZOO = "epoch: [1/1] step: [10/312], loss: 2.300000, lr: 0.100000, per step time: 105.200 ms"
CLAS = (
    "[2022/04/04 17:51:12] root INFO: [Train][Epoch 1/20][Iter: 0/8]lr: 0.00031, CELoss: 4.64081, loss: 4.64081, "
    "batch_cost: 3.14893s, reader_cost: 2.57331, ips: 40.64869 images/sec, eta: 0:08:23"
)
PADDLE = (
    "[Epoch 1, iter: 4780] top1: 0.10312, top5: 0.27344, lr: 0.01000, loss: 5.34719, avg_reader_cost: 0.03644 sec, "
    "avg_batch_cost: 0.05536 sec, avg_samples: 64.0, avg_ips: 1156.08863 images/sec."
)
KERAS_2 = "40/40 - 4s - loss: 1.2125 - accuracy: 0.5426 - 4s/epoch - 89ms/step"
KERAS_3 = "80/80 - 1s - 10ms/step - accuracy: 0.7324 - loss: 0.6697"
KERAS_2_BAR = "40/40 [==============================] - 4s 89ms/step - loss: 1.2125 - val_accuracy: 0.75"
KERAS_3_BAR = (
    "\x1b[1m 1/80\x1b[0m \x1b[37m━━━━\x1b[0m \x1b[1m2s\x1b[0m 30ms/step - loss: 2.3\r"
    "\x1b[1m80/80\x1b[0m \x1b[32m━━━━\x1b[0m\x1b[37m\x1b[0m \x1b[1m1s\x1b[0m 10ms/step - accuracy: 0.7 - loss: 0.6697"
)
MLLOG = (
    ' 0: :::MLLOG {"namespace": "", "time_ms": 1719843792116, "event_type": "POINT_IN_TIME", "key": "tracked_stats", '
    '"value": {"throughput": 14214.65962521748}, "metadata": {"file": "/workspace/bert/run_pretraining.py", '
    '"lineno": 1850, "epoch_num": 799502}}'
)
BERT = (
    "epoch: 0.0, current epoch percent: 0.000, step: 1, outputs are (Tensor(shape=[1], dtype=Float32, "
    "[ 1.0856101e+01]), Tensor(shape=[], dtype=Bool, False), Tensor(shape=[], dtype=Float32, 65536))"
)
DONE = (
    "train done starttime:1.5 endtime:3.5 stepsize:10 batchsize:16 epochsize:2 alldatasum:320 "
    "single_throughput_rate:161.25"
)


def event(key: str, value: object = "null", **metadata: object) -> str:
    pairs = ", ".join(f'"{name}": {number}' for name, number in metadata.items())
    return f':::MLLOG {{"time_ms": 1, "key": "{key}", "value": {value}, "metadata": {{{pairs}}}}}'


@pytest.mark.parametrize(
    ("line", "expected"),
    [
        (CLAS, {"epoch": 1, "step": 0, "loss": 4.64081, "throughput": 40.64869, "ms_per_step": pytest.approx(3148.93)}),
        (PADDLE, {"epoch": 1, "step": 4780, "loss": 5.34719, "throughput": 1156.08863}),
        ("[2022/04/04 17:51:12] ppcls INFO: [Eval][Epoch 1][Avg]loss: 1.2, top1: 0.75, top5: 0.9", {"accuracy": 0.75}),
        (f"2023-02-17 11:43:14,405:INFO:{ZOO}", {"epoch": 1, "step": 10, "loss": 2.3, "ms_per_step": 105.2}),
        (f"{ZOO}, fps: 304.18 img/s", {"epoch": 1, "step": 10, "loss": 2.3, "ms_per_step": 105.2, "throughput": None}),
        (
            "epoch: [ 3/10] step: [ 85/ 85], lr: 0.001000, loss: nan, per step time: 3096.616 ms",
            {"epoch": 3, "step": 85, "loss": None, "has_loss": True, "ms_per_step": 3096.616},
        ),
        ("epoch: [1/90] step: [7/312], loss is 6.9", {"epoch": 1, "step": 7, "loss": 6.9, "ms_per_step": None}),
        ("eval epoch: 2, accuracy: 0.953125, elapsed: 3.214 s", {"accuracy": 0.953125, "elapsed": 3.214}),
        (event("run_start"), {"at": 0.001}),
        (event("eval_accuracy", 0.72), {"accuracy": 0.72, "at": 0.001}),
        ("step 10/938 - loss: 0.5 - acc: 0.8 - 5ms/step", {"step": 10, "loss": 0.5, "ms_per_step": 5.0}),
        (CLAS.replace("images/sec", "tokens/s"), {"loss": 4.64081, "throughput": None}),
        (
            "60000/60000 [=====] - 4s 50us/sample - loss: 0.2 - acc: 0.9",
            {"step": 60000, "throughput": pytest.approx(20_000), "ms_per_step": None},
        ),
        ("Iter #0: 26.1 img/sec per CPU", {"step": 1, "throughput": 26.1}),
        ("Img/sec per CPU: 26.1 +-0.0", {"throughput": 26.1, "final": True}),
        ("Total img/sec on 4 CPU(s): 104.5 +-0.1", {"total": 104.5, "final": True}),
        ("Epoch 3/24", {"epoch": 3, "step": 0}),
        (KERAS_2, {"step": 40, "loss": 1.2125, "ms_per_step": 89.0, "accuracy": None}),
        (KERAS_3, {"step": 80, "loss": 0.6697, "ms_per_step": 10.0, "accuracy": None}),
        (KERAS_2_BAR, {"step": 40, "loss": 1.2125, "ms_per_step": 89.0, "accuracy": 0.75}),
        (KERAS_3_BAR, {"step": 80, "loss": 0.6697, "ms_per_step": 10.0}),
        ("938/938 - 2s - loss: nan - 2s/epoch - 1.5s/step", {"loss": None, "has_loss": True, "ms_per_step": 1500.0}),
        (MLLOG, {"total": 14214.65962521748, "epoch": None}),
        (event("epoch_start", epoch_num=3), {"epoch": 3}),
        (event("eval_accuracy", 0.759, epoch_num=3), {"accuracy": 0.759}),
        (event("train_loss", 6.5, step=100), {"loss": 6.5, "step": 100}),
        (BERT, {"epoch": 1, "step": 1, "loss": 10.856101}),
        (DONE, {"throughput": 161.25, "batch": 16, "final": True}),
    ],
)
@pytest.mark.parametrize("prefix", ["", "[1,3]<stdout>:", "[3]<stdout>:", "[rank3]: ", "[default3]:"])
def test_a_line(prefix: str, line: str, expected: dict[str, object]) -> None:
    parsed = read_line(prefix + line.lstrip(" ").removeprefix("0: "))
    assert parsed
    rank, log_line = parsed
    assert rank.rpartition(",")[2] == ("3" if prefix else "")
    assert {name: getattr(log_line, name) for name in expected} == expected


@pytest.mark.parametrize(
    "line",
    [
        "",
        "80/80",
        "2022/04/04 is a date",
        "Epoch 1/2 begins",
        "Img/sec per CPU:",
        ":::MLLOG {",
        ":::MLLOG []",
        ':::MLLOG {"key": "eval_accuracy"',
        ':::MLLOG {"key": ["x"]}',
        event("epoch_start", epoch_num=799502),
        "[Epoch 1, iter: x] loss: 1",
    ],
)
def test_other_lines_say_nothing(line: str) -> None:
    assert read_line(line) is None


def test_keras_counts_epochs_and_an_evaluation_is_not_one() -> None:
    log = "".join(f"Epoch {epoch}/3\n{KERAS_3}\n" for epoch in (1, 2, 3))
    _, progress = extend_curve(Curve(), Progress(), f"{log}10/10 - 0s - 5ms/step - accuracy: 0.7 - loss: 9.0\n")
    assert (progress.epoch, progress.step, progress.loss, progress.ms_per_step) == (3, 80, 0.6697, 10.0)
    assert read_curve(f"{log}10/10 - 0s - 5ms/step - accuracy: 0.7 - loss: 9.0\n").speed.values == [100.0] * 3


def test_the_throughput_of_a_whole_job_is_not_taken_for_a_ranks() -> None:
    _, progress = extend_curve(Curve(), Progress(), f"{MLLOG}\n")
    assert (progress.total, progress.throughput) == (14214.65962521748, None)


def mindspore(*milliseconds: float) -> str:
    return "".join(
        f"epoch: {epoch} step: 10, loss is {1 / epoch}\nTrain epoch time: {10 * ms} ms, per step time: {ms} ms\n"
        for epoch, ms in enumerate(milliseconds, start=1)
    )


def test_a_curve_of_losses_and_speeds() -> None:
    curve = read_curve(mindspore(200, 100, 100, 100, 100))
    assert [(point.epoch, point.step, point.value) for point in curve.loss.points][:2] == [(1, 10, 1.0), (2, 10, 0.5)]
    assert (curve.speed.values, curve.unit, curve.of) == ([5.0, 10.0, 10.0, 10.0, 10.0], "steps/s", "rank")


def test_warm_up_and_steady_state_stand_beside_the_whole() -> None:
    pace = read_curve(mindspore(200, 100, 100, 100, 100)).pace
    assert pace
    assert (pace.warm_up_points, pace.warm_up, pace.steady, pace.unit) == (1, 5.0, 10.0, "steps/s")
    assert pace.whole == pytest.approx(50 / 6)  # five epochs in six times the time of a quick one
    assert str(pace) == (
        "8.33333 steps/s over the whole run, 10 in steady state, 5 in the warm-up of 1 point (one rank, from its log)"
    )
    with_batch = read_curve(mindspore(200, 100, 100, 100, 100) + DONE).pace
    assert with_batch
    assert (with_batch.unit, with_batch.steady, with_batch.warm_up) == ("samples/s", 160.0, 80.0)
    assert with_batch.whole == 161.25  # what the log says itself


@pytest.mark.parametrize(
    ("speeds", "slow"),
    [
        ([1, 10, 10], None),  # too few to tell
        ([10, 10, 10, 10], 0),
        ([5, 10, 10, 10], 1),
        ([2, 5, 10, 10.1, 9.9, 10], 2),
        ([9.7, 10, 10, 10, 10, 10], 0),  # within 5 %
        ([10, 10, 5, 10, 10, 10, 10, 10], 0),  # slow once, later: no warm-up
        ([12, 10, 10, 10, 10, 10], 0),  # fast at first: no warm-up
        ([8, 10, 14, 8, 12, 9, 13, 10], 0),  # within its own noise
        ([1, 1, 1, 1, 10, 10], None),  # slow beyond the middle
    ],
)
def test_the_rule_of_the_warm_up(speeds: list[float], slow: int | None) -> None:
    assert warm_up(speeds) == slow


MLPERF_RUN = """ 0: :::MLLOG {"time_ms": 1000000, "key": "init_start", "value": null, "metadata": {}}
 0: :::MLLOG {"time_ms": 2000000, "key": "run_start", "value": null, "metadata": {}}
 0: :::MLLOG {"time_ms": 2600000, "key": "eval_accuracy", "value": 0.71, "metadata": {"epoch_num": 1}}
 0: :::MLLOG {"time_ms": 3100500, "key": "eval_accuracy", "value": 0.76, "metadata": {"epoch_num": 2}}
 0: :::MLLOG {"time_ms": 3600000, "key": "eval_accuracy", "value": 0.755, "metadata": {"epoch_num": 3}}
"""
PADDLE_RUN = f"""{CLAS}
{CLAS.replace("17:51:12", "17:52:00").replace("Iter: 0/8", "Iter: 7/8")}
[2022/04/04 17:53:12] ppcls INFO: [Eval][Epoch 1][Avg]loss: 1.2, top1: 0.75, top5: 0.9
[2022/04/05 00:00:02] ppcls INFO: [Eval][Epoch 2][Avg]loss: 1.0, top1: 0.78, top5: 0.9
"""
OUR_RUN = """epoch: 1 step: 60, loss is 1.5
Train epoch time: 500 ms, per step time: 8 ms
eval epoch: 1, accuracy: 0.5, elapsed: 0.700 s
epoch: 2 step: 60, loss is 1.0
Train epoch time: 500 ms, per step time: 8 ms
eval epoch: 2, accuracy: 0.9375, elapsed: 1.400 s
eval ckpt result:{'accuracy': 0.94}
"""


@pytest.mark.parametrize(
    ("log", "times"),
    [
        (MLPERF_RUN, {0.7: 600.0, 0.72: 1100.5, 0.76: 1100.5, 0.77: None}),
        (PADDLE_RUN, {0.75: 120.0, 0.751: 22130.0, 0.79: None}),
        (OUR_RUN, {0.0: 0.7, 0.51: 1.4, 0.9375: 1.4, 0.94: None}),
        ("eval ckpt result:{'accuracy': 0.94}\n", {0.5: None}),
        ("[2022/04/04 17:53:12] ppcls INFO: [Eval][Epoch 1][Avg]loss: 1.2, top1: 0.75\n", {0.5: None}),
        ("eval epoch: 1, accuracy: nan, elapsed: 0.7 s\neval epoch: 1, accuracy: 0.9, elapsed: -3 s\n", {0.5: None}),
    ],
)
def test_the_time_to_an_accuracy_is_that_of_the_first_evaluation_at_or_above(
    log: str, times: dict[float, float | None]
) -> None:
    assert {target: seconds_to_accuracy(read_curve(log), target) for target in times} == times


def test_evaluations_stand_in_the_curve_with_their_epochs() -> None:
    assert read_curve(OUR_RUN).evaluations == (
        AccuracyPoint(1, 0.5, 0.7),
        AccuracyPoint(2, 0.9375, 1.4),
        AccuracyPoint(2, 0.94),
    )
    assert len(read_curve(OUR_RUN).speed.points) == 2


def test_of_very_many_evaluations_some_are_kept_and_no_time_is_too_short() -> None:
    points = [(number / 1000, float(number)) for number in range(900)]
    curve = read_curve("".join(f"eval epoch: 1, accuracy: {much}, elapsed: {after} s\n" for much, after in points))
    assert len(curve.evaluations) <= MOST
    assert seconds_to_accuracy(curve, 0.899) == 899.0
    late = seconds_to_accuracy(curve, 0.5)
    assert late is not None
    assert late >= 500


@pytest.mark.parametrize(
    ("line", "seconds"),
    [
        ("[2022/04/04 17:51:12] x", 0.0),
        ("[2022-04-04 17:51:12.250] x", 0.25),
        ("[2022/04/05 00:00:00,5] x", 22128.5),
        ("[2022/05/04 17:51:12] x", 30 * 86400.0),
        ("[2021/04/04 17:51:12] x", -365 * 86400.0),
        ("[2024/04/04 17:51:12] x", 731 * 86400.0),
    ],
)
def test_stamps_count_days_months_and_leap_years(line: str, seconds: float) -> None:
    began, now = line_time("[2022/04/04 17:51:12]"), line_time(line)
    assert began is not None
    assert now is not None
    assert now - began == seconds
    assert line_time(f" {line}") is line_time("17:51:12") is None


def test_ranks_that_share_a_log_make_one_curve() -> None:
    log = "".join(line * 8 for line in mindspore(200, 100, 100, 100).splitlines(keepends=True))
    curve = read_curve(log, ranks=8)
    assert (curve.speed.values, len(curve.loss.points)) == ([5.0, 10.0, 10.0, 10.0], 4)


def test_a_log_without_speeds_or_with_only_the_last_word() -> None:
    assert read_curve("epoch: 1 step: 2, loss is 3\n").pace is None
    pace = read_curve("Total img/sec on 4 CPU(s): 104.5 +-0.1").pace
    assert pace
    assert (pace.whole, pace.steady, pace.of) == (104.5, None, "job")


@pytest.mark.parametrize(("mean", "whole"), [("", 4 / (1 / 10 + 3 / 26)), ("Img/sec per CPU: 25.5 +-0.0\n", 25.5)])
def test_the_total_of_a_job_is_no_speed_of_one_rank(mean: str, whole: float) -> None:
    lines = "".join(f"Iter #{at}: {speed} img/sec per CPU\n" for at, speed in enumerate((10, 26, 26, 26)))
    pace = read_curve(f"{lines}{mean}Total img/sec on 4 CPU(s): 104.5 +-0.1\n").pace
    assert pace
    assert pace.whole == pytest.approx(whole)
    assert (pace.warm_up, pace.steady, pace.of) == (10.0, 26.0, "rank")


def test_a_long_log_keeps_its_shape_and_few_points() -> None:
    log = "".join(f"epoch: 1 step: {step}, loss is {10_000 - step}\n" for step in range(1, 10_000))
    losses = read_curve(log).loss
    assert MOST // 2 <= len(losses.points) <= MOST
    assert losses.points[0].step == 1
    assert losses.points[-1].step > 10_000 - 2 * losses.stride
    gaps = {b.step - a.step for a, b in itertools.pairwise(losses.points)}
    assert gaps <= {losses.stride, losses.stride // 2}


LINES = st.sampled_from(
    [
        CLAS, PADDLE, KERAS_2, KERAS_3, KERAS_2_BAR, KERAS_3_BAR, MLLOG, BERT, DONE,
        "Epoch: [0][ 1/11]\tTime  0.033 ( 0.033)\tLoss 2.2e+00 (2.2e+00)", "{'loss': '10.61', 'epoch': '0.5'}",
        "Epoch 1/3", "Iter #0: 26.1 img/sec per CPU", "epoch: 1 step: 1, loss is 1",
        "Train epoch time: 1e-320 ms, per step time: 1e-320 ms", event("epoch_start", epoch_num="1e400"),
        event("throughput", 10**400), event("tracked_stats", '{"throughput": -1}'), event("train_loss", "NaN"),
    ]
)  # fmt: skip


@st.composite
def mangled(draw: st.DrawFn) -> str:
    line = draw(LINES)
    at = draw(st.integers(0, len(line)))
    put = draw(
        st.one_of(
            st.just(""),
            st.text(max_size=3),
            st.sampled_from(
                [
                    "9" * 400,
                    "9" * MOST_CHARACTERS,
                    " " * MOST_CHARACTERS,
                    "-",
                    "nan",
                    "inf",
                    "\r",
                    "x\r",
                    "\r  \r",
                    "\x1b[",
                    "{",
                ]
            ),
        )
    )
    return (
        draw(st.sampled_from(["", "[1,0]<stdout>:", "[default1]:"]))
        + line[:at]
        + put
        + line[at + draw(st.integers(0, 5)) :]
    )


@settings(max_examples=300)
@given(
    st.lists(st.one_of(mangled(), st.text(max_size=30)), max_size=12),
    st.lists(st.integers(0, 500) | st.integers(0, 3 * MOST_CHARACTERS), max_size=4).map(sorted),
    st.integers(1, 3),
)
@pytest.mark.slow
def test_no_log_breaks_a_reader_and_its_pieces_make_no_difference(
    lines: list[str], cuts: list[int], ranks: int
) -> None:
    text = "\n".join(lines) + "\n"
    whole = read_curve(text, ranks)
    pace = whole.pace
    for value in [*whole.loss.values, *whole.speed.values, *((pace.whole,) if pace else ())]:
        assert math.isfinite(value)
    curve, progress = Curve(), Progress(ranks=ranks)
    for start, end in itertools.pairwise([0, *cuts, len(text)]):
        curve, progress = extend_curve(curve, progress, text[start:end])
        assert len(progress.rest) <= 2 * MOST_CHARACTERS
    assert curve == whole


def test_the_model_zoo_of_today_has_a_curve() -> None:
    lines = [
        f"2023-02-17 11:43:14,405:INFO:epoch: [{epoch}/2] step: [{step}/300], loss: {4 / epoch}, lr: 0.1, "
        f"per step time: {900 if step == 100 and epoch == 1 else 100} ms\n"
        for epoch in (1, 2)
        for step in (100, 200, 300)
    ]
    curve = read_curve("".join(lines))
    assert curve.loss.values == [4.0] * 3 + [2.0] * 3
    assert curve.pace is not None
    assert curve.pace.steady == pytest.approx(10.0)
    assert (curve.pace.unit, curve.pace.epochs) == ("steps/s", 2)
