"""A curve as a shell shows it."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from pytest_aisbench.report.terminal import curve_lines, sparkline
from pytest_aisbench.traininglog.curve import read_curve

LOG = "".join(
    f"epoch: {epoch} step: 10, loss is {8 / epoch}\nTrain epoch time: 1 ms, per step time: {ms} ms\n"
    for epoch, ms in enumerate((200, 100, 100, 100), start=1)
)


def test_loss_speed_and_pace() -> None:
    assert curve_lines(read_curve(LOG)) == [
        "loss   █▃▁▁  8 → 2 at epoch 4 step 10",
        "speed  ▁███  5 → 10 at epoch 4 step 10 steps/s",
        "pace   8 steps/s over the whole run, 10 in steady state, 5 in the warm-up of 1 point (one rank, from its log)",
    ]
    assert curve_lines(read_curve("nothing")) == []


@given(st.lists(st.floats(-1e300, 1e300), min_size=1, max_size=400))
def test_any_values_fit_a_row(values: list[float]) -> None:
    assert 1 <= len(sparkline(values)) <= 60
