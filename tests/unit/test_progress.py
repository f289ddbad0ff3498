"""How far a training is, read from what it prints."""

from __future__ import annotations

import itertools

import pytest
from hypothesis import given
from hypothesis import strategies as st

from pytest_aisbench.model.metric import Curve
from pytest_aisbench.traininglog.curve import Progress, extend_curve

BERT = (
    "epoch: 0.0, current epoch percent: 0.000, step: 1, outputs are (Tensor(shape=[1], dtype=Float32, "
    "[ 1.0856101e+01]), Tensor(shape=[], dtype=Bool, False), Tensor(shape=[], dtype=Float32, 65536))"
)
DGU = (
    "epoch: 0, current epoch percent: 1.000, step: 6094, outputs are (Tensor(shape=[], dtype=Float32, "
    "value= 0.714172), Tensor(shape=[], dtype=Bool, value= False))"
)
DONE = (
    "train done starttime:1.5 endtime:3.5 stepsize:10 batchsize:16 epochsize:2 alldatasum:320 "
    "single_throughput_rate:161.25"
)


def read_progress(progress: Progress, text: str) -> Progress:
    return extend_curve(Curve(), progress, text)[1]


def after(*lines: str, ranks: int = 1) -> Progress:
    return read_progress(Progress(ranks=ranks), "".join(f"{line}\n" for line in lines))


@pytest.mark.parametrize(
    ("line", "epoch", "step", "loss"),
    [
        ("epoch: 1 step: 195, loss is 1.9601055", 1, 195, 1.9601055),
        ("epoch:1 step:195, loss is 1.9601055", 1, 195, 1.9601055),
        ("epoch: 3, step: 7, loss is 1e-05\r", 3, 7, 1e-05),
        ("[1,0]<stdout>:epoch: 2 step: 195, loss is 0.5", 2, 195, 0.5),
        ("[0]<stdout>:epoch: 2 step: 195, loss is 0.5", 2, 195, 0.5),
        ("[rank3]: epoch: 2 step: 195, loss is 0.5", 2, 195, 0.5),
        (" 0: epoch: 2 step: 195, loss is 0.5", 2, 195, 0.5),
        ("epoch: 2 step: 195, loss is nan", 2, 195, None),
        (BERT, 1, 1, 10.856101),
        (DGU, 1, 6094, 0.714172),
    ],
)
def test_a_line_of_loss(line: str, epoch: int, step: int, loss: float | None) -> None:
    progress = after(line)
    assert (progress.epoch, progress.step, progress.loss, progress.lines) == (epoch, step, loss, 1)


@pytest.mark.parametrize(
    ("line", "field", "value"),
    [
        ("epoch time: 120480.930 ms, per step time: 696.422 ms", "ms_per_step", 696.422),
        ("Train epoch time: 11610.474 ms, per step time: 145.131 ms", "ms_per_step", 145.131),
        ("Epoch time: 9523.442, per step time: 5.079", "ms_per_step", 5.079),
        (DONE, "throughput", 161.25),
        ("eval ckpt result:{'accuracy': 0.96875}", "accuracy", 0.96875),
        ("eval ckpt result:{'top_1_accuracy': 0.76, 'top_5_accuracy': 0.93}", "accuracy", 0.76),
        ("eval ckpt result:0.759", "accuracy", 0.759),
        ("Accuracy is:  0.875", "accuracy", 0.875),
    ],
)
def test_a_line_of_time_throughput_or_accuracy(line: str, field: str, value: float) -> None:
    progress = after(line)
    assert getattr(progress, field) == value
    assert (progress.epoch, progress.loss, progress.lines) == (0, None, 1)


@pytest.mark.parametrize(
    "line",
    [
        "",
        "[WARNING] ME(12:140,MainProcess):2024-01-01-10:00:00.000.000 [mindspore/context.py:1] epoch: 1 step: 2",
        "[ModelArts Service Log]2024-01-01 10:00:00,000 - INFO - user script started",
        "report >> throughput_list:[450.77798444604605, 450.38567065252664] average:450.58182754928634",
        "weights crc32:0badcafe",
        "epoch: one step: two, loss is three",
    ],
)
def test_other_lines_are_only_counted(line: str) -> None:
    assert after(line) == Progress(lines=1)


