"""What trainings of language models print: torchtitan, Megatron and its descendants, NeMo, Transformers' Trainer."""

from __future__ import annotations

import math
import random
import re
from collections.abc import Iterator
from typing import Any

import pytest

from pytest_aisbench.model.metric import Curve
from pytest_aisbench.report.terminal import curve_lines
from pytest_aisbench.traininglog.curve import Progress, extend_curve, read_curve
from pytest_aisbench.traininglog.readers import plain_line, read_line

TITAN = (
    "[rank0]:[titan] 2025-12-13 06:45:34,345 - root - INFO - step: 530  loss:  5.9866  grad_norm:  0.5402  "
    "memory: 63.36GiB(45.35%)  tps: 829  tflops: 23.15  mfu: 2.34%"
)
TITAN_COLOURED = (
    "[titan] 2025-12-13 06:45:34,345 - root - INFO - \x1b[31mstep:  7  \x1b[32mloss:  5.9866  \x1b[38;2;180;60;0m"
    "grad_norm:  0.5402  \x1b[38;2;54;234;195mmemory: 63.36GiB(45.35%)  \x1b[34mtps: 21,734  \x1b[36mtflops: 1,023.15  "
    "\x1b[35mmfu: N/A\x1b[39m"
)
TITAN_NPU = TITAN + "  elapsed_time_per_step: 1.2s"
VALIDATE = (
    "[titan] 2025-12-13 06:45:34,345 - root - INFO - validate step: 530  loss:  5.1  memory: 63.36GiB(45.35%)  tps: 829"
)
MEGATRON = (
    " [2025-05-27 15:23:07] iteration        1/   24000 | consumed samples:         1024 | elapsed time per "
    "iteration (ms): 271607.0 | throughput per GPU (TFLOP/s/GPU): 40.4 | global batch size:  1024 | "
    "lm loss: 1.192634E+01 | loss scale: 1.0 | grad norm: 8.219 | number of skipped iterations:   0 | number of nan "
    "iterations:   0 |"
)
MINDSPEED = MEGATRON.replace(" | global", " | core attn ratio (%): 12.5 | global")
NAN = (
    MEGATRON.replace("1/   24", "2/   24")
    .replace("lm loss: 1.192634E+01 | ", "")
    .replace("nan iterations:   0", "nan iterations:   1")
)
DEEPSPEED = (
    " iteration        5/   91552 | consumed samples:         2560 | consumed tokens:      5242880 | elapsed time per "
    "iteration (ms): 52730.7 | learning rate: 6E-07 | global batch size:   512 | lm loss: 1.0E+01 | loss scale: 1.0 | "
    "actual seqlen:  2048 | number of skipped iterations:   2 | number of nan iterations:   0 | samples per second: "
    "9.710 | TFLOPs: 167.52 |"
)
ROCM = (
    "[20251202 09:12:08][rank-7/8][INFO ] [--------trainer.py:2560] : iteration 126/ 5000 | consumed samples: 16128 | "
    "elapsed time per iteration (ms): 13372.8/13364.7 | hip mem usage/free/total/usage_ratio: "
    "153.81GB/102.17GB/255.98GB/60.09% | throughput per GPU (TFLOP/s/GPU): 567.6/568.0 | tokens per GPU (tokens/s/GPU):"
    " 9801.4/9807.3 | learning rate: 9.98E-06 | global batch size: 128 | lm loss: 6.548988E-03 | loss scale: 1.0 | "
    "grad norm: 0.061 | number of skipped iterations: 0 | number of nan iterations: 0 |"
)
FSDP2 = (
    "INFO [2026-01-15 10:00:00] >>  iteration 1/ 2000 | consumed samples: 8 | consumed tokens: 564 | elapsed time per "
    "iteration (ms): 7827.39 | tokens/s: 72.05 | mfu: 0.01 | learning rate: 1E-06 | global batch size: 8 | "
    "loss: 1.19E+01 | grad norm: 8.2 |"
)
NEMO = (
    "Training epoch 0, iteration 45/99 | lr: 6.9e-06 | global_batch_size: 128 | global_step: 45 | reduced_train_loss: "
    "11.96 | train_step_timing in s: 6.08 | TFLOPS_per_GPU: 1.249e+03 | consumed_samples: 5888"
)
BRIDGE = "Step Time : 9.09s GPU utilization: 663.5MODEL_TFLOP/s/GPU"
TRAINER = (
    "{'loss': 2.6031, 'grad_norm': 1.88, 'learning_rate': 5e-07, 'epoch': 2.24, 'num_input_tokens_seen': 19660800, "
    "'train_runtime': 252.007, 'train_tokens_per_second': 78016.894}"
)
TRAINER_ENDS = (
    "{'train_runtime': 299.1983, 'train_samples_per_second': 8.021, 'train_tokens_per_second': 65711.5, 'epoch': 2.24}"
)
DIALECTS: dict[str, tuple[str, dict[str, Any]]] = {
    "torchtitan": (TITAN, {"step": 530, "loss": 5.9866, "throughput": 829.0, "unit": "tokens/s", "total": None}),
    "torchtitan, coloured": (TITAN_COLOURED, {"step": 7, "loss": 5.9866, "throughput": 21734.0, "unit": "tokens/s"}),
    "torchtitan, NPU": (TITAN_NPU, {"step": 530, "throughput": 829.0, "ms_per_step": 1200.0}),
    "Megatron": (
        MEGATRON,
        {"step": 1, "steps": 24000, "loss": 11.92634, "ms_per_step": 271607.0, "unit": "samples/s", "nans": 0,
         "total": pytest.approx(1024 / 271.607), "skipped": 0, "throughput": None, "epoch": None},
    ),
    "MindSpeed-LLM": (MINDSPEED, {"step": 1, "steps": 24000, "loss": 11.92634, "ms_per_step": 271607.0}),
    "Megatron without its loss": (NAN, {"step": 2, "loss": None, "has_loss": True, "nans": 1}),
    "Megatron-DeepSpeed": (DEEPSPEED, {"step": 5, "steps": 91552, "total": 9.71, "unit": "samples/s", "skipped": 2}),
    "ROCm": (ROCM, {"step": 126, "ms_per_step": 13372.8, "throughput": 9801.4, "unit": "tokens/s", "total": None}),
    "ROCm of 26.5": (
        ROCM.replace("tokens per GPU (tokens/s/GPU)", "tokens/s/GPU inst/harmonic mean"), {"throughput": 9801.4}
    ),
    "MindSpeed FSDP2": (FSDP2, {"step": 1, "steps": 2000, "loss": 11.9, "total": 72.05, "unit": "tokens/s"}),
    "old DeepSpeed": (
        " iteration  10/ 100 | elapsed time per iteration (ms): 250.0 | learning rate 1E-04 | lm loss 9.1E+00 |",
        {"step": 10, "loss": 9.1, "ms_per_step": 250.0, "total": None},
    ),
    "NeMo 2": (NEMO, {"epoch": 1, "step": 46, "steps": 100, "loss": 11.96, "total": pytest.approx(128 / 6.08)}),
    "NeMo 2 of Ray": (f"(pretraining, pid=4112) {NEMO}", {"epoch": 1, "step": 46, "ms_per_step": 6080.0}),
    "Megatron-Bridge": (BRIDGE, {"ms_per_step": 9090.0, "step": None, "loss": None, "throughput": None}),
    "Trainer": (TRAINER, {"loss": 2.6031, "epoch": 3, "total": 78016.894, "unit": "tokens/s", "final": True}),
    "Trainer at its end": (TRAINER_ENDS, {"has_loss": False, "total": 65711.5, "unit": "tokens/s", "final": True}),
}  # fmt: skip


