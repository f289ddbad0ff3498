"""Renders the request that creates a training job on ModelArts, for API V2 or V1, and checks the vendor's rules.

Pure: a `JobSpec` goes in, a body for JSON comes out. `placement` chooses machines and software.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from pytest_aisbench.errors import UsageFault
from pytest_aisbench.model.job import (
    BY_ENVIRONMENT,
    JobSpec,
    StoreUrl,
    check_job_name,
    check_parameter_names,
    check_variable_name,
)
from pytest_aisbench.platforms.modelarts import image_rules

ASCEND = "Ascend-Powered-Engine"
_SIZES = {
    1: "xlarge",
    2: "2xlarge",
    4: "4xlarge",
    8: "8xlarge",
    16: "16xlarge",
}  # the vendor's word for a number of cards
_PUBLIC = "modelarts.kat1"  # has 1 to 8 cards
POOL_FLAVORS = "modelarts.pool.visual"
_NODE = 8  # cards of a whole node: a pool's default, and required of nodes that train together

_INPUT = "/home/ma-user/modelarts/inputs/data_url_0"

_VARIABLES, _VARIABLE_SIZE = 100, 4096
_DESCRIPTION = 256
_HOURS = range(1, 73)
_NO_DATA = "no-data/"  # the name of an empty folder


@dataclass(frozen=True)
class Placement:
    """Which machines and which software a job gets."""

    resource: Mapping[str, Any]
    engine: Mapping[str, str]

    @property
    def engine_name(self) -> str:
        """With its version; empty for a custom image."""
        return "" if "image_url" in self.engine else f"{self.engine['engine_name']} {self.engine['engine_version']}"


def placement(spec: JobSpec, devices_source: str = "") -> Placement:
    """As `[modelarts]` of workload.toml asks. `devices_source` names what overrode the workload's own devices."""
    if spec.shape.nodes > 1 and spec.shape.devices != _NODE:
        raise UsageFault(
            f"shape {spec.shape}: on ModelArts several nodes train with {_NODE} cards each",
            advice=f"choose --aisbench-devices {_NODE}, or --nodes 1",
        )
    version, own = _option(spec, "framework_version"), custom_image(spec)
    if not version and not own:
        advice = "add the engine's version, such as mindspore_1.3.0-cann_5.0.2-py_3.7-euler_2.8.3-aarch64"
        raise UsageFault("[modelarts] framework_version is missing in workload.toml", advice=advice)
    engine = {"engine_name": _option(spec, "framework_type") or ASCEND, "engine_version": version}
    if own:
        engine = {"image_url": own["image"]}
    flavor, pool = _option(spec, "flavor"), _option(spec, "pool_id")
    if flavor and pool:
        raise UsageFault("[modelarts] has both flavor and pool_id in workload.toml", advice="remove one of them")
    if not flavor and not pool:
        advice = f"add flavor (such as {_PUBLIC}.8xlarge) for the public pool, or pool_id for a dedicated one"
        raise UsageFault("[modelarts] has neither flavor nor pool_id in workload.toml", advice=advice)
    resource = _in_pool(spec, pool) if pool else {"flavor_id": _flavor(spec, flavor, devices_source)}
    return Placement({**resource, "node_count": spec.shape.nodes}, engine)


def request_body_v2(spec: JobSpec, place: Placement) -> dict[str, Any]:
    check_spec(spec)
    own = custom_image(spec, "V2")
    started = {"command": own["command"]} if own else {"boot_file": folder_path(spec.code) + spec.entry}
    inputs = {"inputs": [_channel(spec, "data_url", spec.inputs, _INPUT)]} if spec.inputs else {}
    limits = {} if spec.max_run_s is None else _auto_stop(spec.max_run_s)
    return {
        "kind": "job",
        "metadata": {"name": spec.name, "workspace_id": "0", "description": description(spec)},
        "algorithm": {
            "code_dir": folder_path(spec.code),
            **started,
            "engine": dict(place.engine),
            "parameters": [{"name": name, "value": value} for name, value in spec.parameters.items()],
            **inputs,
            "outputs": [_channel(spec, "train_url", spec.outputs)],
            "environments": dict(spec.environment),
        },
        "spec": {
            "resource": dict(place.resource),
            "log_export_path": {"obs_url": folder_path(spec.logs)},
            **_volumes(spec),
            **limits,
        },
    }


