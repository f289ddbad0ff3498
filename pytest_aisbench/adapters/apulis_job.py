"""The request that submits a job to Apulis, and the platform's rules for it. Pure."""

from __future__ import annotations

import re
import uuid
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any
from urllib.parse import quote, unquote

from pytest_aisbench.adapters import apulis_options
from pytest_aisbench.adapters.apulis_command import ALONE, Places, commands
from pytest_aisbench.adapters.apulis_options import Options
from pytest_aisbench.adapters.apulis_settings import ApulisAccess
from pytest_aisbench.domain.job import JobSpec
from pytest_aisbench.domain.stage import StoreUrl
from pytest_aisbench.errors import UsageFault

_OURS = uuid.UUID("5d0c5ac0-2f1c-5b0a-9e5e-0a4b9f1d6e77")  # of all names that we give
_NAME = re.compile(r"[A-Za-z0-9_-]{1,64}")
_VARIABLE = re.compile(r"[A-Za-z_][A-Za-z0-9_]*")
_PARAMETER = re.compile(r"[^\s=]+")
_FRAMEWORKS = {"mindspore", "tensorflow"}
_CARDS, _NODE = (1, 2, 4, 8), 8
# Read back from the platform, so that whoever takes the job over knows it as well.
_LOGS, _UNTIL = "AIS_LOGS", "AIS_UNTIL"


@dataclass(frozen=True)
class Kept:
    """What a job's own request says of it."""

    nodes: int
    logs: StoreUrl | None  # where its logs are to be
    until: str  # how the line begins that says that it is done
    speakers: int  # pods that say so


def job_id(name: str) -> str:
    """The id that we give a job of this name: sent twice, it is made once."""
    return str(uuid.uuid5(_OURS, name))


def body(spec: JobSpec, access: ApulisAccess, share: str) -> dict[str, Any]:
    """`share`: the bucket that is the shared folder; empty where there is none."""
    options = apulis_options.read(spec.options)
    check(spec, options)
    several = spec.shape.nodes > 1
    framework = {"frameworkType": spec.framework} if spec.framework in _FRAMEWORKS else {}
    kept = {_LOGS: str(spec.logs), **({_UNTIL: quote(options.done, safe="")} if options.done else {})}
    return {
        "jobId": job_id(spec.name),
        "jobName": spec.name,
        "description": spec.description,
        "userName": access.user,
        "vcName": access.vc,
        "team": access.vc,
        "jobType": "training",
        "jobtrainingtype": "PSDistJob" if several else "RegularJob",
        "gpuType": options.device_type,
        "resourcegpu": spec.shape.devices,  # of each node
        # Without numps the platform accepts the job, and cannot launch it.
        **({"numps": 1, "numpsworker": spec.shape.nodes} if several else {}),
        "preemptionAllowed": str(options.preemptible),
        "image": options.image,
        "containerUserId": 0,
        "hostNetwork": several,
        "isPrivileged": several,
        **dict.fromkeys(("workPath", "dataPath", "jobPath"), "./"),
        **{f"enable{path}": True for path in ("workpath", "datapath", "jobpath")},
        "env": [{"name": name, "value": value} for name, value in kept.items()],
        "interactivePorts": "",
        "plugins": {},
        **framework,
        **commands(spec, options, _places(spec, options, access, share)),
        **({"endpoints": list(options.endpoints)} if options.endpoints else {}),
    }


def kept(parameters: Mapping[str, Any]) -> Kept:
    """Of the parameters that the platform shows."""
    rows = parameters.get("env") or []
    given = {str(row.get("name")): str(row.get("value", "")) for row in rows if isinstance(row, dict)}
    nodes = int(parameters.get("numpsworker") or 1)
    master = str(parameters.get("masterCmd") or "")
    launches = "horovodrun" in master
    logs = given.get(_LOGS)
    return Kept(
        nodes=nodes if parameters.get("jobtrainingtype") == "PSDistJob" else 1,
        logs=StoreUrl.parse(logs) if logs else None,
        until=unquote(given.get(_UNTIL, "")),
        speakers=1 if launches or parameters.get("jobtrainingtype") != "PSDistJob" else nodes,
    )


def check(spec: JobSpec, options: Options) -> None:
    if not _NAME.fullmatch(spec.name):
        advice = "use 1 to 64 letters, digits, underscores and hyphens"
        raise UsageFault(f"{spec.name!r} cannot be the name of a job on Apulis", advice=advice)
    if options.is_npu:
        _check_cards(spec)
    for name in spec.parameters:
        if not _PARAMETER.fullmatch(name):
            raise UsageFault(f"{name!r} cannot be a parameter", advice="write names without blanks and =")
        if name in {"train_url", "data_url"}:
            raise UsageFault(f"parameter {name} is set by the platform", advice="remove it from workload.toml")
    for name in spec.environment:
        if not _VARIABLE.fullmatch(name):
            raise UsageFault(f"{name!r} cannot be an environment variable", advice="use letters, digits and _")
        if name.startswith(("DLWS_", "DLTS_")):
            raise UsageFault(f"environment {name}: DLWS_ and DLTS_ are the platform's", advice="rename it")
    if options.launcher == "horovod" and options.command:
        raise UsageFault("[apulis] has both command and launcher", advice="remove launcher: the command starts all")
    if spec.shape.nodes > 1 and "horovodrun" in options.command and spec.environment.get(ALONE) != "True":
        advice = "write launcher = 'horovod' instead of it: that starts horovodrun once, for all nodes"
        raise UsageFault("[apulis] command would start horovodrun on every node", advice=advice)
    if options.launcher == "horovod" and spec.environment.get(ALONE) == "True":
        advice = "leave --aisbench-single-server out, or write launcher = 'ranks' in workload.toml"
        raise UsageFault("[apulis] launcher horovod joins all cards: no node trains alone", advice=advice)


def _check_cards(spec: JobSpec) -> None:
    nodes, devices = spec.shape.nodes, spec.shape.devices
    if nodes > 1 and devices != _NODE:
        advice = f"choose --aisbench-devices {_NODE}, or --nodes 1"
        raise UsageFault(f"shape {spec.shape}: on Apulis several nodes train with {_NODE} NPUs each", advice=advice)
    if devices not in _CARDS:
        advice = f"choose {', '.join(map(str, _CARDS))} devices"
        raise UsageFault(f"shape {spec.shape}: Apulis gives no {devices} NPUs of a node", advice=advice)


def _places(spec: JobSpec, options: Options, access: ApulisAccess, share: str) -> Places:
    mount = (access.share_in_pods or access.share).rstrip("/")

    def seen(url: StoreUrl) -> str:
        return f"{mount}/{url.key}" if url.bucket == share else str(url)

    above = StoreUrl(spec.outputs.bucket, spec.outputs.key.rstrip("/").rpartition("/")[0])
    data = options.data_dir or (seen(spec.inputs) if spec.inputs else "")
    scratch = seen(above / "work") if share else "/job/aisbench-work"
    return Places(seen(spec.code), seen(spec.outputs), data, scratch)
