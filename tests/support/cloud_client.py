"""A plain client of the local cloud: http.client and the account's keys, no SDK that would retry or hide anything."""

from __future__ import annotations

import base64
import http.client
import json
import uuid
from collections.abc import Mapping
from contextlib import closing
from typing import TYPE_CHECKING, Any
from urllib.parse import urlsplit

from waiting import PATIENCE, wait_until

if TYPE_CHECKING:
    from types import TracebackType

    from typing_extensions import Self

_ENGINE = "mindspore_1.3.0-cann_5.0.2-py_3.7-euler_2.8.3-aarch64"


class CloudClient:
    """Signs nothing: its token is issued by IAM when it is made. Every call is one connection and one request."""

    def __init__(self, card: Mapping[str, str]) -> None:
        from obs import ObsClient

        self.card = card
        self.project = card["project_id"]
        self.bucket = card["bucket"]
        keys = {"access": {"key": card["access_key"]}, "secret": {"key": card["secret_key"]}}
        body = {"auth": {"identity": {"methods": ["hw_ak_sk"], "hw_ak_sk": keys}}}
        _, headers, _ = send(card["iam_endpoint"], "POST", "/v3/auth/tokens", json.dumps(body))
        self._token = headers["X-Subject-Token"]
        self._obs = ObsClient(
            access_key_id=card["access_key"],
            secret_access_key=card["secret_key"],
            server=card["obs_endpoint"],
            max_retry_count=0,
        )

    def __enter__(self) -> Self:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, at: TracebackType | None) -> None:
        self.close()

    def close(self) -> None:
        self._obs.close()

    def raw(self, method: str, path: str, body: Any = None) -> tuple[int, http.client.HTTPMessage, bytes]:
        """The answer of ModelArts, whatever it is; http.client's exceptions where there is none."""
        content = None if body is None else json.dumps(body)
        return send(self.card["modelarts_endpoint"], method, path, content, {"X-Auth-Token": self._token})

    def call(self, method: str, path: str, body: Any = None) -> Any:
        status, _, content = self.raw(method, path, body)
        assert status < 300, content
        return json.loads(content) if content else None

    def refused(self, method: str, path: str, body: Any = None) -> tuple[int, str]:
        status, _, content = self.raw(method, path, body)
        return status, json.loads(content)["error_code"]

    def control(self, method: str, path: str, body: Any = None) -> tuple[int, Any]:
        """The calls of the local cloud itself, with its keys as user and password."""
        pair = f"{self.card['access_key']}:{self.card['secret_key']}".encode()
        headers = {"Authorization": f"Basic {base64.b64encode(pair).decode()}"}
        content = None if body is None else json.dumps(body)
        status, _, answer = send(self.card["modelarts_endpoint"], method, f"/_local/{path}", content, headers)
        return status, json.loads(answer) if answer else None

    def job(self, name: str = "", *, out_bucket: str = "", **wishes: Any) -> dict[str, Any]:
        """A request to create a job; wishes that are not named here are its hyper-parameters."""
        out = f"/{out_bucket or self.bucket}/{wishes.pop('out', 'out/')}"
        resource = {"flavor_id": wishes.pop("flavor", "modelarts.kat1.xlarge"), "node_count": wishes.pop("nodes", 1)}
        auto_stop = wishes.pop("auto_stop", None)
        entry = wishes.pop("entry", "train.py")
        return {
            "kind": "job",
            "metadata": {"name": name or f"job-{uuid.uuid4().hex}"},
            "algorithm": {
                "code_dir": f"/{self.bucket}/code/",
                "boot_file": f"/{self.bucket}/code/{entry}",
                "engine": {"engine_name": "Ascend-Powered-Engine", "engine_version": _ENGINE},
                "outputs": [{"name": "train_url", "remote": {"obs": {"obs_url": out}}}],
                "parameters": [{"name": key, "value": str(value)} for key, value in wishes.items()],
            },
            "spec": {
                "resource": resource,
                "log_export_path": {"obs_url": f"/{self.bucket}/log/"},
                **({"auto_stop": auto_stop} if auto_stop else {}),
            },
        }

    def create(self, name: str = "", **wishes: Any) -> str:
        answer = self.call("POST", f"/v2/{self.project}/training-jobs", self.job(name, **wishes))
        return str(answer["metadata"]["id"])

    def show(self, job: str) -> Any:
        return self.call("GET", f"/v2/{self.project}/training-jobs/{job}")

    def phase(self, job: str) -> str:
        return str(self.show(job)["status"]["phase"])

    def until(self, job: str, phases: set[str]) -> Any:
        return wait_until(lambda: self.show(job), lambda answer: answer["status"]["phase"] in phases)

    def stop(self, job: str) -> Any:
        return self.call("POST", f"/v2/{self.project}/training-jobs/{job}/actions", {"action_type": "terminate"})

    def search(self, **body: Any) -> Any:
        return self.call("POST", f"/v2/{self.project}/training-job-searches", body)

    def log(self, job: str, task: str = "worker-0") -> Any:
        return self.call("GET", f"/v2/{self.project}/training-jobs/{job}/tasks/{task}/logs/preview")

    def put(self, key: str, content: bytes) -> None:
        assert self._obs.putContent(self.bucket, key, content).status == 200

    def find(self, key: str) -> bytes | None:
        got = self._obs.getObject(self.bucket, key, loadStreamInMemory=True)
        return bytes(got.body.buffer) if got.status == 200 else None

    def get(self, key: str) -> bytes:
        content = self.find(key)
        assert content is not None, key
        return content

    def keys(self, prefix: str) -> list[str]:
        """Relative to the prefix."""
        return [entry.key.removeprefix(prefix) for entry in self._obs.listObjects(self.bucket, prefix).body.contents]

    def create_bucket(self, name: str) -> None:
        assert self._obs.createBucket(name).status == 200

    def delete_bucket(self, name: str) -> None:
        assert self._obs.deleteBucket(name).status == 204


def send(
    endpoint: str, method: str, path: str, body: str | None = None, headers: Mapping[str, str] | None = None
) -> tuple[int, http.client.HTTPMessage, bytes]:
    with closing(http.client.HTTPConnection(urlsplit(endpoint).netloc, timeout=PATIENCE)) as connection:
        connection.request(method, path, body, dict(headers or {}))
        answer = connection.getresponse()
        return answer.status, answer.headers, answer.read()