@pytest.mark.parametrize("dialect", DIALECTS)
def test_a_line(dialect: str) -> None:
    line, expected = DIALECTS[dialect]
    parsed = read_line(line)
    assert parsed
    assert {name: getattr(parsed[1], name) for name in expected} == expected


@pytest.mark.parametrize(
    "line",
    [
        VALIDATE,
        " validation loss at iteration 1000 | lm loss value: 1.0E+01 | lm loss PPL: 2.2E+04 | ",
        TITAN.replace("step: 530", "step: 5x30"),
        MEGATRON.replace("1/   24000 |", "1/   24"),
        "saving checkpoint at iteration 5 loss",
    ],
)
def test_other_lines_say_nothing(line: str) -> None:
    assert read_line(line) is None


@pytest.mark.parametrize(
    ("line", "absent"),
    [
        (TITAN.replace("tps: 829  ", "tps: 82[rank1]:9  "), "throughput"),
        (TITAN_COLOURED.replace("21,734", "21,73"), "throughput"),
        (TITAN_COLOURED.replace("21,734", "1e999"), "throughput"),
        (TITAN.replace("tps: 829", "tps: -829"), "throughput"),
        (TITAN.replace(" 5.9866", " nan"), "loss"),
        (MEGATRON.replace("1.192634E+01", "1.19 2634E+01"), "loss"),
        (MEGATRON.replace("1.192634E+01", "1.1926nan"), "loss"),
        (MEGATRON.replace("lm loss", "lm loss: 3 | lm loss"), "loss"),
        (MEGATRON[: MEGATRON.index("2634E+01")], "loss"),
        (MEGATRON.replace("271607.0", "0.0"), "total"),
        (MEGATRON.replace("271607.0", "1e-320"), "total"),
        (ROCM.replace("9801.4/9807.3", "9801.4/9807.3/1"), "throughput"),
        (NEMO.replace("6.08", "6.0.8"), "ms_per_step"),
    ],
)
def test_a_torn_number_is_none(line: str, absent: str) -> None:
    parsed = read_line(line)
    assert parsed
    assert getattr(parsed[1], absent) is None


