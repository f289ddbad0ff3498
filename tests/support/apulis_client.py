"""A plain client of Apulis on the local cloud: every answer as it comes over the wire."""

from __future__ import annotations

import functools
import hashlib
import json
from typing import TYPE_CHECKING, Any
from urllib.parse import urlencode

from cloud_client import send
from waiting import wait_until

if TYPE_CHECKING:
    from pathlib import Path

    from pytest_aisbench.localcloud.server import LocalCloud

NPU, GPU = "huawei_npu_arm64", "nvidia_gpu_amd64"
ENDED = {"finished", "failed", "error", "killed"}
LOGIN = "/custom-user-dashboard-backend/auth/login"
CURRENT_USER = "/custom-user-dashboard-backend/auth/currentUser"


class Apulis:
    def __init__(self, cloud: LocalCloud, storage: Path) -> None:
        self.cloud = cloud
        self.card = cloud.card()
        self.user = self.card["apulis_user"]
        self.storage = storage

    def raw(
        self, method: str, path: str, body: Any = None, headers: dict[str, str] | None = None, **query: Any
    ) -> tuple[int, bytes]:
        full = f"{path}?{urlencode(query)}" if query else path
        content = None if body is None else json.dumps(body)
        status, _, answer = send(self.card["apulis_endpoint"], method, full, content, headers)
        return status, answer

    @functools.cached_property
    def bearer(self) -> dict[str, str]:
        status, session = self.login(self.card["apulis_password"])
        assert status == 200, session
        return {"Authorization": f"Bearer {session['token']}"}

    def get(self, name: str, **query: Any) -> Any:
        return self._fine(*self.raw("GET", f"/apis/{name}", headers=self.bearer, **query))

    def post(self, name: str, body: Any, **query: Any) -> Any:
        return self._fine(*self.raw("POST", f"/apis/{name}", body, self.bearer, **query))

    def of(self, name: str, job: str, **query: Any) -> Any:
        """A call about a job, by its owner."""
        return self.get(name, jobId=job, userName=self.user, **query)

    def body(self, command: str = "train --seconds=0.1", **changes: Any) -> dict[str, Any]:
        """A request to submit a job; a change of None leaves the key out."""
        body = {
            "userName": self.user,
            "jobType": "training",
            "gpuType": NPU,
            "vcName": "platform",
            "jobName": "resnet50",
            "jobtrainingtype": "RegularJob",
            "preemptionAllowed": "False",
            "image": "apulistech/mindspore:0.3.0-withtools",
            "cmd": command,
            "workPath": "./",
            "dataPath": "./",
            "jobPath": "./",
            "env": [],
            "resourcegpu": 1,
        } | changes
        return {key: value for key, value in body.items() if value is not None}

    def submit(self, command: str = "train --seconds=0.1", **changes: Any) -> str:
        answer = self.post("PostJob", self.body(command, **changes))
        assert answer.keys() == {"jobId", "code", "error"}, answer
        return str(answer["jobId"])

    def distribute(self, command: str, **changes: Any) -> str:
        kind = {"jobtrainingtype": "PSDistJob", "numps": 1, "numpsworker": 2, "hostNetwork": True}
        return self.submit(command, **(kind | {"resourcegpu": 8, "masterCmd": "sleep infinity"} | changes))

    def status(self, job: str) -> str:
        return str(self.get("GetJobStatus", jobId=job)["jobStatus"])

    def until(self, job: str, statuses: set[str]) -> Any:
        return wait_until(lambda: self.get("GetJobStatus", jobId=job), lambda answer: answer["jobStatus"] in statuses)

    def log(self, job: str) -> str:
        return str(self.of("GetJobLog", job)["log"])

    def finished(self, job: str) -> str:
        """The log of a job that ends well."""
        ended = self.until(job, ENDED)
        assert ended["jobStatus"] == "finished", (ended, self.log(job))
        return self.log(job)

    def login(self, password: str, user: str = "") -> tuple[int, Any]:
        status, answer = self.raw("POST", LOGIN, json.loads(self.login_body(password, user)))
        return status, json.loads(answer)

    def login_body(self, password: str, user: str = "") -> str:
        digest = hashlib.md5(password.encode(), usedforsecurity=False).hexdigest()
        return json.dumps({"userName": user or self.user, "password": digest})

    def _fine(self, status: int, answer: bytes) -> Any:
        assert status == 200, answer
        return json.loads(answer)