def request_body_v1(spec: JobSpec, place: Placement) -> dict[str, Any]:
    """Has names for flavor and engine, not numbers. V1 has no variables: `ma-pre-start.sh` sets them."""
    check_spec(spec)
    own, resource = custom_image(spec, "V1"), place.resource
    if spec.urls_by == BY_ENVIRONMENT and not own:  # a custom image gets them as variables anyway
        advice = "use --aisbench-modelarts-version V2, or remove it"
        raise UsageFault('urls_by = "environment" in workload.toml: V1 passes them as parameters', advice=advice)
    parameters = dict(spec.parameters)
    software = {"engine_id": place.engine_name}
    if own:
        software = {"user_image_url": own["image"], "user_command": own["command"]}
        parameters |= spec.environment  # V1 gives a custom image the parameters as variables
    pooled = "pool_id" in resource
    machines = {"pool_id": resource["pool_id"]} if pooled else {"spec_id": resource["flavor_id"]}
    return {
        "job_name": str(spec.options.get("job_name") or spec.name),
        "job_desc": description(spec),
        "workspace_id": "0",
        "config": {
            "worker_server_num": resource["node_count"],
            "app_url": folder_path(spec.code),
            "boot_file_url": folder_path(spec.code) + spec.entry,
            "parameter": [{"label": name, "value": value} for name, value in parameters.items()],
            "data_url": folder_path(spec.inputs or empty_data_folder(spec)),
            "train_url": folder_path(spec.outputs),
            "log_url": folder_path(spec.logs),
            **machines,
            **software,
            **shared_storage(spec),
            "create_version": True,
        },
    }


def empty_data_folder(spec: JobSpec) -> StoreUrl:
    """An empty folder beside the results, for a job without data: V1 requires some."""
    parent = spec.outputs.key.rstrip("/").rpartition("/")[0]
    return StoreUrl(spec.outputs.bucket, f"{parent}/{_NO_DATA}".lstrip("/"))


def is_empty_data_folder(data: StoreUrl) -> bool:
    return f"/{data.key}".endswith(f"/{_NO_DATA}")


def cards_of_flavor(flavor: str) -> int:
    """How many cards a flavor has, by its name; 0 if the name does not tell."""
    family, _, size = flavor.rpartition(".")
    return next((count for count, word in _SIZES.items() if family in {_PUBLIC, POOL_FLAVORS} and word == size), 0)


def description(spec: JobSpec) -> str:
    """Cuts the prefix, never the trial's id at the end: the id tells jobs apart."""
    prefix = _option(spec, "job_description_prefix")[: max(0, _DESCRIPTION - len(spec.description) - 1)]
    return f"{prefix} {spec.description}".strip()[:_DESCRIPTION]


def custom_image(spec: JobSpec, version: str = "") -> dict[str, str]:
    """The custom image and its command; empty if an engine of the platform trains.

    With a `version` of the API: adds the default command, which starts the workload's entry, and checks both.
    """
    given = {key: _option(spec, key) for key in ("image", "command")}
    if not given["image"]:
        if given["command"]:
            raise UsageFault("[modelarts] has a command in workload.toml, and no image to run it", advice="add image")
        return {}
    if version:
        code = spec.code.key.rstrip("/").rpartition("/")[2]
        image_rules.check_image(given["image"])
        given["command"] = given["command"] or image_rules.default_command(spec.entry, version=version, code=code)
        image_rules.check_command(given["command"], version=version, code=code)
    return given


def shared_storage(spec: JobSpec) -> dict[str, str]:
    """Type, address and mount path of shared storage, all three; empty if the workload has none."""
    given = {key: _option(spec, key) for key in ("nas_type", "nas_share_addr", "nas_mount_path")}
    if given["nas_share_addr"] and not given["nas_type"]:
        given["nas_type"] = "nfs"
    if missing := [key for key, value in given.items() if not value]:
        if len(missing) == len(given):
            return {}
        raise UsageFault(f"[modelarts] has no {' and no '.join(missing)} beside the other nas_ keys", advice="add it")
    if given["nas_type"] != "nfs":
        raise UsageFault(f"[modelarts] nas_type {given['nas_type']!r} is not known", advice="write nfs")
    mount = given["nas_mount_path"]
    if not mount.startswith("/") or mount.rstrip("/") in {"", "/cache", "/home/ma-user/modelarts"}:
        raise UsageFault(f"[modelarts] nas_mount_path {mount!r} cannot be mounted on", advice="write /home/ma-user/nas")
    return given


