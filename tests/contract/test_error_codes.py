"""Every code with which ModelArts may refuse a job, over HTTP: the error that we raise, and the verdict."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from pytest_aisbench import Access, Settings
from pytest_aisbench.engine.submit import new_trial
from pytest_aisbench.engine.trial import Tools, advance
from pytest_aisbench.engine.watch import Limits
from pytest_aisbench.localcloud.conform import errors
from pytest_aisbench.localcloud.faults import Fault
from pytest_aisbench.localcloud.server import LocalCloud
from pytest_aisbench.model.case import Case, Shape, Workload
from pytest_aisbench.model.clock import SystemClock
from pytest_aisbench.model.metric import Metric
from pytest_aisbench.model.trial import Step, Trial
from pytest_aisbench.model.verdict import Ruling
from pytest_aisbench.platforms.modelarts.platform import ModelArts
from pytest_aisbench.secret import Secret

# What somebody wrote wrongly: the case FAILED, and no second trial would help.
WRITTEN = {
    400: "2751 2753 2755 2757 2758 2759 2760 2761 2763 2764 2767 2780 2781 2782 2783 2787 2788 2791 2793 2802 2806 "
    "2810 2811 2814 2816 2832 2840 2845 2855 2857 2859 2886",
    404: "2890",
}
# What the platform, or the account there, is to mend: the case is BROKEN.
PLATFORM = {
    400: "2815 2833 2837 2887",
    401: "0201 0202 0203 0204 0205 0207 0208 0209 0211 0212",
    403: "2784 2785 0108 0206 0210",
    404: "2786 2836",
}
# What passes: the job is submitted again, after the platform was asked for it by name.
PASSING = {
    429: "2799",
    500: "2950 2951 2952 2953 2954 2955 2956 2957 2958 2959 0010",
    503: "2950",
    409: "2878",
    400: "2889",
}

NAME_TAKEN = ("V2", "ModelArts.2751")


def each(table: dict[int, str]) -> list[tuple[int, str]]:
    return [(status, f"ModelArts.{code}") for status, codes in table.items() for code in codes.split()]


def test_conform_probes_every_code() -> None:
    assert {pair for table in (WRITTEN, PLATFORM, PASSING) for pair in each(table)} <= errors.documented()


@pytest.fixture(scope="module")
def cloud() -> Iterator[LocalCloud]:
    with LocalCloud(engine="simulated") as cloud:
        yield cloud


@pytest.fixture(scope="module", params=["V1", "V2"])
def platform(cloud: LocalCloud, request: pytest.FixtureRequest) -> Iterator[ModelArts]:
    card = cloud.card()
    access = Access(
        access_key=Secret(card["access_key"]),
        secret_access_key=Secret(card["secret_key"]),
        bucket=card["bucket"],
        region_name=card["region"],
        project_id=card["project_id"],
        iam_endpoint=card["iam_endpoint"],
        obs_endpoint=card["obs_endpoint"],
        modelarts_endpoint=card["modelarts_endpoint"],
    )
    settings = Settings(platform="modelarts", access=access, modelarts_version=request.param)
    with contextlib.closing(ModelArts(settings)) as platform:
        yield platform


def submitted(platform: Any, cloud: LocalCloud, folder: Path, fault: Fault) -> tuple[Trial, Trial]:
    """A trial that is about to be submitted, as the platform's answer leaves it; and after the next attempt."""
    (folder / "code").mkdir()
    (folder / "code" / "train.py").write_text("pass")
    options = {"flavor": "modelarts.kat1", "framework_version": "mindspore_1.3.0-cann_5.0.2-py_3.7-euler_2.8.3-aarch64"}
    metrics = {name: Metric(name, "") for name in ("throughput", "accuracy")}
    workload = Workload("codes", str(folder), ("code",), "train.py", "mindspore", 1, metrics, options=options)
    tools = Tools(platform, SystemClock(), Limits(60.0, 60.0), folder)
    trial = advance(new_trial(f"run-{folder.name[-12:]}", Case(workload, Shape(1, 1), ()), 0.0), tools)
    assert trial.step is Step.SUBMIT, trial.verdict
    trial = trial.moved(Step.SUBMIT, tools.clock.now())
    cloud.faults.set([fault])
    try:
        struck = advance(trial, tools)
    finally:
        cloud.faults.clear()
    return struck, advance(struck, tools) if struck.step is Step.SUBMIT else struck


@pytest.mark.parametrize(
    ("ruling", "status", "code"),
    [
        *((Ruling.FAILED, status, code) for status, code in each(WRITTEN)),
        *((Ruling.BROKEN, status, code) for status, code in each(PLATFORM)),
        (Ruling.BROKEN, 401, "APIGW.0301"),
    ],
)
def test_a_refusal_is_a_verdict_that_names_the_code(
    platform: ModelArts,
    cloud: LocalCloud,
    tmp_path: Path,
    ruling: Ruling,
    status: int,
    code: str,
    request: pytest.FixtureRequest,
) -> None:
    fault = Fault(service="modelarts", operation="create", status=status, code=code, message="for a reason")
    trial, again = submitted(platform, cloud, tmp_path, fault)
    if (request.node.callspec.params["platform"], code) == NAME_TAKEN:
        # A gateway that repeats a create gets this for our own job: the next attempt looks for it first.
        assert (trial.step, again.step) == (Step.SUBMIT, Step.WATCH)
        platform.cancel(again.job_id or "")
        return
    assert (trial.step, trial.verdict.ruling) == (Step.DONE, ruling), trial.verdict
    assert "for a reason" in trial.verdict.reason
    assert code in trial.verdict.reason


@pytest.mark.parametrize(("status", "code"), [*each(PASSING), (429, "APIGW.0308")])
def test_what_passes_costs_no_verdict(
    platform: ModelArts, cloud: LocalCloud, tmp_path: Path, status: int, code: str
) -> None:
    fault = Fault(service="modelarts", operation="create", status=status, code=code, times=1)
    struck, after = submitted(platform, cloud, tmp_path, fault)
    assert (struck.step, struck.attempts) == (Step.SUBMIT, 1)
    assert after.step is Step.WATCH, after.verdict
    platform.cancel(after.job_id or "")
