"""From a case to a job: the trial's unique name, its stage, its request, and sending the request once."""

from __future__ import annotations

import hashlib
import re
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

from pytest_aisbench.engine import watch
from pytest_aisbench.engine.staging import Placement, Stager, code_placement, code_tree, data_placement
from pytest_aisbench.errors import AisbenchError, Rejected, Throttled, Unreachable
from pytest_aisbench.logs import get_logger, ignored
from pytest_aisbench.model.case import Case
from pytest_aisbench.model.job import JobSpec, Request, Stage, StoreUrl
from pytest_aisbench.model.messages import message
from pytest_aisbench.model.ports import HasConsole, Platform, RewritesRequests
from pytest_aisbench.model.trial import Trial

_LOG = get_logger("fleet")
SINGLE_SERVER_VARIABLE = "SINGLESERVER_MODE"  # the name that scripts know from ais-bench-stubs


def new_trial(run: str, case: Case, now: float, number: int = 1) -> Trial:
    identity = f"{run}/{case.slug}/{number}"
    return Trial(identity, run, case, number, job_name(identity, run, case), times={"stage": now})


def job_name(identity: str, run: str, case: Case) -> str:
    """A readable name that every platform accepts and that no other job ever has."""
    slug = re.sub(r"[^A-Za-z0-9_-]", "-", case.slug)[:32]
    return f"{slug}-{run}-{hashlib.sha256(identity.encode()).hexdigest()[:6]}"


def job_spec(trial: Trial, stage: Stage, run_s: float | None) -> JobSpec:
    case, workload = trial.case, trial.case.workload
    return JobSpec(
        name=trial.name,
        shape=case.shape,
        code=stage.code,
        entry=workload.entry,
        outputs=stage.outputs,
        logs=stage.logs,
        inputs=stage.inputs,
        framework=workload.framework,
        parameters=workload.parameters,
        environment=job_environment(case),
        options=workload.options,
        description=f"aisbench {case.slug} trial {trial.id}",
        max_run_s=run_s,
        urls_by=workload.urls_by,
    )


def job_environment(case: Case) -> dict[str, str]:
    return {**case.workload.environment, **({SINGLE_SERVER_VARIABLE: "True"} if case.single_server else {})}


def upload_stage(trial: Trial, platform: Platform, stager: Stager | None = None) -> Stage:
    """Upload the code and data of the trial to the Store; trials that share a `stager` upload what they share once."""
    return _make_stage(trial, platform, (stager or Stager(platform.store)).upload)


def planned_stage(trial: Trial, platform: Platform) -> Stage:
    """Where the code and data would be uploaded to, by their contents; uploads nothing."""
    return _make_stage(trial, platform, lambda placement: placement.url)


def _make_stage(trial: Trial, platform: Platform, deliver: Callable[[Placement], StoreUrl]) -> Stage:
    workload, root = trial.case.workload, platform.root
    folder = Path(workload.folder)
    inputs: StoreUrl | None = None
    if workload.data:
        remote = "://" in workload.data
        inputs = StoreUrl.parse(workload.data) if remote else deliver(data_placement(root, folder / workload.data))
    variables = {} if platform.takes_environment else job_environment(trial.case)
    code = deliver(code_placement(root, code_tree(workload, platform, variables)))
    return Stage(root / f"trials/{trial.id}/", code, inputs)


def placeholder_stage(trial: Trial, root: StoreUrl) -> Stage:
    """A stage with placeholders for the contents: enough to render a request before anything is uploaded."""
    workload = trial.case.workload
    inputs: StoreUrl | None = None
    if workload.data:
        inputs = StoreUrl.parse(workload.data) if "://" in workload.data else root / "data/unstaged/"
    return Stage(root / f"trials/{trial.id}/", root / f"code/unstaged/{workload.code_name}/", inputs)


def submit_job(trial: Trial, platform: Platform, now: float, limits: watch.Limits) -> Trial:
    """Send the request once: the trial with its job's id, or without one if no answer came.

    Without an answer the job may exist; the next call looks for it by its name before it sends anything.
    """
    assert trial.request is not None
    try:
        job_id = _job_id(trial.request, platform, again=bool(trial.attempts))
        _LOG.info("%s: submitted as job %s", trial.name, job_id)
    except Rejected:
        raise
    except AisbenchError as lost:
        _LOG.info("%s: attempt %d to submit it had no answer: %s", trial.name, trial.attempts + 1, lost)
        return _without_answer(trial, lost, now, limits)
    request = platform.sent(trial.request) if isinstance(platform, RewritesRequests) else trial.request
    return replace(trial, job_id=job_id, console=_console(platform, job_id), request=request)


def _job_id(request: Request, platform: Platform, *, again: bool) -> str:
    # A request without an answer may have arrived: look for its job by name before sending it again.
    if again and (job_id := platform.find(request)):
        _LOG.info("job %s is there: a request without an answer had arrived", job_id)
        return job_id
    try:
        return platform.submit(request)
    except Rejected:
        # Our own first request may have taken the name, though the platform's list did not show its job yet.
        if again and (job_id := platform.find(request)):
            _LOG.info("job %s is there, though its list had not shown it", job_id)
            return job_id
        raise


def _console(platform: Platform, job_id: str) -> str:
    # The job exists: an error about its web page must not lose it.
    with ignored(_LOG, Exception, "the page of job %s", job_id):
        return platform.console(job_id) if isinstance(platform, HasConsole) else ""
    return ""


def _without_answer(trial: Trial, lost: AisbenchError, now: float, limits: watch.Limits) -> Trial:
    # Once a request may have arrived, no later error proves that it did not.
    if not trial.attempts and not isinstance(lost, (Unreachable, Throttled)):
        raise lost
    if now - trial.times["submit"] > limits.outage_s:
        raise Unreachable(f"unknown whether job {trial.name} was created: {lost}", advice="look for it") from lost
    if not trial.attempts:
        trial = trial.noted(message("no receipt", why=str(lost)))
    return watch.postpone(replace(trial, attempts=trial.attempts + 1), lost, now, limits)