def megatron(step: int, ms: float, *changes: tuple[str, str]) -> str:
    line = (
        MEGATRON.replace("       1/", f"{step:8}/")
        .replace("271607.0", str(ms))
        .replace("1.192634E+01", f"{12 - step / 10:E}")
    )
    for change in changes:
        line = line.replace(*change)
    return f"{line}\n"


def test_megatrons_curve_counts_skipped_steps_and_carries_no_loss_over_a_nan() -> None:
    log = megatron(1, 4096) + megatron(2, 1024, ("skipped iterations:   0", "skipped iterations:   1"))
    log += megatron(3, 1024) + megatron(4, 1024)
    curve, progress = extend_curve(Curve(), Progress(), log)
    assert (progress.step, progress.steps, progress.loss) == (4, 24000, 11.6)
    assert (curve.unit, curve.of, curve.speed.values) == ("samples/s", "job", [250.0, 1000.0, 1000.0, 1000.0])
    assert (curve.skipped, curve.nans) == (1, 0)
    lost = NAN.replace("       2/", "       5/")
    curve, progress = extend_curve(curve, progress, f"{lost}\n")
    assert (progress.step, progress.loss, len(curve.loss.points)) == (5, None, 4)
    assert (curve.skipped, curve.nans) == (1, 1)
    assert curve_lines(curve)[-1] == "steps  1 skipped, 1 with a loss that is not finite"
    assert read_curve(f"{TITAN}\n").nans is None


def test_megatron_bridge_prints_two_lines_for_each_step() -> None:
    log = "".join(f"Step Time : {ms / 1000:.2f}s GPU utilization: 1.0MODEL_TFLOP/s/GPU\n{megatron(step, ms)}"
                  for step, ms in enumerate((2048, 1024, 1024, 1024), start=1))  # fmt: skip
    curve = read_curve(log, ranks=8)
    assert (curve.unit, curve.of, curve.speed.values) == ("samples/s", "job", [500.0, 1000.0, 1000.0, 1000.0])
    alone = read_curve(f"{BRIDGE}\n" * 4)
    assert alone.unit == "steps/s"
    assert alone.speed.values == pytest.approx([1 / 9.09] * 4)