def _volumes(spec: JobSpec) -> dict[str, Any]:
    given = shared_storage(spec)
    if not given:
        return {}
    volume = {"nfs_server_path": given["nas_share_addr"], "local_path": given["nas_mount_path"], "read_only": False}
    return {"volumes": [{"nfs": volume}]}


def _option(spec: JobSpec, key: str) -> str:
    value = spec.options.get(key, "")
    if not isinstance(value, str):
        raise UsageFault(f"[modelarts] {key} in workload.toml is not text", advice="put it in quotes")
    return value


def _flavor(spec: JobSpec, flavor: str, devices_source: str) -> str:
    """The configured flavor; in the family whose names we know, the one with the shape's number of cards."""
    devices = spec.shape.devices
    if flavor != _PUBLIC and flavor.rpartition(".")[0] != _PUBLIC:
        if devices_source:
            advice = f"set flavor and devices in workload.toml, and leave {devices_source} out"
            raise UsageFault(f"{devices_source}: how many cards flavor {flavor} has is not known", advice=advice)
        return flavor
    if devices not in _SIZES or devices > _NODE:
        raise UsageFault(
            f"shape {spec.shape}: {_PUBLIC} has no flavor of {devices} cards", advice="choose 1, 2, 4 or 8 cards"
        )
    fitting = f"{_PUBLIC}.{_SIZES[devices]}"
    if flavor not in {fitting, _PUBLIC} and not devices_source:
        advice = f"set flavor = '{fitting}' in workload.toml, or '{_PUBLIC}' for one that fits each shape"
        raise UsageFault(f"shape {spec.shape}: flavor {flavor} does not have {devices} cards", advice=advice)
    return fitting


def _in_pool(spec: JobSpec, pool: str) -> dict[str, Any]:
    devices = spec.shape.devices
    if devices == _NODE:
        return {"pool_id": pool}
    if devices not in _SIZES:
        raise UsageFault(
            f"shape {spec.shape}: pools have no flavor of {devices} cards", advice="choose 1, 2, 4, 8 or 16 cards"
        )
    return {"pool_id": pool, "flavor_id": f"{POOL_FLAVORS}.{_SIZES[devices]}"}


def check_spec(spec: JobSpec) -> None:
    check_job_name(spec.name, "ModelArts")
    if not spec.entry.endswith(".py") and not custom_image(spec):
        raise UsageFault(
            f"entry {spec.entry!r} in workload.toml is not a Python file", advice="ModelArts starts .py files"
        )
    taken = {"train_url", "data_url"} if spec.inputs else {"train_url"}
    check_parameter_names(spec.parameters, taken)
    if len(spec.environment) > _VARIABLES:
        raise UsageFault(
            f"environment has {len(spec.environment)} variables; ModelArts takes {_VARIABLES}", advice="use fewer"
        )
    for name, value in spec.environment.items():
        check_variable_name(name)
        if name.startswith("MA_"):
            raise UsageFault(f"environment {name}: names that start with MA_ are the platform's", advice="rename it")
        if len(value) > _VARIABLE_SIZE:
            raise UsageFault(
                f"environment {name} is longer than {_VARIABLE_SIZE} characters", advice="put it in a file"
            )


def _channel(spec: JobSpec, name: str, url: StoreUrl, local_dir: str = "") -> dict[str, Any]:
    """A folder that the platform copies in or out; it passes the local path to the code as `--name=…`, or in the
    environment variable of that name."""
    local = {"local_dir": local_dir} if local_dir else {}
    method = "env" if spec.urls_by == BY_ENVIRONMENT else "parameter"
    return {"name": name, "access_method": method, **local, "remote": {"obs": {"obs_url": folder_path(url)}}}


def folder_path(url: StoreUrl) -> str:
    return f"/{url.bucket}/{url.key}" if url.is_folder else f"/{url.bucket}/{url.key}/"


def _auto_stop(max_run_s: float) -> dict[str, Any]:
    """A limit in whole hours, the vendor's only unit; none above the vendor's maximum, since the run stops jobs too."""
    hours = max(1, math.ceil(max_run_s / 3600)) if math.isfinite(max_run_s) else _HOURS.stop
    return {"auto_stop": {"time_unit": "HOURS", "duration": hours}} if hours in _HOURS else {}
