"""What is drawn while a run lasts, line by line."""

from __future__ import annotations

import time
from dataclasses import replace
from typing import Any

import pytest

from pytest_aisbench.engine.submit import new_trial
from pytest_aisbench.model.case import Case, Shape
from pytest_aisbench.model.job import Job, Phase
from pytest_aisbench.model.metric import Curve, Metric
from pytest_aisbench.model.trial import Step, Trial
from pytest_aisbench.report.live import Scene, bar_lines, heartbeat_line
from pytest_aisbench.report.text import display_width
from pytest_aisbench.traininglog import activity
from pytest_aisbench.traininglog.activity import JobActivity
from pytest_aisbench.traininglog.curve import Progress, extend_curve

NOW = 10_000.0
RESNET, BERT = {"epoch_size": "90", "batch_size": "256"}, {"epochs": "40"}


@pytest.fixture
def make(case: Case) -> Any:
    def trial(name: str, shape: str, phase: Phase | None, since: float = 0.0, **changes: Any) -> Trial:
        metrics = {"throughput": Metric("throughput", "images/s")}
        parameters = changes.pop("parameters", {})
        workload = replace(case.workload, name=name, parameters=parameters, metrics=metrics)
        begun = new_trial("run-1", replace(case, workload=workload, shape=Shape.parse(shape)), NOW - since)
        if phase is None:
            return replace(begun, **changes)
        job = Job("job-1", phase, phase.value.title())
        changes = {"step": Step.WATCH, **changes}
        return replace(begun, job=job, job_id="job-1", times={phase.value.lower(): NOW - since}, **changes)

    return trial


def heard(text: str, **changes: Any) -> JobActivity:
    known, progress = extend_curve(Curve(), Progress(ranks=8), text)
    return JobActivity(NOW, progress, known, **changes)


@pytest.fixture
def scene(make: Any) -> Scene:
    trials = [
        make("done", "1x8", Phase.SUCCEEDED, step=Step.DONE),
        make("queued", "4x8", Phase.PENDING, 61, expected_s=600.0),
        make("resnet50", "2x8", Phase.RUNNING, 600, parameters=RESNET, expected_s=1800.0),
        make("bert", "1x8", Phase.RUNNING, 30, parameters=BERT, expected_s=4000.0),
        make("plain", "1x1", Phase.RUNNING, 5),
        make("ends", "1x1", Phase.SUCCEEDED, 2, step=Step.HARVEST),
        *[make(f"waits{number}", "1x8", None, expected_s=1200.0) for number in range(3)],
    ]
    losses = "".join(
        f"epoch: {epoch} step: 5004, loss is {loss}\n" for epoch, loss in ((23, 6.9), (24, 4.0), (25, 2.1))
    )
    resnet = heard(f"{losses}epoch time: 1 ms, per step time: 289.5 ms\n", epoch_changed_at=NOW)
    told = {trials[2].id: resnet, trials[4].id: heard("epoch: 2 step: 7, loss is 2\n", stalled=True)}
    return Scene(NOW, NOW - 3725, trials, told, 4)


def test_a_wide_terminal(scene: Scene) -> None:
    told = "epoch 25/90, ~14150 images/s, loss 2.1 █▄▁"
    assert bar_lines(scene, 139) == [
        f"resnet50-2x8  running  0:10:00  [#####---------------]  28%  eta 0:26:00  {told}",
        "bert-1x8      running  0:00:30  [--------------------]   1%  eta 1:06:10",
        "plain-1x1     stalled  0:00:05  epoch 2 step 7, loss 2",
        "ends-1x1      harvest  0:00:02",
        "queued-4x8    queued   0:01:01",
        "1/9 done, 4 running, 4 waiting, eta 1:06:10",
    ]


def test_a_narrow_terminal_shows_what_matters_most(scene: Scene) -> None:
    start = "resnet50-2x8  running  0:10:00"
    few = f"{start}   28%  eta 0:26:00"
    figures = "epoch 25/90, ~14150 images/s, loss 2.1"
    assert bar_lines(scene, 119)[0] == f"{start}  [##--------]  28%  eta 0:26:00  {figures} █▄▁"
    assert bar_lines(scene, 119, curves=False)[0] == f"{start}  [##--------]  28%  eta 0:26:00  {figures}"
    assert bar_lines(scene, 99)[0] == f"{few}  {figures} █▄▁"
    assert bar_lines(scene, 90)[0] == f"{few}  {figures}"
    assert bar_lines(scene, 79)[0] == f"{few}  ~14150 images/s, loss 2.1"
    assert bar_lines(scene, 70)[0] == f"{few}  ~14150 images/s"
    assert bar_lines(scene, 50)[0] == few
    assert bar_lines(scene, 20)[-1] == "1/9 done, 4 running,"


