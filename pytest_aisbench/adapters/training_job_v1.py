"""The V1 request that creates a training job. Pure."""

from __future__ import annotations

from typing import Any

from pytest_aisbench.adapters.training_job import Placement, check, description, folder, image, nas
from pytest_aisbench.domain.job import JobSpec
from pytest_aisbench.domain.stage import StoreUrl

_NOTHING = "no-data/"


def nothing(spec: JobSpec) -> StoreUrl:
    """V1 insists on data: where there is none, an empty folder beside the results."""
    parent = spec.outputs.key.rstrip("/").rpartition("/")[0]
    return StoreUrl(spec.outputs.bucket, f"{parent}/{_NOTHING}".lstrip("/"))


def is_nothing(data: StoreUrl) -> bool:
    return f"/{data.key}".endswith(f"/{_NOTHING}")


def body(spec: JobSpec, place: Placement) -> dict[str, Any]:
    """Flavor and engine by name. V1 has no variables: they come by `ma-pre-start.sh`, which is staged with the code."""
    check(spec)
    own, resource = image(spec, "V1"), place.resource
    parameters = dict(spec.parameters)
    if own:
        parameters |= spec.environment  # with an image of one's own the parameters are variables
    if "pool_id" in resource:
        machines: dict[str, Any] = {"pool_id": resource["pool_id"]}
    else:
        machines = {"spec_id": resource["flavor_id"]}
    if own:
        software: dict[str, Any] = {"user_image_url": own["image"], "user_command": own["command"]}
    else:
        software = {"engine_id": place.engine_name}
    mounted = nas(spec)
    return {
        "job_name": str(spec.options.get("job_name") or spec.name),
        "job_desc": description(spec),
        "workspace_id": "0",
        "config": {
            "worker_server_num": resource["node_count"],
            "app_url": folder(spec.code),
            "boot_file_url": folder(spec.code) + spec.entry,
            "parameter": [{"label": name, "value": value} for name, value in parameters.items()],
            "data_url": folder(spec.inputs or nothing(spec)),
            "train_url": folder(spec.outputs),
            "log_url": folder(spec.logs),
            **machines,
            **software,
            **mounted,
            "create_version": True,
        },
    }
