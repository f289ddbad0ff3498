"""Jobs as the vendor's API shows them."""

from __future__ import annotations

import time
from typing import TYPE_CHECKING, Any

from pytest_aisbench.localcloud.catalog import ASCEND

if TYPE_CHECKING:
    from pytest_aisbench.localcloud.catalog import Catalog
    from pytest_aisbench.localcloud.job import Job

_END_REASONS = {"Completed": "succeeded", "Terminated": "terminated", "Failed": "training_failed"}


def job_json(job: Job, catalog: Catalog) -> dict[str, Any]:
    request = job.request
    metadata = request["metadata"]
    return {
        "kind": "job",
        "metadata": {
            "id": job.id,
            "name": job.name,
            "workspace_id": metadata.get("workspace_id") or "0",
            "description": job.description,
            "create_time": job.created,
            "user_name": job.user,
            "annotations": metadata.get("annotations") or {},
        },
        "status": _status(job),
        "algorithm": _algorithm(job),
        "spec": request["spec"] | {"resource": _resource(job, catalog)},
        "endpoints": request.get("endpoints") or {},
    }


def event_json(time_ms: int, level: str, message: str, source: str) -> dict[str, Any]:
    stamp = time.strftime("%Y-%m-%dT%H:%M:%S+08:00", time.gmtime(time_ms / 1000 + 8 * 3600))
    return {"time": stamp, "level": level, "message": message, "source": source}


def _status(job: Job) -> dict[str, Any]:
    return {
        "phase": job.shown_phase,
        "secondary_phase": job.secondary_phase,
        "duration": job.duration,
        "start_time": job.started,
        "node_count_metrics": [[job.started, job.launch.nodes]] if job.started else None,
        "tasks": job.tasks,
        "task_statuses": [dict(status) for status in job.task_statuses],
        "running_records": _running_records(job),
    }


def _running_records(job: Job) -> list[dict[str, Any]]:
    """One at most: nothing is restarted here. Its times are in seconds, unlike all others."""
    if not job.started:
        return []
    record: dict[str, Any] = {"start_at": job.started // 1000, "start_type": "init_or_rescheduled"}
    if job.end:
        record |= {
            "end_at": job.ended // 1000,
            "end_reason": job.end.message or _END_REASONS.get(job.phase, "abnormal"),
            "end_related_task": job.end.task,
        }
    return [record]


def _algorithm(job: Job) -> dict[str, Any]:
    """As it was asked for, with what the platform chose."""
    launch = job.launch
    algorithm = dict(job.request["algorithm"])
    algorithm["engine"] = (
        algorithm.get("engine")
        if launch.image
        else {
            "engine_id": launch.engine_version,
            "engine_name": ASCEND,
            "engine_version": launch.engine_version,
            "v1_compatible": False,
        }
    )
    for kind, channels in (("inputs", launch.inputs), ("outputs", launch.outputs)):
        algorithm[kind] = [
            entry | {"local_dir": channel.local_dir, "access_method": "env" if channel.by_environment else "parameter"}
            for entry, channel in zip(algorithm.get(kind) or [], channels, strict=True)
        ]
    return algorithm


def _resource(job: Job, catalog: Catalog) -> dict[str, Any]:
    resource = {"policy": "regular", "node_count": job.launch.nodes, **job.request["spec"]["resource"]}
    if flavor := catalog.flavor(resource.get("flavor_id") or ""):
        resource |= {"flavor_name": flavor.as_json()["flavor_name"], "flavor_detail": flavor.details()}
    return resource