def test_what_a_miniature_prints() -> None:
    progress = after(
        "[ModelArts Service Log]2024-01-01 10:00:00,000 - INFO - user script started",
        "epoch: 1 step: 10, loss is 2.302585",
        "Train epoch time: 12.345 ms, per step time: 1.234 ms",
        "epoch: 2 step: 10, loss is 0.5",
        "Train epoch time: 10.000 ms, per step time: 1.000 ms",
        DONE,
        "weights crc32:0badcafe",
        "eval ckpt result:{'accuracy': 0.96875}",
    )
    assert (progress.epoch, progress.step, progress.loss, progress.ms_per_step) == (2, 10, 0.5, 1.0)
    assert (progress.throughput, progress.accuracy, progress.lines) == (161.25, 0.96875, 8)


def test_a_loop_of_trainings_that_each_begin_at_epoch_1_is_counted_on() -> None:
    once = ["epoch: 1 step: 1, loss is 3.0", "epoch: 1 step: 2, loss is 2.0"]
    assert [after(*once * times).epoch for times in (1, 2, 3)] == [1, 2, 3]
    assert after(*["epoch: 1 step: 195, loss is 3.0"] * 4).epoch == 4
    again = ["epoch: 1 step: 5, loss is 3.0", "epoch: 2 step: 5, loss is 3.0"]
    assert after(*again * 3).epoch == 6


def test_ranks_that_share_a_log_are_not_taken_for_restarts() -> None:
    mine = [f"epoch: {epoch} step: 5, loss is {epoch}.0" for epoch in (1, 2, 3)]
    assert after(*mine, *mine, ranks=2).epoch == 3  # one rank's lines came in one piece
    assert after(*[line for line in mine for _ in range(8)], ranks=8).epoch == 3
    assert after(*["epoch: 1 step: 5, loss is 1.0"] * 16, ranks=8).epoch == 2
    assert after(*mine, ranks=8).epoch == 3  # only one of eight prints


def test_of_ranks_that_are_named_one_is_followed() -> None:
    lines = [
        f"[1,{rank}]<stdout>:epoch: {epoch} step: 5, loss is {rank}.5" for epoch in (1, 2) for rank in (3, 0, 1, 2)
    ]
    progress = after(*lines)
    assert (progress.epoch, progress.loss) == (2, 3.5)


def test_a_line_without_an_end_is_held_back_and_does_not_grow_for_ever() -> None:
    begun = read_progress(Progress(), "epoch: 1 step: 19")
    assert (begun.epoch, begun.lines) == (0, 0)
    assert read_progress(begun, "5, loss is 1.5\n").step == 195
    endless = Progress()
    for _ in range(100):
        endless = read_progress(endless, "x" * 1000)
    assert len(endless.rest) < 10_000
    assert read_progress(endless, "\nepoch: 1 step: 1, loss is 1\n").epoch == 1


SPOKEN = st.sampled_from(
    [
        *(f"epoch: {epoch} step: {step}, loss is 0.{step}" for epoch in (1, 2) for step in (1, 2)),
        "[1,0]<stdout>:epoch: 1 step: 1, loss is 0.25",
        "[1,1]<stdout>:epoch: 1 step: 1, loss is nan",
        "Train epoch time: 11610.474 ms, per step time: 145.131 ms\r",
        "x" * 5000,
        DONE,
        DGU,
        "eval ckpt result:{'accuracy': 0.5}",
    ]
)


@given(st.lists(st.one_of(SPOKEN, st.text(max_size=20))), st.lists(st.integers(0, 8000), max_size=8), st.integers(1, 3))
@pytest.mark.slow
def test_the_pieces_in_which_a_log_arrives_make_no_difference(lines: list[str], cuts: list[int], ranks: int) -> None:
    text = "\n".join(lines)
    places = [0, *sorted(min(cut, len(text)) for cut in cuts), len(text)]
    progress = Progress(ranks=ranks)
    for begin, end in itertools.pairwise(places):
        progress = read_progress(progress, text[begin:end])
    assert progress == read_progress(Progress(ranks=ranks), text)
