"""A trial before its job exists: its unique name, its place in the Store, and what is asked of the platform."""

from __future__ import annotations

import hashlib
import re
from collections.abc import Callable
from pathlib import Path

from pytest_aisbench.domain.case import Case
from pytest_aisbench.domain.job import JobSpec
from pytest_aisbench.domain.ports import Platform
from pytest_aisbench.domain.stage import Stage, StoreUrl
from pytest_aisbench.domain.trial import Trial
from pytest_aisbench.services.code import code_tree
from pytest_aisbench.services.staging import Parcel, data_parcel, put

SINGLE_SERVER = "SINGLESERVER_MODE"  # by which scripts know it since ais-bench-stubs


def new_trial(run: str, case: Case, now: float, number: int = 1) -> Trial:
    identity = f"{run}/{case.id}/{number}"
    return Trial(identity, run, case, number, job_name(identity, run, case), times={"stage": now})


def job_name(identity: str, run: str, case: Case) -> str:
    """Readable, of the characters and length that every platform takes, and never given twice."""
    slug = re.sub(r"[^A-Za-z0-9_-]", "-", case.id)[:32]
    return f"{slug}-{run}-{hashlib.sha256(identity.encode()).hexdigest()[:6]}"


def stage(trial: Trial, platform: Platform) -> Stage:
    """Code and data are in the Store when this returns."""
    return _placed(trial, platform, lambda parcel: put(platform.store, parcel))


def stage_of(trial: Trial, platform: Platform) -> Stage:
    """Where code and data will be, by their contents; nothing is uploaded."""
    return _placed(trial, platform, lambda parcel: parcel.place)


def _placed(trial: Trial, platform: Platform, deliver: Callable[[Parcel], StoreUrl]) -> Stage:
    workload, root = trial.case.workload, platform.root
    folder = Path(workload.folder)
    inputs: StoreUrl | None = None
    if workload.data:
        remote = "://" in workload.data
        inputs = StoreUrl.parse(workload.data) if remote else deliver(data_parcel(root, folder / workload.data))
    variables = {} if platform.takes_environment else environment(trial.case)
    code = deliver(Parcel(code_tree(workload, variables), root / "code/"))
    return Stage(root / f"trials/{trial.id}/", code, inputs)


def spec(trial: Trial, place: Stage, run_s: float | None) -> JobSpec:
    case, workload = trial.case, trial.case.workload
    return JobSpec(
        name=trial.name,
        shape=case.shape,
        code=place.code,
        entry=workload.entry,
        outputs=place.outputs,
        logs=place.logs,
        inputs=place.inputs,
        framework=workload.framework,
        parameters=workload.parameters,
        environment=environment(case),
        options=workload.options,
        description=f"aisbench {case.id} trial {trial.id}",
        max_run_s=run_s,
    )


def environment(case: Case) -> dict[str, str]:
    return {**case.workload.environment, **({SINGLE_SERVER: "True"} if case.alone else {})}


def unstaged(trial: Trial, root: StoreUrl) -> Stage:
    """Where the trial would be: enough to render its request before anything is uploaded or paid for."""
    workload = trial.case.workload
    inputs: StoreUrl | None = None
    if workload.data:
        inputs = StoreUrl.parse(workload.data) if "://" in workload.data else root / "data/unstaged/"
    return Stage(root / f"trials/{trial.id}/", root / f"code/unstaged/{workload.code_name}/", inputs)
