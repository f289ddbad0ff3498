"""Training jobs of API V2."""  # noqa: N999  (the wheel's own name)

from __future__ import annotations

from typing import Any

from . import estimator
from .session import Session
from .train_params import InputData, OutputData, TrainingFiles

JOB_STATE = estimator.JOB_STATE  # callers of V2 import it from here
_JOBS = "/v2/{project_id}/training-jobs"


class Estimator:
    def __init__(
        self,
        session: Session,
        training_files: TrainingFiles | None = None,
        outputs: list[OutputData] | None = None,
        parameters: list[dict[str, Any]] | None = None,
        framework_type: str | None = None,
        framework_version: str | None = None,
        train_instance_type: str | None = None,
        train_instance_count: int | None = None,
        pool_id: str | None = None,
        log_url: str | None = None,
        env_variables: dict[str, str] | None = None,
        working_dir: str | None = None,
        local_code_dir: str | None = None,
        user_image_url: str | None = None,
        user_command: str | None = None,
        volumes: list[dict[str, Any]] | None = None,
        job_description: str | None = None,
        job_id: str | None = None,
    ) -> None:
        self.session = session
        self.job_id = job_id
        files = training_files or TrainingFiles()
        engine = {"engine_name": framework_type, "engine_version": framework_version, "image_url": user_image_url}
        resource = {"flavor_id": train_instance_type, "node_count": train_instance_count, "pool_id": pool_id}
        self._description = job_description
        self._algorithm = _told(
            {
                "code_dir": _path(files.code_dir),
                "boot_file": _boot_file(files),
                "engine": _told(engine),
                "parameters": parameters or [],
                "outputs": [_channel(each) for each in outputs or []],
                "environments": env_variables or {},
                "command": user_command,
                "working_dir": working_dir,
                "local_code_dir": local_code_dir,
            }
        )
        log = {"obs_url": _path(log_url)} if log_url else None
        self._spec = _told({"resource": _told(resource), "log_export_path": log, "volumes": volumes})

    def fit(
        self, inputs: list[InputData] | None = None, wait: bool = False, job_name: str | None = None
    ) -> TrainingJob:
        algorithm = dict(self._algorithm)
        if inputs:
            algorithm["inputs"] = [_channel(each) for each in inputs]
        metadata = _told({"name": job_name, "description": self._description})
        body = {"kind": "job", "metadata": metadata, "algorithm": algorithm, "spec": self._spec}
        answer = self.session.call("POST", _JOBS, body)
        print("create training job:", answer)
        return TrainingJob(self.session, answer)

    def get_job_info(self) -> Any:
        return self.session.call("GET", f"{_JOBS}/{self.job_id}")

    def get_job_log(self, task_id: str = "worker-0") -> Any:
        return self.session.call("GET", f"{_JOBS}/{self.job_id}/tasks/{task_id}/logs/preview")

    def get_job_metrics(self, task_id: str = "worker-0") -> Any:
        return self.session.call("GET", f"{_JOBS}/{self.job_id}/metrics/{task_id}")

    def control_job(self) -> Any:
        return Estimator.control_job_by_id(self.session, self.job_id)

    def delete_job(self) -> Any:
        return Estimator.delete_job_by_id(self.session, self.job_id)

    @staticmethod
    def control_job_by_id(session: Session, job_id: str | None) -> Any:
        return session.call("POST", f"{_JOBS}/{job_id}/actions", {"action_type": "terminate"})

    @staticmethod
    def delete_job_by_id(session: Session, job_id: str | None) -> Any:
        return session.call("DELETE", f"{_JOBS}/{job_id}")

    @staticmethod
    def get_job_list(
        session: Session,
        offset: int | None = None,
        limit: int | None = None,
        sort_by: str | None = None,
        order: str | None = None,
        group_by: str | None = None,
        filters: list[dict[str, Any]] | None = None,
    ) -> Any:
        asked = {"offset": offset, "limit": limit, "sort_by": sort_by, "order": order}
        body = _told({**asked, "group_by": group_by, "filters": filters})
        return session.call("POST", "/v2/{project_id}/training-job-searches", body)

    @staticmethod
    def get_train_instance_types(session: Session) -> Any:
        answer = session.call("GET", "/v2/{project_id}/training-job-flavors")
        return [row["flavor_id"] for row in answer["flavors"]] if "flavors" in answer else answer

    @staticmethod
    def get_framework_list(session: Session) -> Any:
        answer = session.call("GET", "/v2/{project_id}/training-job-engines")
        if "items" not in answer:
            return answer
        return [
            {"framework_type": row["engine_name"], "framework_version": row["engine_version"]}
            for row in answer["items"]
        ]


class TrainingJob(Estimator):
    """A job that was created; or that was not, and then says so where it is asked about."""

    def __init__(self, session: Session, answer: dict[str, Any]) -> None:
        super().__init__(session, job_id=(answer.get("metadata") or {}).get("id"))
        self._refusal = None if self.job_id else answer

    def get_job_info(self) -> Any:
        return self._refusal or super().get_job_info()


def _told(given: dict[str, Any]) -> dict[str, Any]:
    return {key: value for key, value in given.items() if value is not None}


def _path(url: str | None) -> str | None:
    if url is not None and not url.startswith("obs://"):
        raise ValueError(f"{url} is not an obs path")
    return url and url[len("obs:/") :]


def _boot_file(files: TrainingFiles) -> str | None:
    if files.boot_file and not files.boot_file.startswith("obs://"):
        return (_path(files.code_dir) or "") + files.boot_file
    return _path(files.boot_file)


def _channel(data: InputData | OutputData) -> dict[str, Any]:
    remote = {"obs": {"obs_url": _path(data.obs_path)}}
    named = {"name": data.name, "access_method": data.access_method, "local_dir": data.local_path}
    return {**_told(named), "remote": remote}
