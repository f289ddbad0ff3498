"""The summary at the end of a run: it fits, it can be understood, and it says whose turn it is."""

from __future__ import annotations

import re
from dataclasses import replace
from typing import Any

import pytest
import showcase
from factories import make_case_entry, make_run_entry, make_trial_entry

from pytest_aisbench.i18n import ENGLISH, Language, language
from pytest_aisbench.model.job import LogExcerpt
from pytest_aisbench.model.messages import message
from pytest_aisbench.model.results import CaseEntry, Straggler, Value
from pytest_aisbench.model.verdict import Background, Finding, Outcome, Ruling, ScalePoint
from pytest_aisbench.report.terminal import Failure, missing_lines, summary_lines
from pytest_aisbench.report.text import display_width, wrap
from pytest_aisbench.secret import Secret

CHINESE = language("zh")
MET = Finding("throughput", Outcome.MET, 14151.2, ">= 13443.6 images/s", "throughput is fine")
ACCURATE = Finding("accuracy", Outcome.MET, 0.7612, ">= 0.759", "accuracy is fine")
MISSED = Finding(
    "throughput",
    Outcome.MISSED,
    12000.0,
    ">= 13443.6 images/s",
    "throughput 12000 images/s, wanted >= 13443.6 images/s (10.7% below)",
)
TRIAL = make_trial_entry(job_id="fe8a1c2e-7b8e-4a1a-9d0a-0123456789ab", logs=("logs/resnet50-8x8/1/worker-0.log",))
PASSED = make_case_entry(
    "1x8",
    "resnet50",
    reason="fine",
    card_hours=2.5,
    metrics={"throughput": Value(14151.2, "images/s"), "accuracy": Value(0.7612, "")},
    findings=(MET, ACCURATE),
    trials=(TRIAL,),
)
FAILED = replace(
    PASSED,
    id="resnet50-8x8",
    verdict=Ruling.FAILED,
    reason=MISSED.text,
    findings=(MISSED, replace(ACCURATE, outcome=Outcome.MISSED, text="accuracy 0.2, wanted >= 0.759")),
    metrics={"throughput": Value(12000.0, "images/s"), "accuracy": Value(0.2, "")},
)
BROKEN = replace(
    PASSED,
    id="bert-large-4x8",
    verdict=Ruling.BROKEN,
    reason="no answer from modelarts.example; check the network",
    findings=(),
    metrics={"throughput": Value(None, "samples/s"), "accuracy": Value(None, "")},
    trials=(replace(TRIAL, job_id=None, logs=(), notes=("the platform said Dreaming, which we do not know",)),),
)
NOISY = replace(PASSED, id="gpt-1x8", verdict=Ruling.INCONCLUSIVE, reason="the noise is 7%, the margin 5%")
WAITING = replace(BROKEN, id="late-1x1", verdict=None, reason="not judged", trials=())


def told(*cases: CaseEntry, width: int = 80) -> list[str]:
    return [text for text, _ in marked(*cases, width=width)]


def marked(*cases: CaseEntry, width: int = 80) -> list[tuple[str, dict[str, bool]]]:
    run = make_run_entry(*cases)
    return summary_lines(run, "reports/run-1/report.html", width)


def test_a_passed_run_is_a_table_and_where_to_read_more() -> None:
    assert told(PASSED) == [
        "case          verdict  throughput        wanted      accuracy  wanted",
        "resnet50-1x8  PASSED   14151.2 images/s  >= 13443.6  0.7612    >= 0.759",
        "",
        "1 case: 1 passed; 2.5 card-hours",
        "report: reports/run-1/report.html",
    ]


def block(case: CaseEntry, say: Language = ENGLISH, *, verbose: bool = False) -> list[str]:
    return str(Failure.of(case, "reports/run-1", ("test_it.py", 6), say, verbose=verbose)).splitlines()


