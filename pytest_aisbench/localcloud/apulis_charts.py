"""The charts of Apulis: Prometheus behind its Grafana, of which clients ask how busy the pods of a job are.

The cards are not real, and nothing is told of them.
"""

from __future__ import annotations

import re
from typing import TYPE_CHECKING, Any

from pytest_aisbench.localcloud.message import Response
from pytest_aisbench.localcloud.usage import PERIOD

if TYPE_CHECKING:
    from pytest_aisbench.localcloud.apulis_jobs import ApulisJobs, Entry
    from pytest_aisbench.localcloud.launch import Engine
    from pytest_aisbench.localcloud.message import Request

PATH = "/endpoints/grafana/api/datasources/proxy/1/api/v1/query_range"
_QUERY = re.compile(r'(\w+)\{job_name="([^"]*)"\}')
_METRICS = {"task_cpu_percent": "cpuUsage", "task_mem_usage_percent": "memUsage"}


class Charts:
    def __init__(self, jobs: ApulisJobs, engine: Engine) -> None:
        self._jobs = jobs
        self._engine = engine

    def query(self, request: Request) -> Response:
        asked = _QUERY.fullmatch(request.query.get("query", ""))
        if asked is None:
            error = {"status": "error", "errorType": "bad_data", "error": 'only metric{job_name="id"} is known here'}
            return Response.json(400, error)
        with self._jobs.lock:
            entry = self._jobs.find(asked[2])
        result = self._series(entry, asked[1]) if entry else []
        return Response.json(200, {"status": "success", "data": {"resultType": "matrix", "result": result}})

    def _series(self, entry: Entry, metric: str) -> list[dict[str, Any]]:
        """One for each pod that trains."""
        pods = entry.job.launch.pods if entry.job else None
        if entry.job is None or pods is None:
            return []
        found = []
        for role in pods.trainers:
            samples = self._engine.usage(entry.job.id, role.task).get(_METRICS.get(metric, ""), ())
            values = [[entry.started + place * PERIOD, f"{value:.2f}"] for place, value in enumerate(samples, 1)]
            labels = {"__name__": metric, "job_name": entry.id, "pod_name": pods.name(role)}
            found += [{"metric": labels, "values": values}] if values else []
        return found
