"""A minimal Tester: accepts uploads by the open contract, stores each once, and lists them.

`pytest_aisbench.tester_server` is the full Tester; this one only lets tests and trials of the local cloud upload.
"""

from __future__ import annotations

import hashlib
import hmac
import json
import os
import threading
from pathlib import Path
from typing import Any
from urllib.parse import unquote

from pytest_aisbench.localcloud.messages import Request, Response

SCHEMA = "ais-tester/1"
_KINDS = ("results", "attachments", "runs")
_LARGEST = 4 * 1024 * 1024
_FIELDS: dict[str, dict[str, type]] = {
    "results": {
        "config": dict,
        "status": str,
        "train_result_info": dict,
        "measured": dict,
        "system": dict,
        "artifacts": list,
        "job": dict,
    },
    "attachments": {"name": str},
    "runs": {"platform": str, "unjudged": dict, "missing": list},
}


class Tester:
    operations = ("post-results", "post-attachments", "post-runs", "list", "show")

    def __init__(self, folder: Path, token: str) -> None:
        """Read what an earlier cloud stored in the folder. Uploads need the token."""
        self._folder = folder
        self._authorization = f"Bearer {token}".encode()
        self._lock = threading.Lock()
        self._stored: dict[str, dict[str, Any]] = {}  # by key, in the order of arrival
        folder.mkdir(exist_ok=True)
        for file in sorted(folder.glob("*.json")):
            stored = json.loads(file.read_text(encoding="utf-8"))
            self._stored[stored["key"]] = stored

    def answer(self, request: Request) -> Response:
        match request.method, self._path(request):
            case "POST", [testid, kind] if kind in _KINDS:
                return self._take(request, testid, kind)
            case "GET", []:
                with self._lock:
                    return Response.json(
                        200, {"tests": list(dict.fromkeys(s["testid"] for s in self._stored.values()))}
                    )
            case "GET", [testid, kind, *run] if kind in _KINDS and len(run) < 2:
                return self._show(testid, kind, *run)
        return self.refuse(request, 404, message=f"{request.method} {request.path} is not served here")

    def operation(self, request: Request) -> str:
        match request.method, self._path(request):
            case "POST", [_, kind] if kind in _KINDS:
                return f"post-{kind}"
            case "GET", [] | [_, _]:
                return "list"
            case "GET", [_, _, _]:
                return "show"
        return "other"

    def refuse(self, request: Request, status: int, code: str = "", message: str = "") -> Response:
        return Response.json(status, {"schema": SCHEMA, "error": message or code or f"HTTP {status}"})

    def quick(self, request: Request) -> bool:
        """It has the disk confirm what it stores."""
        return False

    def crash(self, request: Request, error: Exception) -> Response:
        return self.refuse(request, 500, message="the Tester failed")

    def _path(self, request: Request) -> list[str]:
        path = request.raw_path.partition("?")[0].strip("/").split("/")
        return [unquote(part) for part in path[3:]] if path[:3] == ["api", "v1", "tests"] else ["", "", "", ""]

    def _take(self, request: Request, testid: str, kind: str) -> Response:
        if not hmac.compare_digest(request.headers.get("authorization", "").encode(), self._authorization):
            return self.refuse(request, 401, message="the token is missing or wrong: tester_token on the cloud's card")
        key = request.headers.get("idempotency-key", "")
        if not key or len(key) > 200:
            return self.refuse(request, 400, message="the header Idempotency-Key is missing")
        if request.length is None or request.length > _LARGEST:
            return self.refuse(request, 413, message=f"more than {_LARGEST} bytes, or of unknown length")
        content = request.bytes()
        try:
            body = request.json()
        except ValueError:
            return self.refuse(request, 422, message="the body is not JSON")
        if problem := _problem(body, testid, kind):
            return self.refuse(request, 422, message=problem)
        digest = hashlib.sha256(content).hexdigest()
        with self._lock:
            earlier = self._stored.get(key)
            if earlier is None:
                self._store({"key": key, "testid": testid, "kind": kind, "digest": digest, "body": body})
        if earlier and earlier["digest"] != digest:
            return self.refuse(request, 409, message="something else was stored under this key")
        return Response.json(200 if earlier else 201, {"schema": SCHEMA, "key": key})

    def _store(self, stored: dict[str, Any]) -> None:
        """Write to disk before the answer: a client that is told it is stored does not send it again."""
        file = self._folder / f"{len(self._stored):08d}.json"
        draft = file.with_suffix(".tmp")
        with draft.open("w", encoding="utf-8") as opened:
            opened.write(json.dumps(stored))  # not `dump`, which does not use the encoder in C
            opened.flush()
            os.fsync(opened.fileno())
        draft.replace(file)
        self._stored[stored["key"]] = stored

    def _show(self, testid: str, kind: str, run_id: str | None = None) -> Response:
        with self._lock:
            bodies = [
                stored["body"]
                for stored in self._stored.values()
                if (stored["testid"], stored["kind"]) == (testid, kind)
            ]
        if run_id is not None:
            bodies = [body for body in bodies if body["run_id"] == run_id]
            if not bodies:
                return Response.json(404, {"schema": SCHEMA, "error": f"nothing of {run_id}"})
        return Response.json(200, {"schema": SCHEMA, kind: bodies})


def _problem(body: Any, testid: str, kind: str) -> str:
    """Say in one line what is wrong with a body; empty where it is right."""
    if not isinstance(body, dict) or body.get("schema") != SCHEMA:
        return f"the body is not a {SCHEMA} object"
    if body.get("testid") != testid:
        return "testid of the body and of the path differ"
    if not isinstance(body.get("run_id"), str) or not isinstance(body.get("attempt"), int):
        return "run_id and attempt are needed"
    for name, kind_of_value in _FIELDS[kind].items():
        if not isinstance(body.get(name), kind_of_value):
            return f"{name} is missing, or not a {kind_of_value.__name__}"
    for name, measurement in body.get("measured", {}).items():
        if not isinstance(measurement, dict) or (measurement.get("value") is None) == (
            measurement.get("null_reason") is None
        ):
            return f"measured.{name} needs a value or a null_reason, and not both"
    return ""
