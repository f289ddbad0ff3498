"""The configurations of V1: what a job is asked for, kept under a name."""

from __future__ import annotations

import copy
import threading
from typing import Any

from pytest_aisbench.localcloud import rules
from pytest_aisbench.localcloud.job import now_ms
from pytest_aisbench.localcloud.refusal import Refusal


class Configs:
    """Kept as they are given: only a job made of one is judged."""

    def __init__(self) -> None:
        self._configs: dict[tuple[str, str], dict[str, Any]] = {}
        self._lock = threading.Lock()

    def create(self, project_id: str, body: dict[str, Any]) -> None:
        name = rules.job_name({"name": body.get("config_name")})
        rules.description(body.get("config_desc"))
        with self._lock:
            if (project_id, name) in self._configs:
                raise Refusal(400, "0103", f"Config name:{name} is existed.")
            self._configs[project_id, name] = copy.deepcopy(body) | {"create_time": now_ms()}

    def update(self, project_id: str, name: str, body: dict[str, Any]) -> None:
        with self._lock:
            self._get(project_id, name).update(copy.deepcopy(body) | {"config_name": name})

    def show(self, project_id: str, name: str) -> dict[str, Any]:
        with self._lock:
            return copy.deepcopy(self._get(project_id, name))

    def delete(self, project_id: str, name: str) -> None:
        with self._lock:
            self._get(project_id, name)
            del self._configs[project_id, name]

    def of(self, project_id: str) -> list[dict[str, Any]]:
        with self._lock:
            return [copy.deepcopy(config) for (project, _), config in self._configs.items() if project == project_id]

    def _get(self, project_id: str, name: str) -> dict[str, Any]:
        if (project_id, name) not in self._configs:
            raise rules.invalid(f"there is no configuration {name}")
        return self._configs[project_id, name]