def test_a_failure_says_why_what_the_log_said_where_to_read_on_and_whose_turn_it_is() -> None:
    lines = ("loss is nan", "  File train.py, line 3", "    raise")
    excerpt = LogExcerpt("logs/resnet50-8x8/1/worker-3.log", 27, 3, lines)

    assert block(replace(FAILED, trials=(replace(TRIAL, excerpt=excerpt),))) == [
        "FAILED: throughput 12000 images/s, wanted >= 13443.6 images/s (10.7% below)",
        "  rank 27    loss is nan",
        "               File train.py, line 3",
        "                 raise",
        "  missed     accuracy 0.2, wanted >= 0.759",
        "  job        fe8a1c2e-7b8e-4a1a-9d0a-0123456789ab (Completed)",
        "  read on    reports/run-1/logs/resnet50-8x8/1/worker-3.log",
        f"  what to do {ENGLISH('do not learnt')}",
    ]
    silent = replace(TRIAL, excerpt=replace(excerpt, rank=None, lines=()))
    assert block(replace(FAILED, trials=(silent,)))[1] == "  node 3     (it printed nothing)"


def test_a_failure_without_a_log_says_what_the_platform_says_happened() -> None:
    trial = replace(BROKEN.trials[0], events=("created", "node notready", "restarted", "gave up"))

    assert block(replace(BROKEN, trials=(trial,))) == [
        "BROKEN: no answer from modelarts.example; check the network",
        "  event      node notready",
        "             restarted",
        "             gave up",
        "  what to do the platform is to blame: run it again; if it stays, give its operator the job id",
    ]


def test_the_arithmetic_of_noise_is_shown_on_demand_only() -> None:
    text = message("value", metric="throughput", value="1") + message("how", how="± 0.1 = t 2 × s 0.05")
    finding = replace(MISSED, text=text)
    case = replace(FAILED, reason=text, findings=(finding, replace(finding, outcome=Outcome.MET)))

    assert "±" not in "".join(block(case))
    assert sum("(± 0.1 = t 2 × s 0.05)" in line for line in block(case, verbose=True)) == 2
    passed = replace(case, verdict=Ruling.PASSED)
    run = make_run_entry(passed)
    assert "±" not in "".join(line for line, _ in summary_lines(run, "report.html", 80))
    assert "± 0.1" in "".join(line for line, _ in summary_lines(run, "report.html", 80, verbose=True))


def test_a_rank_after_the_other_without_a_result_does_not_fill_the_terminal() -> None:
    missing = [replace(MISSED, outcome=Outcome.UNMEASURED, text=f"rank {rank} is missing") for rank in range(64)]
    lines = block(replace(FAILED, reason="rank 0 is missing", findings=tuple(missing)))

    assert len(lines) < 12
    assert "             and 60 more: read on" in lines


def test_secrets_in_a_log_are_masked() -> None:
    Secret("hunter2-of-the-log")
    excerpt = LogExcerpt("logs/a/1/worker-0.log", 0, None, ("password hunter2-of-the-log",))

    assert "hunter2" not in "".join(block(replace(FAILED, trials=(replace(TRIAL, excerpt=excerpt),))))


def test_the_table_shows_the_reason_in_a_few_words_the_share_of_the_reference_and_the_scaling() -> None:
    scaled = Background(
        reference=14151.0, scaling=(ScalePoint("1x8", 1.0, 1.0, "this run"), ScalePoint("8x8", 8.0, 0.6, "this run"))
    )
    gap = message("value", metric="throughput", value="12000") + message("below", share="10.7%")
    slow = replace(FAILED, nodes=8, background=scaled, reason=gap, findings=(replace(MISSED, text=gap), ACCURATE))
    lines = told(PASSED, slow, BROKEN, NOISY, WAITING, width=140)
    table = lines[next(number for number, line in enumerate(lines) if line.startswith("case ")) :]

    assert [re.split(r"\s{2,}", line) for line in table[:6]] == [
        ["case", "verdict", "throughput", "wanted", "% of ref.", "scaling", "accuracy", "wanted", "why"],
        ["resnet50-8x8", "FAILED", "12000 images/s", ">= 13443.6", "84.8%", "0.6", "0.2", ">= 0.759",
         "throughput 10.7% below"],
        ["bert-large-4x8", "BROKEN", "-", "-", "-", "-", "-", "-", "no answer from modelarts.example"],
        ["gpt-1x8", "INCONCLUSIVE", "14151.2 images/s", ">= 13443.6", "-", "-", "0.7612", ">= 0.759",
         "the noise is 7%, the margin 5%"],
        ["late-1x1", "not judged", "-", "-", "-", "-", "-", "-"],
        ["resnet50-1x8", "PASSED", "14151.2 images/s", ">= 13443.6", "-", "-", "0.7612", ">= 0.759"],
    ]  # fmt: skip


