"""A run in which everything that a report can show has happened, made by hand."""

from __future__ import annotations

import math
import random
from dataclasses import replace

from factories import make_case_entry, make_trial_entry

from pytest_aisbench.judge.stragglers import find_stragglers
from pytest_aisbench.model.case import Shape
from pytest_aisbench.model.messages import joined, message
from pytest_aisbench.model.metric import Curve, Point, Series
from pytest_aisbench.model.results import (
    SCHEMA,
    CaseBrief,
    CaseEntry,
    Executor,
    PreviousRun,
    RunEntry,
    TrialEntry,
    Value,
)
from pytest_aisbench.model.verdict import Background, Finding, Outcome, Past, Ruling, ScalePoint

BEGAN = 1_760_000_000.0
HOSTILE = "<script>document.title='stolen'</script><img src=x onerror=alert(2)> ]]> \"'& \x1b[31m\x00 \u202e 结果"
UNIT = "images/s"
TWO, FOUR = Shape(2, 8), Shape(4, 8)


def case(shape: Shape = TWO, *, name: str = "resnet50", seed: int = 1) -> CaseEntry:
    """One that passed at its second trial, with a past, other shapes and a curve."""
    noise = random.Random(seed)
    ranks = tuple(1769.0 + noise.gauss(0, 6) for _ in range(shape.world))
    whole = sum(ranks)
    low, reference = 0.95 * 1769 * shape.world, 1769.0 * shape.world
    first, last = (trial(number, shape, ranks, noise) for number in (1, 2))
    history = tuple(
        Past(f"run-{day}", BEGAN - 86400.0 * (20 - day), whole * (1 + noise.gauss(0, 0.004)), 0.76) for day in range(20)
    )
    scaling = tuple(
        ScalePoint(f"{nodes}x8", 14151.0 * nodes * share, share, "this run")
        for nodes, share in ((1, 1.0), (2, 0.99), (4, 0.96), (8, 0.91))
    )
    findings = (
        Finding("throughput", Outcome.MET, whole, f">= {low:.0f} {UNIT}", f"throughput {whole:.0f} {UNIT}, wanted"),
        Finding("accuracy", Outcome.MET, 0.761, ">= 0.759", "accuracy 0.761, wanted >= 0.759"),
        Finding("scaling", Outcome.WAIVED, None, ">= 0.9", "scaling: waived, its base 1x8 was not measured"),
    )
    return make_case_entry(
        str(shape),
        name,
        reason="; ".join(each.text for each in findings),
        card_hours=round(6400 * 2 * shape.world / 3600, 3),
        metrics={"throughput": Value(whole, UNIT), "accuracy": Value(0.761, "")},
        findings=findings,
        trials=(first, last),
        background=Background(
            reference, low, None, (whole * 0.992, whole * 1.006), history, scaling,
            warnings=("throughput drifts down by 0.4 % a day since 2025-09-29",),
            changed=("parameter epochs: 90 → 91", "CANN: 5.0.2 → 5.0.3"),
        ),
    )  # fmt: skip


def trial(number: int, shape: Shape, ranks: tuple[float | None, ...], noise: random.Random) -> TrialEntry:
    began = BEGAN + 7100.0 * (number - 1)
    steps = {"stage": 0, "submit": 14, "watch": 18, "harvest": 6998, "judge": 7021, "done": 7022}
    progress = curve(noise)
    return make_trial_entry(
        trial=number,
        job_id=f"5f0c{number}e2a-8d5b-4d53-9f0c-0d4f7a6f2c11",
        queued_s=580.0,
        ran_s=6400.0,
        throughput_by_rank=ranks,
        accuracy_by_server=(0.761,),
        stragglers=find_stragglers(ranks, shape),
        logs=tuple(f"logs/case/{number}/worker-{node}.log" for node in range(shape.nodes)),
        stage=f"obs://acceptance/aisbench/run/case/{number}/",
        times={name: began + after for name, after in steps.items()},
        notes=("the platform answered only at the third try",),
        pace=progress.pace,
        curve=progress,
        traits={
            "platform": "modelarts", "flavor": "modelarts.kat1.8xlarge", "framework": "mindspore",
            "framework_version": "mindspore_1.3.0-cann_5.0.2-py_3.7-euler_2.8.3-aarch64", "code": "0f3a9bd2c771",
            "parameter epochs": "90",
        },
        console=f"https://console.huaweicloud.com/modelarts/?region=cn-north-4#/training/detail/{number}",
    )  # fmt: skip