def test_more_than_fit_are_one_line(scene: Scene) -> None:
    lines = bar_lines(scene, 119, 2)
    assert [line.split(" ")[0] for line in lines[:2]] == ["resnet50-2x8", "bert-1x8"]
    assert lines[2:] == ["and 3 more in flight", "1/9 done, 4 running, 4 waiting, eta 1:06:10"]
    assert bar_lines(scene, 119, 0)[0] == "and 5 more in flight"


def test_ten_bars_at_most(make: Any) -> None:
    trials = [make(f"w{number}", "1x1", Phase.RUNNING) for number in range(1000)]
    lines = bar_lines(Scene(NOW, NOW, trials, {}, 1000), 80)
    assert lines[10:] == ["and 990 more in flight", "0/1000 done, 1000 running, 0 waiting"]


@pytest.mark.parametrize("width", [20, 41, 79, 120])
def test_no_line_is_wider_than_the_terminal(make: Any, width: int) -> None:
    names = ["训练任务" * 9, "e\u0301" * 60, "x\x1b[2J\u202ey", "ｆｕｌｌ"]
    trials = [make(name, "2x8", Phase.RUNNING, 9, expected_s=10.0) for name in names]
    log = "epoch: 3 step: 9, loss is 1\nepoch time: 1 ms, per step time: 0.00001 ms\n"
    lines = bar_lines(Scene(NOW, NOW, trials, {trial.id: heard(log) for trial in trials}, 4), width)
    assert max(map(display_width, lines)) <= width
    assert all("\x1b" not in line and "\u202e" not in line for line in lines)
    assert not any("\n" in line for line in lines)


def test_a_long_name_keeps_its_shape(make: Any) -> None:
    trials = [make("训练任务训练任务训练任务", "2x8", Phase.PENDING)]
    assert bar_lines(Scene(NOW, NOW, trials, {}, 4), 60)[0] == "训练任务训…任务-2x8   queued   0:00:00"
    assert bar_lines(Scene(NOW, NOW, trials, {}, 4), 90)[0] == "训练任务训练任务训练任务-2x8  queued   0:00:00"


def test_a_heartbeat(scene: Scene) -> None:
    assert heartbeat_line(scene) == (
        "aisbench +1:02:05 1/9 done, 4 running, 4 waiting, eta 1:06:10"
        " | resnet50-2x8 28% ~14150 images/s loss 2.1, bert-1x8 1%, plain-1x1 0:00:05 stalled loss 2, ends-1x1 100%"
    )


def test_a_platform_that_says_nothing_is_shown_with_its_hours(
    make: Any, monkeypatch: pytest.MonkeyPatch, request: pytest.FixtureRequest
) -> None:
    monkeypatch.setenv("TZ", "UTC")
    time.tzset()
    request.addfinalizer(time.tzset)
    running = make("w", "1x1", Phase.RUNNING, 600, expected_s=601.0)
    silent = replace(running, times={**running.times, "silent": NOW - 75})
    scene = Scene(NOW, NOW - 700, [silent, make("v", "1x1", None)], {}, 1)
    said = "no answer since 02:45:25 (0:01:15), waiting until 03:00:25"
    assert heartbeat_line(scene) == f"aisbench +0:11:40 0/2 done, 1 running, 1 waiting; {said} | w-1x1 silent"
    assert bar_lines(scene, 120) == [f"w-1x1  running  0:10:00  {said}", f"0/2 done, 1 running, 1 waiting; {said}"]
    lost = make("s", "1x1", None, step=Step.SUBMIT, attempts=2, times={"submit": NOW - 75})
    assert said in heartbeat_line(Scene(NOW, NOW, [lost], {}, 1))


def test_a_heartbeat_of_many(make: Any) -> None:
    trials = [make(f"w{number}", "1x1", Phase.RUNNING, 5, expected_s=10.0) for number in range(20)]
    line = heartbeat_line(Scene(NOW, NOW, trials, {}, 20))
    named = ", ".join(f"w{number}-1x1 50%" for number in range(8))
    assert line.endswith(f"eta 0:00:05 | {named} and 12 more")


def test_a_loss_that_is_no_number_any_more_is_seen(make: Any) -> None:
    trial = make("w", "1x1", Phase.RUNNING, 5)
    lost = heard("epoch: 1 step: 1, loss is 2\nepoch: 1 step: 2, loss is nan\n")
    told = Scene(NOW, NOW, [trial], {trial.id: lost}, 1)
    assert bar_lines(told, 80)[0].endswith("epoch 1 step 2, loss nan")
    assert heartbeat_line(told).endswith("| w-1x1 0:00:05 loss nan")