def test_a_case_that_did_not_pass_is_told_where_no_failed_test_tells_it() -> None:
    run = make_run_entry(FAILED, WAITING)
    lines = [line for line, _ in summary_lines(run, "report.html", 100, printed=["resnet50-8x8"])]

    assert lines[0] == "late-1x1 not judged"
    assert not [line for line in lines if line.startswith("resnet50-8x8 FAILED: ")]
    assert "resnet50-8x8 FAILED: " + MISSED.text in told(FAILED, width=100)


@pytest.mark.parametrize("width", [10, 40, 60, 80, 200])
def test_the_table_fits(width: int) -> None:
    long = replace(PASSED, id="a-workload-with-a-name-of-forty-characters-12345x8")
    lines = told(long, replace(FAILED, id=long.id), BROKEN, NOISY, width=width)

    assert max(len(line) for line in lines if not line.startswith(("report:", "  log"))) <= max(width, 40)


def test_a_name_that_is_too_long_is_told_whole() -> None:
    long = "a-workload-with-a-name-of-more-than-sixty-characters-in-one-word-2x8"
    lines = told(replace(PASSED, id=long))
    rows = lines[1 : lines.index("throughput in images/s")]

    assert "".join(line.split()[0] for line in rows) == long
    assert "14151.2" in rows[0]


def test_colours_follow_the_verdict() -> None:
    lines = marked(PASSED, FAILED, BROKEN, NOISY, width=140)
    table = next(number for number, (text, _) in enumerate(lines) if text.startswith("case "))
    markup = {text.split()[0]: mark for text, mark in lines[table + 1 : table + 5]}

    assert markup == {
        "resnet50-1x8": {"green": True},
        "resnet50-8x8": {"red": True},
        "bert-large-4x8": {"red": True},
        "gpt-1x8": {"yellow": True},
    }


def test_a_job_cannot_write_on_the_terminal() -> None:
    hostile = "gone\x1b[2J\x00\n\u202edrow \ud800"
    case = replace(FAILED, reason=hostile, trials=(replace(TRIAL, notes=(hostile,), job_id=hostile, logs=(hostile,)),))

    assert all(line.isprintable() for line in told(case))
    assert "resnet50-8x8 FAILED: gone\\x1b[2J\\x00 \\x202edrow \\xd800" in told(case)
    assert all(line.isprintable() for line in block(case))


def test_what_warns_is_told_and_changes_no_verdict() -> None:
    case = replace(PASSED, background=Background(warnings=("the last five runs are each slower than the one before",)))

    text = told(case)

    assert text[0] == "warning: resnet50-1x8: the last five runs are each slower than the one before"
    assert text[-2] == "1 case: 1 passed; 2.5 card-hours"


def test_who_is_slow_is_told_of_a_case_that_passed_and_once_of_one_that_failed() -> None:
    slow = (Straggler(1, None, None, 0.9, 0.05),)
    words = "slow: node 1 runs at 90.0% of the median; total throughput -5.0%"
    trials = (replace(TRIAL, stragglers=slow),)

    assert f"note: resnet50-1x8: {words}" in " ".join(" ".join(told(replace(PASSED, trials=trials))).split())
    failed = told(replace(FAILED, trials=trials, reason=f"throughput 1, wanted 2; {words}"))
    assert " ".join(failed).count("node 1 runs at 90.0%") == 1


def test_required_cases_that_are_missing_are_a_line_each() -> None:
    lines = list(missing_lines({"bert-1x8": "not collected", "gpt-2x8": f"skipped: {'too long ' * 12}"}, 80))

    assert lines[0] == ("missing: bert-1x8: not collected", {"red": True})
    assert all(len(line) <= 80 for line, _ in lines)


@pytest.mark.parametrize("width", [40, 60, 80])
def test_chinese_takes_two_columns_a_character(width: int) -> None:
    reason = "吞吐量低于参考值" * 12
    lines = told(replace(FAILED, reason=reason, metrics={"throughput": Value(12.0, "张图片每秒")}), width=width)

    assert max(display_width(line) for line in lines if not line.startswith(("report:", "  log"))) <= width
    assert reason in "".join(line.strip() for line in lines)


@pytest.mark.parametrize("width", range(40, 60))
def test_a_stranger_cannot_give_commands_to_a_ci_server(width: int) -> None:
    lines = told(replace(FAILED, reason="the platform said so much that it wraps ::error::forged"), width=width)

    assert not [line for line in lines if line.lstrip().startswith("::")]
    assert any("::error::forged" in line for line in lines)


