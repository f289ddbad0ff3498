"""A plain client of V1 training jobs on the local cloud: every answer as it comes over the wire."""

from __future__ import annotations

import json
import uuid
from typing import TYPE_CHECKING, Any

from cloud_client import CloudClient
from waiting import wait_until

if TYPE_CHECKING:
    from pytest_aisbench.localcloud.server import LocalCloud

INIT, WAITING, RUNNING, COMPLETED, FAILED, KILLED, CANCELED, LOST = 1, 7, 8, 10, 11, 12, 13, 14
SUBMIT_FAILED = 5
FINAL = {SUBMIT_FAILED, COMPLETED, FAILED, KILLED, CANCELED, LOST}
ONE_CARD, EIGHT_CARDS = 1, 4  # spec_id


class V1:
    def __init__(self, cloud: LocalCloud, client: CloudClient) -> None:
        self.cloud = cloud
        self.client = client
        self.bucket = client.bucket
        self._root = f"/v1/{client.project}"

    def body(self, name: str = "", **changes: Any) -> dict[str, Any]:
        """A request to create a job; a change of None leaves the key out."""
        name = name or f"job-{uuid.uuid4().hex}"
        config = {
            "worker_server_num": 1,
            "app_url": f"/{self.bucket}/code/",
            "boot_file_url": f"/{self.bucket}/code/train.py",
            "parameter": [{"label": "seconds", "value": "0.2"}],
            "data_url": f"/{self.bucket}/data/",
            "train_url": f"/{self.bucket}/out/{uuid.uuid4().hex}/",
            "log_url": f"/{self.bucket}/log/",
            "spec_id": ONE_CARD,
            "engine_id": 1,
        } | changes
        config = {key: value for key, value in config.items() if value is not None}
        return {"job_name": name, "job_desc": f"about {name}", "workspace_id": "0", "config": config}

    def slow(self, name: str = "", **changes: Any) -> dict[str, Any]:
        return self.body(name, parameter=[{"label": "seconds", "value": "600"}], **changes)

    def call(self, method: str, path: str, body: Any = None) -> Any:
        answer = self.client.call(method, f"{self._root}/{path}", body)
        assert answer["is_success"] is True
        return answer

    def refused(self, method: str, path: str, body: Any = None) -> tuple[int, str, str]:
        status, _, content = self.client.raw(method, f"{self._root}/{path}", body)
        answer = json.loads(content)
        assert answer["is_success"] is False
        assert answer.keys() == {"is_success", "error_message", "error_code"}
        return status, answer["error_code"], answer["error_message"]

    def create(self, body: dict[str, Any]) -> str:
        """The path of the version."""
        answer = self.call("POST", "training-jobs", body)
        return f"training-jobs/{answer['job_id']}/versions/{answer['version_id']}"

    def status(self, version: str) -> Any:
        return self.call("GET", version)["status"]

    def until(self, version: str, wanted: set[int]) -> Any:
        return wait_until(lambda: self.call("GET", version), lambda answer: answer["status"] in wanted)

    def list(self, **query: Any) -> Any:
        return self.call("GET", "training-jobs?" + "&".join(f"{key}={value}" for key, value in query.items()))


def job_of(version: str) -> str:
    return version.rpartition("/versions/")[0]
