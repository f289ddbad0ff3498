"""API V2 by the vendor's `modelarts` wheel.

The wheel's functions are the API's operations by other names. So they stand in for a Session: what the jobs ask of the
API is asked of them, and what they answer is read as the API's own answer.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping
from typing import Any
from urllib.parse import unquote

from pytest_aisbench.adapters.answers import reading
from pytest_aisbench.adapters.signed import Session
from pytest_aisbench.adapters.wheel import SESSION, Wheel, made
from pytest_aisbench.errors import AisbenchError, BadAnswer, UsageFault
from pytest_aisbench.net import retry
from pytest_aisbench.secret import NO_SECRET

MODULES = ("modelarts.estimatorV2", "modelarts.train_params")
_ESTIMATOR = "modelarts.estimatorV2.Estimator"
_TIMEOUT_S = 120.0  # of one call, which may be several requests


class WheelSession(Session):
    """Repeats what a Session repeats."""

    def __init__(self, wheel: Wheel, endpoint: str, patience_s: float) -> None:
        super().__init__(endpoint, NO_SECRET, NO_SECRET, patience_s=patience_s)
        self._wheel = wheel

    def call(
        self,
        method: str,
        path: str,
        body: Mapping[str, Any] | None = None,
        query: Mapping[str, Any] | None = None,
        *,
        patience_s: float | None = None,
        timeout_s: float | None = None,
        ignore: Collection[str] = (),
    ) -> dict[str, Any]:
        parts = [unquote(part) for part in path.split("/")[3:]]

        def attempt() -> dict[str, Any]:
            try:
                return read(self._ask(method, parts, {**(body or {}), **(query or {})}, timeout_s or _TIMEOUT_S))
            except AisbenchError as error:
                if error.trail in ignore:
                    return {}
                raise

        return retry.call(attempt, patience_s=retry.patience_for(method, patience_s, self.patience_s))

    def _ask(self, method: str, parts: list[str], given: Mapping[str, Any], timeout_s: float) -> Any:
        """`parts` are the path's, after the project."""
        raise BadAnswer(f"the modelarts wheel has nothing like {method} {'/'.join(parts)}")


class WheelSessionV2(WheelSession):
    def _ask(self, method: str, parts: list[str], given: Mapping[str, Any], timeout_s: float) -> Any:
        def of_all(name: str, **arguments: Any) -> Any:
            return self._wheel.call(_ESTIMATOR, name, timeout_s=timeout_s, session=SESSION, **arguments)

        def of_one(job_id: str, name: str, **arguments: Any) -> Any:
            estimator = made(_ESTIMATOR, session=SESSION, job_id=job_id)
            return self._wheel.call(estimator, name, timeout_s=timeout_s, **arguments)

        match method, *parts:
            case "POST", "training-jobs":
                estimator, arguments = fitting(given)
                created = read(self._wheel.call(estimator, "fit", timeout_s=timeout_s, **arguments))
                return {"metadata": {"id": created["job_id"]}} if created.get("job_id") else {}
            case "POST", "training-job-searches":
                return of_all("get_job_list", **{key: value for key, value in given.items() if value != []})
            case "GET", "training-job-flavors":
                names = of_all("get_train_instance_types")
                with reading("the list of its flavors"):
                    return {"flavors": [{"flavor_id": str(name)} for name in names]}
            case "GET", "training-job-engines":
                return {"items": engines(of_all("get_framework_list"))}
            case "GET", "training-jobs", job_id:
                return of_one(job_id, "get_job_info")
            case "GET", "training-jobs", job_id, "tasks", task, "logs", "preview":
                return of_one(job_id, "get_job_log", task_id=task)
            case "GET", "training-jobs", job_id, "metrics", task:
                return of_one(job_id, "get_job_metrics", task_id=task)
            case "GET", "training-jobs", _, "events":
                return {}  # the wheel has no way to them
            case "POST", "training-jobs", job_id, "actions":
                return of_all("control_job_by_id", job_id=job_id)
        return super()._ask(method, parts, given, timeout_s)


def read(answer: Any) -> dict[str, Any]:
    if not isinstance(answer, (dict, type(None))) and answer != "":
        raise BadAnswer(f"the modelarts wheel answered with a {type(answer).__name__}, not with an object")
    return answer or {}


def engines(answer: Any) -> list[dict[str, str]]:
    with reading("the list of its engines"):
        rows = [(str(row["framework_type"]), str(row["framework_version"])) for row in answer]
    return [
        {"engine_name": name, "engine_version": version, "engine_id": f"{name} {version}"} for name, version in rows
    ]


def fitting(body: Mapping[str, Any]) -> tuple[dict[str, Any], dict[str, Any]]:
    """The Estimator and the arguments of its `fit` that create the job of this request.

    Nothing of it has an `auto_stop`, which only backs up our own watch; all else must have found its place.
    """
    metadata, algorithm, spec = dict(body["metadata"]), dict(body["algorithm"]), dict(body["spec"])
    engine, resource = dict(algorithm.pop("engine")), dict(spec.pop("resource"))
    estimator = made(
        _ESTIMATOR,
        session=SESSION,
        training_files=made(
            "modelarts.train_params.TrainingFiles",
            code_dir=_obs(algorithm.pop("code_dir")),
            boot_file=_obs(algorithm.pop("boot_file", "")),
        ),
        outputs=[_channel("OutputData", each) for each in algorithm.pop("outputs")],
        parameters=algorithm.pop("parameters"),
        framework_type=engine.pop("engine_name", None),
        framework_version=engine.pop("engine_version", None),
        user_image_url=engine.pop("image_url", None),
        user_command=algorithm.pop("command", None),
        env_variables=algorithm.pop("environments"),
        train_instance_type=resource.pop("flavor_id", None),
        train_instance_count=resource.pop("node_count"),
        pool_id=resource.pop("pool_id", None),
        log_url=_obs(spec.pop("log_export_path")["obs_url"]),
        volumes=spec.pop("volumes", None),
        job_description=metadata.pop("description"),
    )
    fit = {
        "inputs": [_channel("InputData", each) for each in algorithm.pop("inputs", [])] or None,
        "wait": False,
        "job_name": metadata.pop("name"),
    }
    spec.pop("auto_stop", None)
    if lost := [*engine, *resource, *algorithm, *spec, *(metadata.keys() - {"workspace_id"})]:
        advice = "choose --aisbench-modelarts-client sdk"
        raise UsageFault(f"the modelarts wheel cannot be told {', '.join(sorted(lost))}", advice=advice)
    return estimator, {key: value for key, value in fit.items() if value is not None}


def _channel(kind: str, channel: Mapping[str, Any]) -> dict[str, Any]:
    return made(
        f"modelarts.train_params.{kind}",
        obs_path=_obs(channel["remote"]["obs"]["obs_url"]),
        local_path=channel.get("local_dir"),
        name=channel["name"],
        access_method=channel["access_method"],
    )


def _obs(path: str) -> str | None:
    """`/bucket/key/` as `obs://bucket/key/`."""
    return f"obs:/{path}" if path else None
