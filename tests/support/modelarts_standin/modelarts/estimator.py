"""Training jobs of API V1."""

from __future__ import annotations

from typing import Any

from .session import Session

_JOBS = "/v1/{project_id}/training-jobs"
_TRAINING = {"job_type": "train"}
_MOST_BYTES = 2048
_WORDS = (
    "UNKNOWN INIT IMAGE_CREATING IMAGE_FAILED SUBMIT_TRYING SUBMIT_FAILED DELETE_FAILED WAITING RUNNING KILLING"
    " COMPLETED FAILED KILLED CANCELED LOST SCALING SUBMIT_MODEL_FAILED DEPLOY_SERVICE_FAILED CHECK_INIT CHECK_RUNNING"
    " CHECK_RUNNING_COMPLETED CHECK_FAILED MOUNT_FAILED"
)
JOB_STATE = [f"JOBSTAT_{word}" for word in _WORDS.split()]


class Estimator:
    def __init__(
        self,
        modelarts_session: Session,
        train_instance_count: int | None = None,
        train_instance_type: str | None = None,
        output_path: str | None = None,
        code_dir: str | None = None,
        boot_file: str | None = None,
        model_name: str | None = None,
        hyperparameters: list[dict[str, str]] | None = None,
        log_url: str | None = None,
        framework_type: str | None = None,
        framework_version: str | None = None,
        job_description: str | None = None,
        user_image_url: str | None = None,
        user_command: str | None = None,
        pool_id: str | None = None,
        nas_type: str | None = None,
        nas_share_addr: str | None = None,
        nas_mount_path: str | None = None,
        environment: Any = None,
        job_id: str | None = None,
        version_id: str | None = None,
        config_name: str | None = None,
    ) -> None:
        self.session = modelarts_session
        self.job_id = job_id
        self.version_id = version_id
        self._description = job_description
        self._engine = framework_type, framework_version
        self._flavor = train_instance_type
        self._config = {
            "worker_server_num": train_instance_count,
            "train_url": output_path,
            "app_url": code_dir,
            "boot_file_url": boot_file,
            "model_name": model_name,
            "parameter": hyperparameters,
            "log_url": log_url,
            "user_image_url": user_image_url,
            "user_command": user_command,
            "pool_id": pool_id,
            "nas_type": nas_type,
            "nas_share_addr": nas_share_addr,
            "nas_mount_path": nas_mount_path,
        }

    def fit(
        self,
        inputs: str | None = None,
        wait: bool = False,
        job_name: str | None = None,
        dataset_id: str | None = None,
        dataset_version_id: str | None = None,
        data_source: Any = None,
    ) -> TrainingJob:
        data = {"data_url": inputs, "dataset_id": dataset_id, "dataset_version_id": dataset_version_id}
        body = {
            "job_name": job_name,
            "job_desc": self._description,
            "config": self._full({**data, "data_source": data_source}),
        }
        return self._created(_JOBS, body)

    def create_job_version(
        self,
        job_id: str,
        pre_version_id: int,
        inputs: str | None = None,
        wait: bool = False,
        job_desc: str | None = None,
        dataset_id: str | None = None,
        dataset_version_id: str | None = None,
        data_source: Any = None,
    ) -> TrainingJob:
        data = {"data_url": inputs, "dataset_id": dataset_id, "dataset_version_id": dataset_version_id}
        config = self._full({**data, "data_source": data_source, "pre_version_id": pre_version_id})
        return self._created(f"{_JOBS}/{job_id}/versions", {"job_desc": job_desc, "config": config})

    def get_job_info(self) -> Any:
        return _spelt(self.session.call("GET", f"{_JOBS}/{self.job_id}/versions/{self.version_id}"))

    def get_job_version_info(self) -> Any:
        return _spelt(self.session.call("GET", f"{_JOBS}/{self.job_id}/versions"))

    def get_job_version_object_list(self, is_show: bool = True) -> Any:
        answer = self.get_job_version_info()
        if is_show:
            print(answer)
        return [TrainingJob(self.session, {**row, "job_id": self.job_id}) for row in answer.get("versions", [])]

    def stop_job_version(self) -> Any:
        return _spelt(self.session.call("POST", f"{_JOBS}/{self.job_id}/versions/{self.version_id}/stop"))

    def delete_job(self) -> Any:
        return Estimator.delete_job_by_id(self.session, self.job_id)

    def delete_job_version(self) -> Any:
        return _spelt(self.session.call("DELETE", f"{_JOBS}/{self.job_id}/versions/{self.version_id}"))

    def update_job_description(self, description: str) -> Any:
        return _spelt(self.session.call("PUT", f"{_JOBS}/{self.job_id}", {"job_desc": description}))

    def get_job_log_file_list(self) -> Any:
        return _spelt(self.session.call("GET", f"{_JOBS}/{self.job_id}/versions/{self.version_id}/log/file-names"))

    def get_job_log(self, log_file: str, start_byte: int = 0, offset: int = 2048) -> Any:
        if start_byte < -1 or abs(offset) > _MOST_BYTES:
            raise ValueError("start_byte is from -1, offset is -2048 to 2048")
        path = f"{_JOBS}/{self.job_id}/versions/{self.version_id}/aom-log"
        query = {"log_file": log_file, "lines": 500}
        page = _spelt(self.session.call("GET", path, query={**query, "order": "desc"}))
        content = b""
        while page.get("lines"):  # backwards, since the service begins with the newest
            content = page["content"].encode() + content
            page = self.session.call("GET", path, query={**query, "order": "asc", "base_line": page["start_line"]})
        if "content" not in page:
            return page
        start = max(0, len(content) - offset) if start_byte == -1 else start_byte
        part = content[start : start + offset]
        lines = {"lines": part.count(b"\n"), "start_line": str(start), "end_line": str(start + len(part))}
        return {"is_success": True, "content": part.decode(errors="replace"), **lines}

    @staticmethod
    def delete_job_by_id(modelarts_session: Session, job_id: str | None) -> Any:
        return _spelt(modelarts_session.call("DELETE", f"{_JOBS}/{job_id}"))

    @staticmethod
    def get_job_list(
        modelarts_session: Session,
        status: int | None = None,
        per_page: int = 10,
        page: int = 1,
        order: str = "desc",
        search_content: str | None = None,
        **sorting: str,
    ) -> Any:
        spelt = "sort_by" if modelarts_session.by_password else "sortBy"
        key = sorting.pop(spelt, None)
        if sorting:
            raise TypeError(f"get_job_list() got an unexpected keyword argument {min(sorting)!r}")
        query = {"status": status, "per_page": per_page, "page": page, "sortBy": key, "order": order}
        return _spelt(modelarts_session.call("GET", _JOBS, query={**query, "search_content": search_content}))

    @staticmethod
    def get_train_instance_types(modelarts_session: Session) -> Any:
        answer = modelarts_session.call("GET", "/v1/{project_id}/job/resource-specs", query=_TRAINING)
        return [row["spec_code"] for row in answer["specs"]] if "specs" in answer else _spelt(answer)

    @staticmethod
    def get_framework_list(modelarts_session: Session) -> Any:
        answer = modelarts_session.call("GET", "/v1/{project_id}/job/ai-engines", query=_TRAINING)
        if "engines" not in answer:
            return _spelt(answer)
        return [
            {"framework_type": row["engine_name"], "framework_version": row["engine_version"]}
            for row in answer["engines"]
        ]

    def _full(self, more: dict[str, Any]) -> dict[str, Any]:
        """With the numbers that the service has for names."""
        config = {**self._config, **more, "create_version": True}
        if self._flavor:
            answer = self.session.call("GET", "/v1/{project_id}/job/resource-specs", query=_TRAINING)
            config["spec_id"] = {row["spec_code"]: row["spec_id"] for row in answer["specs"]}[self._flavor]
        if all(self._engine):
            answer = self.session.call("GET", "/v1/{project_id}/job/ai-engines", query=_TRAINING)
            known = {(row["engine_name"], row["engine_version"]): row["engine_id"] for row in answer["engines"]}
            config["engine_id"] = known[self._engine]
        return {key: value for key, value in config.items() if value is not None}

    def _created(self, path: str, body: dict[str, Any]) -> TrainingJob:
        answer = _spelt(self.session.call("POST", path, body))
        print("create training job:", answer)
        return TrainingJob(self.session, answer)


class TrainingJob(Estimator):
    """A version that was created; or that was not, and then says so where it is asked about."""

    def __init__(self, session: Session, answer: dict[str, Any]) -> None:
        super().__init__(session, job_id=answer.get("job_id"), version_id=answer.get("version_id"))
        self._refusal = None if self.job_id else answer

    def get_job_info(self) -> Any:
        return self._refusal or super().get_job_info()


def _spelt(answer: Any) -> Any:
    """The service says `error_message` where the wheel says `error_msg`."""
    if isinstance(answer, dict) and "error_message" in answer:
        answer["error_msg"] = answer.pop("error_message")
    return answer