def test_a_heartbeat_before_anything_runs(make: Any) -> None:
    scene = Scene(NOW, NOW - 60, [make("a", "1x1", None), make("b", "1x1", None)], {}, 1)
    assert heartbeat_line(scene) == "aisbench +0:01:00 0/2 done, 0 running, 2 waiting"


def test_epochs_tell_better_than_expectation(make: Any) -> None:
    trial = make("w", "1x1", Phase.RUNNING, 100, parameters={"epochs": "4"}, expected_s=50.0)
    assert activity.share_done(trial, None, NOW) == 0.25, "the first epoch is not over"
    assert activity.seconds_left(trial, None, NOW) == 5.0, "overdue, so it cannot be long"
    told = heard("epoch: 2 step: 1, loss is 1\n", epoch_changed_at=NOW - 20)
    assert activity.share_done(trial, told, NOW) == 0.5
    assert activity.seconds_left(trial, told, NOW) == 60.0, "40 s for each epoch"
    assert activity.seconds_left(trial, told, NOW + 15) == 45.0, "and it comes nearer"
    assert activity.seconds_left(trial, told, NOW + 999) == 0.0


@pytest.mark.parametrize("told", ["", "0", "many", "-3", "1e3"])
def test_a_number_of_epochs_that_is_none_is_not_used(make: Any, told: str) -> None:
    trial = make("w", "1x1", Phase.RUNNING, 100, parameters={"epochs": told})
    assert activity.share_done(trial, heard("epoch: 2 step: 1, loss is 1\n"), NOW) is None


def test_throughput_counts_all_ranks(make: Any) -> None:
    case = make("w", "2x8", Phase.RUNNING, parameters={"batch_size": "32"}).case
    assert activity.throughput(case, Progress(ms_per_step=100.0)) == 32 * 10 * 16
    assert activity.throughput(case, Progress(ms_per_step=100.0, throughput=5.0)) == 80.0
    assert activity.throughput(case, Progress()) is None


@pytest.mark.parametrize(
    ("running", "waiting", "max_jobs", "seconds"),
    [
        ([], [], 4, 0.0),
        ([None], [None], 4, None),
        ([10.0], [], 4, 10.0),
        ([10.0, 30.0], [20.0, 20.0], 2, 50.0),
        ([10.0], [50.0, 5.0], 2, 50.0),
        ([None], [60.0], 1, 120.0),
        ([5.0, 6.0, 7.0], [1.0], 1, 7.0),
        ([], [10.0] * 4, 2, 20.0),
    ],
)
def test_when_all_will_be_over(running: Any, waiting: Any, max_jobs: int, seconds: float | None) -> None:
    assert activity.seconds_until_all_end(running, waiting, max_jobs) == seconds


MEGATRON = " iteration {}/ 24000 | elapsed time per iteration (ms): 2e3 | global batch size: 64 | {}loss scale: 1.0 |"
SIX_HUNDRED = MEGATRON.format(600, "lm loss: 7.5E+00 | ")
TITAN = "step: {}  loss: 7.5  grad_norm: 0.5  tps: 21,734  mfu: 2.34%"


@pytest.mark.parametrize(
    ("unit", "log", "bar"),
    [
        ("samples/s", SIX_HUNDRED, "[----------]   2%  eta 13:00:00  step 600/24000, ~32 samples/s, loss 7.5"),
        ("tokens/s", SIX_HUNDRED, "[----------]   2%  eta 13:00:00  step 600/24000, ~32 samples/s, loss 7.5"),
        ("tokens/s", TITAN.format(530), "step 530, ~173900 tokens/s, loss 7.5"),
        ("images/s", TITAN.format(530), "step 530, ~173900 tokens/s, loss 7.5"),
        (
            "samples/s",
            MEGATRON.format(1, "lm loss: 7.5E+00 | ") + "\n" + MEGATRON.format(12000, ""),
            "[#####-----]  50%  eta 6:40:00  step 12000/24000, ~32 samples/s, loss nan",
        ),
    ],
)  # fmt: skip
def test_a_language_model_shows_its_steps_and_the_unit_of_its_log(make: Any, unit: str, log: str, bar: str) -> None:
    trial = make("llama", "1x8", Phase.RUNNING, 60)
    metrics = {"throughput": Metric("throughput", unit)}
    trial = replace(trial, case=replace(trial.case, workload=replace(trial.case.workload, metrics=metrics)))
    line = bar_lines(Scene(NOW, NOW, [trial], {trial.id: heard(f"{log}\n")}, 1), 119)[0]
    assert line.removeprefix("llama-1x8  running  0:01:00  ") == bar
