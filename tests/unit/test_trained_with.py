"""Every report says what trained: a framework and its version, a miniature in its place, or that it is unknown."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest
from factories import make_case_entry, make_run_entry, make_trial_entry, make_workload

from pytest_aisbench.config import options
from pytest_aisbench.engine import suites
from pytest_aisbench.engine.collect import trained_with
from pytest_aisbench.i18n import ENGLISH, language
from pytest_aisbench.model.job import TrainedWith
from pytest_aisbench.model.results import CaseEntry, Destination
from pytest_aisbench.platforms.local_kind import LocalKind
from pytest_aisbench.report import allure, ci, page
from pytest_aisbench.report.columns import trained_with_text
from pytest_aisbench.report.page_head import overview
from pytest_aisbench.report.results import case_document
from pytest_aisbench.report.terminal import summary_lines
from pytest_aisbench.tester import payload
from pytest_aisbench.traininglog.activity import software_versions

SUITES = Path(__file__).parents[2] / "suites"
PLATFORMS = frozenset(options.PLATFORMS)
MINIATURE = "numpy miniature, numpy version 2.1.0"
REAL = "--aisbench-frameworks torch=PYTHON"
SMALL = TrainedWith("numpy", "2.1.0", source="log", miniature=True, instead_of="torch", real=REAL)


def load(name: str, *frameworks: str) -> suites.Suite:
    return suites.load_suite(SUITES / name, "local", LocalKind.options, PLATFORMS, frameworks=frameworks)


@pytest.mark.parametrize(
    ("suite", "framework"),
    [("torch_mlp", "torch"), ("paddle_mlp", "paddle"), ("horovod_mnist", "horovod"), ("resnet50", "mindspore")],
)
def test_on_the_local_cloud_a_suite_stands_in_for_its_framework_until_it_is_asked_to_train_with_it(
    suite: str, framework: str
) -> None:
    small = trained_with(load(suite).workload, MINIATURE, {})
    assert small.instead_of == framework
    assert small.real == f"--aisbench-frameworks {framework}=PYTHON"

    asked = load(suite, framework).workload
    version = f"[worker-0]: {framework} version: 2.13.0+cpu"
    real = trained_with(asked, version, software_versions(version))
    assert real == TrainedWith(framework, "2.13.0+cpu", source="log")


PLAIN, TORCH = make_workload(), make_workload(framework="torch")
IN_PLACE = make_workload(miniature_of="torch", has_real_section=True)


@pytest.mark.parametrize(
    ("workload", "log", "text"),
    [
        (IN_PLACE, MINIATURE, "numpy miniature"),
        (IN_PLACE, "loss is 0.1", "python miniature"),  # by workload.toml alone
        (IN_PLACE, "PyTorch version: 2.1.0", "torch 2.1.0"),  # a miniature that a user wrote with it
        (TORCH, "torch version 2.1.0\ntensorflow version 2.15.0", "torch 2.1.0"),
        (TORCH, "loss is 0.1", "unknown"),  # that the job asks for it proves nothing
        (PLAIN, "loss is 0.1", "unknown"),
        (PLAIN, "MindSpore version: 2.3.0", "mindspore 2.3.0"),
        (PLAIN, "CANN version: 8.0", "unknown"),  # no framework
        (PLAIN, "a numpy miniature, of sorts", "unknown"),
    ],
)
def test_the_log_is_believed_first_and_nothing_is_guessed(workload: object, log: str, text: str) -> None:
    assert isinstance(workload, type(PLAIN))
    assert trained_with_text(trained_with(workload, log, software_versions(log)), ENGLISH) == text


def case_with(software: TrainedWith | None) -> CaseEntry:
    return make_case_entry("1x2", "torch_mlp", trials=(replace(make_trial_entry(), trained_with=software),))


def test_terminal_page_summary_allure_results_and_upload_say_it_alike() -> None:
    case = case_with(SMALL)
    run = make_run_entry(case)
    sentence = f"numpy miniature, not torch; to train with torch add {REAL}"

    lines = [line for line, _ in summary_lines(run, "report.html", 200)]
    assert f"torch_mlp-1x2: trained with {sentence}" in lines
    assert "numpy miniature" in "".join(page.case_cells(case))
    assert "numpy miniature" in overview(run.cases, run)
    assert "| numpy miniature |" in ci.markdown_summary(run)
    assert dict(allure.parameters(case, run))["trained with"] == sentence
    document = case_document(case)["trained_with"]
    assert document == {
        "text": "numpy miniature",
        "name": "numpy",
        "version": "2.1.0",
        "source": "log",
        "miniature": True,
        "instead_of": "torch",
        "real": REAL,
    }
    sent = payload.result_body(Destination("https://tester.example/", "local", ""), "run-1", case, 1)
    assert sent["case"]["trained_with"] == document


def test_cases_that_trained_with_the_same_share_a_line() -> None:
    other = replace(case_with(SMALL), id="torch_mlp-2x2")
    run = make_run_entry(case_with(SMALL), other)
    lines = [line for line, _ in summary_lines(run, "report.html", 200)]
    assert [line for line in lines if "not torch" in line] == [
        f"torch_mlp-1x2, torch_mlp-2x2: trained with numpy miniature, not torch; to train with torch add {REAL}"
    ]


def test_it_is_said_in_chinese() -> None:
    run = make_run_entry(case_with(SMALL), replace(case_with(TrainedWith()), id="other-1x2"))
    lines = [line for line, _ in summary_lines(run, "report.html", 200, language("zh"))]
    assert f"torch_mlp-1x2：实际训练软件为 numpy 迷你模型，并非 torch；要用 torch 训练，请加 {REAL}" in lines
    assert "other-1x2：实际训练软件为 未知" in lines


def test_a_case_of_an_older_ledger_has_none() -> None:
    case = case_with(None)
    assert case_document(case)["trained_with"] is None
    assert "trained_with" not in payload.result_body(Destination("", "local", ""), "run-1", case, 1)["case"]
    assert not any("trained with" in line for line, _ in summary_lines(make_run_entry(case), "report.html", 200))
