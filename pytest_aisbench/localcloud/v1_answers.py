"""The jobs of V1, their versions and their logs, in V1's words."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from pytest_aisbench.localcloud import v1_catalog
from pytest_aisbench.localcloud.job import FINAL
from pytest_aisbench.localcloud.v1_status import status

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from pytest_aisbench.localcloud.job import Job
    from pytest_aisbench.localcloud.v1_jobs import Series, Version
    from pytest_aisbench.localcloud.v1_rules import V1Rules

_METRICS = ("cpuUsage", "memUsage", "npuUtil", "npuMemUsage", "gpuUtil", "gpuMemUsage")
_AS_ASKED = (
    "app_url", "boot_file_url", "data_url", "data_source", "dataset_id", "dataset_version_id", "train_url", "log_url",
    "user_image_url", "user_command", "spec_id", "pool_id", "volumes", "nas_type", "nas_share_addr", "nas_mount_path",
)  # fmt: skip


class Answers:
    def __init__(self, rules: V1Rules, *, status_strings: bool) -> None:
        self._rules = rules
        self._status_strings = status_strings

    def created(self, series: Series, version: Version) -> dict[str, Any]:
        """The vendor's example has texts here where all others have numbers."""
        job = version.job
        return {
            "is_success": True,
            "job_id": str(series.id),
            "job_name": series.name,
            "status": str(status(job)),
            "create_time": str(job.created),
            "version_id": str(version.id),
            "version_name": version.name,
            "resource_id": job.launch.resource_id,
        }

    def row(self, series: Series) -> dict[str, Any]:
        """Of a list of jobs: what is said of its newest version."""
        newest = series.newest
        row = {
            "job_id": series.id,
            "job_name": series.name,
            "job_desc": newest.job.description,
            "version_id": newest.id,
            "version_count": len(series.versions),
            "status": self._status(newest.job),
            "create_time": newest.job.created,
            "duration": newest.job.duration,
        }
        newest.job.seen()
        return row

    def version(self, version: Version, usage: Mapping[str, Sequence[float]]) -> dict[str, Any]:
        job, config = version.job, version.job.request["config"]
        answer = {
            "version_id": version.id,
            "version_name": version.name,
            "pre_version_id": version.previous,
            "status": self._status(job),
            "create_time": job.created,
            "start_time": job.started,
            "duration": job.duration,
            "resource_id": job.launch.resource_id,
            "worker_server_num": job.launch.nodes,
            "engine_id": int(config.get("engine_id") or 1),
            "parameter": config.get("parameter") or [],
            "system_metric_list": {
                name: [f"{max(0.0, value):.2f}" for value in usage.get(name, ())] for name in _METRICS
            },
        }
        answer |= {key: config[key] for key in _AS_ASKED if config.get(key) is not None}
        answer |= v1_catalog.engine(self._rules.engine(config)) | v1_catalog.spec(self._rules.spec(config))
        job.seen()
        return answer

    def _status(self, job: Job) -> int | str:
        return str(status(job)) if self._status_strings else status(job)


def log_files(job: Job) -> list[str]:
    return [f"job-{job.name}.{node}" for node in range(job.launch.nodes)]


def log_page(job: Job, log: tuple[bytes, int], base: str, count: int, order: str) -> dict[str, Any]:
    """Lines after (`desc`) or before (`asc`) the position `base`, or the newest. A position is where a line begins."""
    content, size = log
    position = size - len(content)
    lines: list[tuple[int, bytes]] = []
    for line in content.splitlines(keepends=True):
        if line.endswith(b"\n") or job.phase in FINAL:  # what is not complete comes with the next page
            lines.append((position, line))
        position += len(line)
    if not base:
        lines = lines[-count:] if count else []
    elif order == "desc":
        lines = [line for line in lines if line[0] > int(base)][:count]
    else:
        lines = [line for line in lines if line[0] < int(base)][-count:] if count else []
    first, last = (str(lines[0][0]), str(lines[-1][0])) if lines else (base, base)
    text = b"".join(line for _, line in lines).decode(errors="replace")
    return {"is_success": True, "content": text, "lines": len(lines), "start_line": first, "end_line": last}
