"""The part of the plugin that the reporters meet, played by hand: a conftest for the runs of test_reporters.py."""

from __future__ import annotations

import os
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest

from pytest_aisbench.errors import PlatformError
from pytest_aisbench.judge.entries import case_entry
from pytest_aisbench.judge.evaluate import evaluate
from pytest_aisbench.judge.values import case_values
from pytest_aisbench.model.case import Case, Shape, Workload
from pytest_aisbench.model.codec import dump
from pytest_aisbench.model.job import Job, Phase
from pytest_aisbench.model.metric import Measurement, Metric, MissingResult
from pytest_aisbench.model.results import SCHEMA, CaseEntry, RunEntry
from pytest_aisbench.model.trial import Step, Trial
from pytest_aisbench.model.verdict import Ruling, Threshold, Verdict
from pytest_aisbench.report import results
from pytest_aisbench.report.allure import Allure
from pytest_aisbench.report.ci import Junit
from pytest_aisbench.report.host_plugins import TRIAL, case_id_of_report, trial_properties
from pytest_aisbench.report.page import Html

HOSTILE = "<script>alert(1)</script><img src=x onerror=alert(2)> ]]> \"'& \x1b[31m\x00\x07 \u202e 结果"
BEGAN = 1_700_000_000.0
KINDS = ("passed", "slow", "broken", "hostile")
_CASES = {"passed": Shape(2, 8), "slow": Shape(1, 8), "broken": Shape(4, 8), "hostile": Shape(2, 2)}


def made(kind: str) -> Trial:
    """A trial that took two hours, in no time."""
    shape, unit = _CASES[kind], "images/s" if kind != "hostile" else "<b>/s"
    metrics = {"throughput": Metric("throughput", unit), "accuracy": Metric("accuracy", "")}
    workload = Workload(kind, "/suite", ("code",), "train.py", "python", shape.devices, metrics)
    claims = (
        Threshold("throughput", unit=unit, reference=100.0, lower=-0.05, per="device"),
        Threshold("accuracy", at_least=0.75),
    )
    case = Case(workload, shape, claims)
    trial = Trial(f"run-1/{case.id}/1", "run-1", case, 1, f"aisbench-{kind}", job_id="job-1", notes=("took its time",))
    trial = trial.moved(Step.STAGE, BEGAN).moved(Step.SUBMIT, BEGAN + 5)
    if kind == "broken":
        verdict = Verdict(Ruling.BROKEN, "no answer from 127.0.0.1")
        return trial.moved(Step.DONE, BEGAN + 65, judged=verdict, job_id=None)
    speed = 80.0 if kind == "slow" else 100.0
    found = [Measurement("throughput", speed, unit, f"throughput_{rank}.json", rank) for rank in range(shape.world)]
    found.append(Measurement("accuracy", 0.76, "", "accuracy.json"))
    missing = (MissingResult("throughput", HOSTILE),) if kind == "hostile" else ()
    job = Job("job-1", Phase.SUCCEEDED, "Completed", queued_s=600.0, ran_s=6590.0)
    trial = trial.moved(Step.WATCH, BEGAN + 10, job=job, logs=(f"logs/{case.id}/1/worker 0.log",))
    if kind == "hostile":
        trial = trial.noted(f"{HOSTILE} \ud800")
        trial = trial.moved(Step.WATCH, BEGAN + 10, job_id=HOSTILE, logs=("logs/<img src=x onerror=alert(3)>'\".log",))
    trial = trial.moved(Step.HARVEST, BEGAN + 7200, measurements=tuple(found), missing_results=missing)
    trial = trial.moved(Step.JUDGE, BEGAN + 7201)
    return trial.moved(Step.DONE, BEGAN + 7202, judged=evaluate(case_values(trial)).verdict)


def entry(kind: str) -> CaseEntry:
    trial = made(kind)
    return case_entry(trial.case, (trial,), trial.verdict)


ENTRIES = {made(kind).case.id: entry(kind) for kind in KINDS}


class Controller:
    """Builds the reporters when the selection is known, and tells them of cases and of the run."""

    def __init__(self, config: pytest.Config) -> None:
        self._config = config
        self._reporters: list[Any] = []
        self._ended: dict[str, CaseEntry] = {}

    def begin(self, ids: Sequence[str]) -> None:
        if self._reporters or not any("trains" in node_id for node_id in ids):
            return
        is_worker = hasattr(self._config, "workerinput")
        folder = Path(os.environ["REPORTS"])
        folder.mkdir(parents=True, exist_ok=True)
        for kind in (Html, Junit, Allure):
            if kind is Allure or not is_worker:  # the only one that is built in workers too
                reporter = kind(self._config, folder)
                self._config.pluginmanager.register(reporter, f"aisbench-{kind.__name__.lower()}")
                self._reporters.append(reporter)

    def pytest_collection_finish(self, session: pytest.Session) -> None:
        self.begin([item.nodeid for item in session.items])

    @pytest.hookimpl(optionalhook=True)
    def pytest_xdist_node_collection_finished(self, ids: Sequence[str]) -> None:
        self.begin(ids)

    @pytest.hookimpl(tryfirst=True)
    def pytest_runtest_logreport(self, report: pytest.TestReport) -> None:
        case = case_id_of_report(report)
        if case and (report.failed or report.when == "call"):
            self._ended[case] = ENTRIES[case]
            for reporter in self._reporters:
                reporter.case(ENTRIES[case])

    @pytest.hookimpl(tryfirst=True)
    def pytest_sessionfinish(self) -> None:
        if not hasattr(self._config, "workerinput"):
            cases = tuple(self._ended[name] for name in sorted(self._ended))
            settings = {"platform": "local", "nodes": [1, 2, 4]}
            run = RunEntry(SCHEMA, "run-1", "2024-01-01T00:00:00Z", "2024-01-01T02:00:00Z", 1, settings, cases)
            assert dump(run)
            for reporter in self._reporters:
                reporter.run(run)
            if self._reporters:
                results.write_results(run, Path(os.environ["REPORTS"]))


def pytest_configure(config: pytest.Config) -> None:
    config.pluginmanager.register(Controller(config))


@pytest.fixture
def trial(request: pytest.FixtureRequest, kind: str) -> Trial:
    found = made(kind)
    request.node.stash[TRIAL] = found
    request.node.user_properties[:] = trial_properties(found, "local")
    if found.verdict.ruling is Ruling.BROKEN:
        raise PlatformError(f"BROKEN: {found.verdict.reason}")
    return found