def curve(noise: random.Random) -> Curve:
    steps = range(1, 200)
    speed = (Point(at // 20 + 1, at * 100, 300.0 if at < 6 else 1769 + noise.gauss(0, 15)) for at in steps)
    loss = (Point(at // 20 + 1, at * 100, 6.5 * math.exp(-at / 40) + 0.8 + noise.random() / 10) for at in steps)
    return Curve(Series(tuple(loss)), Series(tuple(speed)), "samples/s", "rank")


def failed(shape: Shape = FOUR) -> CaseEntry:
    """A slow card, a slow node, a silent rank, and a log that attacks the page."""
    good = case(shape, name="bert", seed=2)
    ranks = [*good.trials[-1].throughput_by_rank]
    ranks[5], ranks[-1] = 1200.0, None
    ranks[8:16] = [1500.0] * 8
    last = replace(
        good.trials[-1],
        throughput_by_rank=tuple(ranks),
        stragglers=find_stragglers(ranks, shape),
        last_lines=("epoch: 90 step: 1251, loss is 2.1", f"Traceback: {HOSTILE}", "RuntimeError: no such file"),
        events=("2025-10-09 08:53:20 [worker-3] Node notready", HOSTILE),
        notes=(HOSTILE,),
        console="javascript:alert(3)",
    )
    text = f"throughput: rank 31 said nothing, wanted >= 53777.6 {UNIT}"
    claim = message("value", metric="accuracy", value="0.41") + message("wanted", wanted=">= 0.759")
    below = claim + message("below", share="46.0%")
    findings = (
        Finding("throughput", Outcome.UNMEASURED, None, f">= 53777.6 {UNIT}", text),
        Finding("accuracy", Outcome.MISSED, 0.41, ">= 0.759", below + f" {HOSTILE}"),
    )
    metrics = {"throughput": Value(None, UNIT), "accuracy": Value(0.41, "")}
    return replace(
        good, verdict=Ruling.FAILED, reason=text, metrics=metrics, findings=findings, trials=(good.trials[0], last)
    )


def broken() -> CaseEntry:
    good = case(Shape(1, 8), name="gpt", seed=3)
    times = {"stage": BEGAN, "submit": BEGAN + 5, "done": BEGAN + 65}
    lost = replace(
        good.trials[0], times=times, job_id=None, phase=None, platform_phase=None, queued_s=None, ran_s=None,
        throughput_by_rank=(None,) * 8, stragglers=(), logs=(), curve=None, pace=None, console="",
    )  # fmt: skip
    metrics = {"throughput": Value(None, UNIT), "accuracy": Value(None, "")}
    reason = "no answer from modelarts.cn-north-4.myhuaweicloud.com for 60 s"
    return replace(
        good, verdict=Ruling.BROKEN, reason=reason, metrics=metrics, findings=(), trials=(lost,), background=None
    )


def inconclusive() -> CaseEntry:
    good = case(Shape(8, 8), name="resnet50", seed=4)
    text = f"throughput 107600 {UNIT} ± 1.9 %, wanted >= 107555 {UNIT}: the noise is larger than the margin"
    findings = (Finding("throughput", Outcome.UNDECIDED, 107600.0, f">= 107555 {UNIT}", text), good.findings[1])
    return replace(good, verdict=Ruling.INCONCLUSIVE, reason=text, findings=findings)


def run(cases: tuple[CaseEntry, ...] = ()) -> RunEntry:
    cases = cases or (case(), case(Shape(128, 8), name="resnet50", seed=5), failed(), broken(), inconclusive())
    speed = cases[0].metrics["throughput"].value or 1.0
    before = PreviousRun(
        "20251008T080000-1a2b", "2025-10-08T08:00:00.000Z",
        (
            CaseBrief(cases[0].id, Ruling.PASSED, speed * 1.07, UNIT),
            CaseBrief(failed().id, Ruling.PASSED, 56_600.0, UNIT),
            CaseBrief("vgg16-1x8", Ruling.PASSED, 900.0, UNIT),
        ),
    )  # fmt: skip
    settings = {"platform": "modelarts", "nodes": [1, 2, 4, 8, 128], "region": "cn-north-4"}
    times = ("2025-10-09T08:53:20.000Z", "2025-10-09T12:51:02.000Z")
    return RunEntry(SCHEMA, "20251009T085320-77aa", *times, 1, settings, cases, before=before)


def acceptance() -> RunEntry:
    """A run of four workloads at four shapes, with most of what can go wrong: what a person is asked to sign."""
    cases: list[CaseEntry] = []
    for seed, name in enumerate(("resnet50", "bert", "gpt", "vgg16")):
        cases += [case(Shape(nodes, 8), name=name, seed=10 * seed + nodes) for nodes in (1, 2, 4, 8)]
    crashed = "the job failed with exit code 1: RuntimeError: HCCL timeout (worker-0.log)"
    silent = "no sign of life since 2025-10-09 11:02:10, at epoch 3"
    for at, ruling, reason in (
        (4, Ruling.FAILED, crashed),
        (5, Ruling.FAILED, silent),
        (6, Ruling.FAILED, "throughput: throughput_3.json says NaN, which is not finite"),
        (9, Ruling.FAILED, "throughput: throughput_7.json (rank 7: node 0, card 7) is missing"),
        (10, Ruling.BROKEN, "the platform lost the job: it never showed it"),
        (11, Ruling.INCONCLUSIVE, "throughput 107600 images/s ± 1.9 %: the noise is larger than the margin"),
    ):
        metrics = {"throughput": Value(None, UNIT), "accuracy": Value(None, "")}
        found = (Finding("throughput", Outcome.UNMEASURED, None, f">= 53777.6 {UNIT}", reason),)
        measured = cases[at].metrics if ruling is Ruling.INCONCLUSIVE else metrics
        cases[at] = replace(cases[at], verdict=ruling, reason=reason, metrics=measured, findings=found)
    cases[14] = replace(failed(Shape(4, 8)), id="vgg16-4x8", workload="vgg16")
    missed = message("value", metric="scaling", value="0.91") + message("wanted", wanted=">= 0.95")
    text = joined((missed, message("as expected", until="2025-12-31", reason="the switch is replaced in December")))
    waived = Finding("scaling", Outcome.WAIVED, 0.91, ">= 0.95", text)
    cases[3] = replace(cases[3], findings=(*cases[3].findings[:2], waived))
    before = run().before
    assert before
    briefs = tuple(
        CaseBrief(each.id, Ruling.PASSED, 0.97 * (each.metrics["throughput"].value or 1e4), UNIT) for each in cases
    )
    past = replace(before, cases=briefs[:-1], earlier=frozenset({cases[-1].id}))
    green = replace(past, run="20251001T080000-9f3e", started="2025-10-01T08:00:00.000Z", cases=briefs)
    executor = Executor(
        "Jenkins", "nightly #12", "https://ci.example/job/nightly/12/", 12, "1a2b3c4d5e6f", "main", user="ann@login1"
    )
    return replace(run(tuple(cases)), before=past, green=green, executor=executor)