def test_the_pace_is_in_tokens() -> None:
    log = "".join(
        TITAN.replace("step: 530", f"step: {step}").replace("tps: 829", f"tps: {speed:,}") + f"\n{VALIDATE}\n"
        for step, speed in enumerate((5000, 20000, 20000, 20000, 20000), start=1)
    )
    assert str(read_curve(log).pace) == (
        "12500 tokens/s over the whole run, 20000 in steady state, 5000 in the warm-up of 1 point"
        " (one rank, from its log)"
    )
    assert str(read_curve(f"{TRAINER}\n{TRAINER_ENDS}\n").pace) == (
        "65711.5 tokens/s over the whole run (the whole job, from its log)"
    )
    assert read_curve(f"{TRAINER}\n").loss.values == [2.6031]


_NUMBER = re.compile(r"\d[\d.,]*(?:[eE][-+]?\d+)?")
_THOUSANDS = re.compile(r"(?<=\d),(?=\d{3}(?!\d))")
_RUBBISH = (
    "",
    "-",
    ".",
    ",",
    " ",
    "  ",
    "|",
    "/",
    ":",
    "nan",
    "inf",
    "e9",
    "1e999",
    "x",
    "\x1b[31m",
    "\x00",
    "9" * 400,
    "，",
    "٣",
)


def mutated(count: int, seed: int) -> Iterator[str]:
    """Lines of all dialects, each with one to three wounds: a number replaced, text cut out or put in, a line in it."""
    dice = random.Random(seed)
    lines = [line for line, _ in DIALECTS.values()]
    for _ in range(count):
        line = dice.choice(lines)
        for _ in range(dice.randint(1, 3)):
            at = dice.randrange(len(line) + 1)
            kind = dice.randrange(5)
            if kind == 0:
                line = line[:at] + dice.choice(_RUBBISH) + line[at + dice.randrange(4) :]
            elif kind == 1:
                line = line[:at]
            elif kind == 2:
                line = line[:at] + dice.choice(lines) + line[at:]
            elif kind == 3 and (numbers := list(_NUMBER.finditer(line))):
                number = dice.choice(numbers)
                line = line[: number.start()] + dice.choice(_RUBBISH) + line[number.end() :]
            else:
                line = line[:at] + line[dice.randrange(len(line) + 1) :]
        yield line


def check_mutated(count: int, seed: int = 20) -> int:
    """How many of so many lines a reader understood; none may break a reader, or give a number that is none."""
    understood = 0
    for line in mutated(count, seed):
        parsed = read_line(line)
        if not parsed:
            continue
        understood += 1
        log_line = parsed[1]
        for name in ("loss", "ms_per_step", "throughput", "total"):
            value = getattr(log_line, name)
            assert value is None or math.isfinite(value), line
        if log_line.final:  # of the Trainer, whose numbers may have a sign
            continue
        whole = re.split(r"[\s|/:'{},]+", _THOUSANDS.sub("", plain_line(line)))
        for value in (log_line.loss, log_line.throughput):
            assert value is None or any(_is(value, text) for text in whole), line
        for speed in (log_line.throughput, log_line.total, log_line.ms_per_step):
            assert speed is None or speed > 0, line
        pace = read_curve(line).pace
        assert pace is None or 0 < pace.whole < math.inf, line
    return understood


def _is(value: float, text: str) -> bool:
    try:
        return float(text) == value
    except ValueError:
        return False


def test_no_wounded_line_gives_a_number_that_is_none() -> None:
    assert check_mutated(2_000) > 500


if __name__ == "__main__":
    print(check_mutated(100_000, seed=7), "of 100,000 lines understood, no number that is none")