def test_no_case_is_said_so() -> None:
    assert "0 cases: none; 0 card-hours" in told()


@pytest.mark.parametrize(
    ("metric", "found", "line"),
    [
        (
            "throughput",
            (450.77798444604605, 450.38567065252664),
            "report >> throughput_list:[450.77798444604605, 450.38567065252664] average:450.58182754928634",
        ),
        (
            "throughput",
            (14147.314993295107, 14155.048461692913),
            "report >> throughput_list:[14147.314993295107, 14155.048461692913] average:14151.181727494011",
        ),
        (
            "accuracy",
            (0.7138142585754395, 0.7139078378677368),
            "report >> accuracy_list:[0.7138142585754395, 0.7139078378677368] average:0.7138610482215881",
        ),
        (
            "accuracy",
            (0.7705078125, 0.7707316080729166),
            "report >> accuracy_list:[0.7705078125, 0.7707316080729166] average:0.7706197102864583",
        ),
    ],
)
def test_nodes_that_train_alone_are_listed_as_ais_bench_stubs_printed_them(
    metric: str, found: tuple[float, ...], line: str
) -> None:
    """The lines of its own documentation."""
    listed: dict[str, Any] = {f"{metric}_by_server": found}
    trial = replace(TRIAL, **listed)
    case = replace(PASSED, nodes=2, mode="single-server", trials=(trial,))
    run = make_run_entry(case, exit_code=0)
    assert line in [text for text, _ in summary_lines(run, "reports/r/report.html", 80)]


def test_it_speaks_chinese_beside_the_words_of_programs() -> None:
    run = showcase.run()

    lines = [line for line, _ in summary_lines(run, "reports/run-1/report.html", 100, CHINESE)]

    assert all(display_width(line) <= 100 for line in lines)
    text = "\n".join(lines)
    assert re.search(r"用例 +判定 +吞吐量 +占参考值 +扩展效率 +精度 +原因", text)
    assert "bert-4x8 FAILED 未通过：throughput: rank 31 said nothing" in text
    assert "共 5 个用例：未通过 1，平台故障 1，无法定论 1，通过 2；4067.56 卡时" in text
    assert lines[-1] == "报告：reports/run-1/report.html"
    lines = block(showcase.failed(), CHINESE)
    assert lines[0].startswith("FAILED 未通过：throughput: rank 31 said nothing")
    assert any(line.startswith("  missed 未达标 精度 0.41，要求 >= 0.759（低 46.0%）") for line in lines)
    assert any(line.startswith("  处理建议      由训练脚本的负责人处理") for line in lines)


@pytest.mark.parametrize("say", [ENGLISH, CHINESE])
def test_a_table_that_is_too_wide_keeps_its_figures(say: Language) -> None:
    band = "12029.2 .. 16982.4 images/s"
    cases = [
        replace(
            PASSED,
            id=f"a-workload-of-a-long-name-{nodes}x8",
            verdict=ruling,
            findings=(replace(MET, wanted=band), ACCURATE),
            metrics={"throughput": Value(12735.1, "images/s"), "accuracy": Value(0.770507, "")},
        )
        for nodes, ruling in enumerate(Ruling, start=1)
    ]
    run = make_run_entry(*cases)

    lines = [line for line, _ in summary_lines(run, "reports/run-1/report.html", 80, say)]

    assert say("in unit", unit="images/s") in lines  # once for all, since no cell has room for it
    heading = next(line for line in lines if say("case") in line and say("throughput").lower() in line)
    assert "…" not in heading
    rows = [line for line in lines if "0.770507" in line]
    assert len(rows) == len(cases)
    for row in rows:
        assert display_width(row) <= 80
        assert re.search(r"(PASSED|FAILED|BROKEN|INCONCLUSIVE)\b.* 12735\.1 +0\.770507", row)


def test_no_line_begins_with_what_ends_a_clause() -> None:
    text = "吞吐量在第 12 个值处变化，从 6362.45 到 7886.44 images/s：运行（一）。" * 3

    for width in range(40, 80):
        lines = list(wrap(text, "  ", width))
        assert not [line for line in lines if line.strip()[0] in "，：）。"]
        assert max(map(display_width, lines)) <= width
