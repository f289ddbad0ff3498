"""API V1 by the vendor's `modelarts` wheel."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from pytest_aisbench.adapters.answers import reading
from pytest_aisbench.adapters.jobs_v1 import JobsV1
from pytest_aisbench.adapters.jobs_v2 import NO_LOG_YET
from pytest_aisbench.adapters.jobs_wheel import WheelSession, engines
from pytest_aisbench.adapters.offer_v1 import JOBS
from pytest_aisbench.adapters.wheel import SESSION, made
from pytest_aisbench.domain.job import LogPart
from pytest_aisbench.errors import UsageFault

MODULES = ("modelarts.estimator",)
_ESTIMATOR = "modelarts.estimator.Estimator"
_LISTING = ("per_page", "page", "order", "search_content")
_CHUNK = 2048  # bytes of a log: the most that the wheel gives at once
_CUT = "\ufffd"  # how a part of a character is shown


class WheelSessionV1(WheelSession):
    def _ask(self, method: str, parts: list[str], given: Mapping[str, Any], timeout_s: float) -> Any:
        def of_all(name: str, **arguments: Any) -> Any:
            return self._wheel.call(_ESTIMATOR, name, timeout_s=timeout_s, modelarts_session=SESSION, **arguments)

        def of_one(job_id: str, version_id: str | None, name: str, **arguments: Any) -> Any:
            estimator = made(_ESTIMATOR, modelarts_session=SESSION, job_id=job_id, version_id=version_id)
            return self._wheel.call(estimator, name, timeout_s=timeout_s, **arguments)

        match method, *parts:
            case "POST", "training-jobs":
                arguments = {"inputs": given["config"]["data_url"], "wait": False, "job_name": given["job_name"]}
                return self._wheel.call(estimating(given), "fit", timeout_s=timeout_s, **arguments)
            case "POST", "training-jobs", job_id, "versions":
                config = given["config"]
                arguments = {"inputs": config["data_url"], "wait": False, "job_desc": given["job_desc"]}
                arguments |= {"job_id": job_id, "pre_version_id": config["pre_version_id"]}
                return self._wheel.call(estimating(given), "create_job_version", timeout_s=timeout_s, **arguments)
            case "GET", "training-jobs":
                # Not sortBy: how it is spelt depends on the kind of the session, and all pages are read anyway.
                return of_all("get_job_list", **{key: given[key] for key in _LISTING if key in given})
            case "GET", "training-jobs", job_id, "versions":
                return of_one(job_id, None, "get_job_version_info")
            case "GET", "training-jobs", job_id, "versions", version_id:
                return of_one(job_id, version_id, "get_job_info")
            case "GET", "training-jobs", job_id, "versions", version_id, "log", "file-names":
                return of_one(job_id, version_id, "get_job_log_file_list")
            case "GET", "training-jobs", job_id, "versions", version_id, "log":
                return of_one(job_id, version_id, "get_job_log", **given)
            case "POST", "training-jobs", job_id, "versions", version_id, "stop":
                return of_one(job_id, version_id, "stop_job_version")
            case "GET", "job", "resource-specs":
                names = of_all("get_train_instance_types")
                with reading("the list of its specs"):  # the wheel takes names: they are their own numbers
                    return {"specs": [{"spec_code": str(name), "spec_id": str(name)} for name in names]}
            case "GET", "job", "ai-engines":
                return {"engines": engines(of_all("get_framework_list"))}
        return super()._ask(method, parts, given, timeout_s)


class WheelJobsV1(JobsV1):
    def logs(self, job_id: str, node: int = 0, since: int = 0) -> LogPart:
        """By bytes, in small pieces, where the API itself has lines."""
        job, _, version = job_id.partition("/")
        path, told = f"{JOBS}/{job}/versions/{version}/log", ""
        names = self._session.call("GET", f"{path}/file-names", ignore=NO_LOG_YET)
        with reading("the names of logs"):
            name = next((str(name) for name in names.get("log_file_list") or () if str(name).endswith(f".{node}")), "")
        while name:
            query = {"log_file": name, "start_byte": since, "offset": _CHUNK}
            text = str(self._session.call("GET", path, query=query, ignore=NO_LOG_YET).get("content") or "")
            text = text.rstrip(_CUT) or text  # the rest of a character comes with its beginning, next time
            if not text:
                break
            told += text
            since += len(text.encode().replace(_CUT.encode(), b"?"))  # elsewhere it is one byte that is no text
        return LogPart(told, since)


def estimating(body: Mapping[str, Any]) -> dict[str, Any]:
    """The Estimator of the job of this request. What else it says are arguments of `fit` and `create_job_version`."""
    config = dict(body["config"])
    kind, _, version = config.pop("engine_id", "").partition(" ")
    estimator = made(
        _ESTIMATOR,
        modelarts_session=SESSION,
        train_instance_count=config.pop("worker_server_num"),
        train_instance_type=config.pop("spec_id", None),
        pool_id=config.pop("pool_id", None),
        code_dir=config.pop("app_url"),
        boot_file=config.pop("boot_file_url"),
        hyperparameters=config.pop("parameter"),
        output_path=config.pop("train_url"),
        log_url=config.pop("log_url"),
        framework_type=kind or None,
        framework_version=version or None,
        user_image_url=config.pop("user_image_url", None),
        user_command=config.pop("user_command", None),
        nas_type=config.pop("nas_type", None),
        nas_share_addr=config.pop("nas_share_addr", None),
        nas_mount_path=config.pop("nas_mount_path", None),
        job_description=body["job_desc"],
    )
    if lost := config.keys() - {"data_url", "pre_version_id", "create_version"}:
        advice = "choose --aisbench-modelarts-client sdk"
        raise UsageFault(f"the modelarts wheel cannot be told {', '.join(sorted(lost))}", advice=advice)
    return estimator
