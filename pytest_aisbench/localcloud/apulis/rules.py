"""What Apulis makes of a submitted job: `checked` refuses it at once, `launch` turns it into a `Launch` or lets it end
in error.
"""

from __future__ import annotations

import re
import secrets
import shlex
import time
import uuid
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from pytest_aisbench.localcloud.apulis import VC
from pytest_aisbench.localcloud.apulis.pods import NPU, Pods, Role, on_host
from pytest_aisbench.localcloud.engine.launch import Channel, Launch, Place

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping


ADMIN = "admin"
KINDS = ("RegularJob", "PSDistJob")
_POD_NAME = re.compile(r"[a-z0-9]([a-z0-9-]{0,50}[a-z0-9])?")
_STORE_URL = re.compile(r"(?:s3|obs)://([^/]+)/?(.*)")
POD_PORTS = range(40000, 50000)


class Rejected(Exception):
    """The platform does not accept the job."""


class UnlaunchableError(Exception):
    """The platform accepted the job, which ends in `error` with this message."""


def checked(body: Mapping[str, Any], *, may_use: bool) -> dict[str, Any]:
    """The parameters of the job as the platform keeps them; ValueError where the platform's own code breaks on one."""
    params = dict(body)
    for name in ("jobName", "vcName"):
        if not str(params.get(name) or "").strip():
            raise Rejected(f"ERROR: {name} cannot be empty")
    if not may_use or params["vcName"] != VC:
        raise Rejected("Access Denied!")
    if not params.get("jobType"):
        raise Rejected("Cannot schedule job. Cannot add job into database.")
    if params.get("gpuType") not in DEVICES:
        raise Rejected("wrong device type")
    params["preemptionAllowed"] = _flag(params.get("preemptionAllowed", False))
    params["resourcegpu"] = int(params.get("resourcegpu") or 0)
    params["jobId"] = str(params.get("jobId") or uuid.uuid4())
    user = params["userName"]
    for name in ("jobPath", "workPath", "dataPath"):
        params[name] = path = str(params.get(name) or "./")
        if ".." in path or "\\." in path or path.startswith(("/", "\\")):
            raise Rejected(f"ERROR: '..' and '\\.' cannot be used in {name}, and it must be relative")
    if params["jobPath"].strip("./") == "":
        params["jobPath"] = f"jobs/{time.strftime('%y%m%d')}/{params['jobId']}/"
    params["jobPath"] = f"{user}/{params['jobPath']}"
    params["workPath"] = f"{user}/{params['workPath']}"
    return params


def launch(
    params: Mapping[str, Any],
    storage: Path,
    rest_api: str,
    *,
    email: str,
    interpreter: str,
    time_limit: float | None = None,
) -> Launch:
    kind = params.get("jobtrainingtype", KINDS[0])
    if kind not in KINDS:
        raise UnlaunchableError(f"ERROR: invalid jobtrainingtype: {kind}")
    if _POD_NAME.fullmatch(params["jobId"]) is None:
        raise UnlaunchableError(f"Cannot submit job! Invalid value: {params['jobId']}: a lowercase RFC 1123 name")
    if not params.get("image"):
        raise UnlaunchableError("Cannot submit job! spec.containers[0].image: Required value")
    roles = _roles(params, kind)
    trainers = [role for role in roles if role.name != "ps"]
    if not DEVICES[params["gpuType"]].can_hold(trainers[0].cards, len(trainers)):
        raise UnlaunchableError("can't allocate resources")
    environment = _environment(params)
    mounts = _mounts(params, storage)
    arguments = _arguments(trainers[0].command)
    results = arguments.get("train_url") or environment.get("OUTPUT_PATH", "")
    url = _STORE_URL.fullmatch(results)
    prefix = url[2].rstrip("/") + "/" if url and url[2] else ""
    outputs = (Channel("train_url", Place(url[1], prefix), ""),) if url else ()
    pods = Pods(
        job_id=params["jobId"],
        user=params["userName"],
        vc=params["vcName"],
        device=params["gpuType"],
        roles=roles,
        mounts=mounts,
        environment=_platform_variables(params, roles, rest_api, email),
        results=on_host(results, mounts) if results.startswith("/") else None,
    )
    return Launch(
        job_id=str(uuid.uuid4()),  # the client's may be anything
        nodes=len(roles),
        cards=trainers[0].cards,
        engine_version="",
        interpreter=interpreter,
        code=None,
        boot_file="",
        parameters=tuple((environment | arguments).items()),
        outputs=outputs,
        environment=environment,
        time_limit=time_limit,
        contract="apulis",
        name=str(params["jobName"]),
        image=str(params["image"]),
        pods=pods,
    )


def _roles(params: Mapping[str, Any], kind: str) -> tuple[Role, ...]:
    command = str(params.get("cmd") or "")
    ports = iter(secrets.SystemRandom().sample(POD_PORTS, 128))
    if kind == KINDS[0]:
        return (Role("master", 0, params["resourcegpu"], command, 0, next(ports)),)
    if "numps" not in params:
        raise UnlaunchableError("Cannot submit job! 'numps'")
    servers, workers = _count(params["numps"]), _count(params.get("numpsworker"))
    if servers + workers > 64:
        raise UnlaunchableError("can't allocate resources")
    worker_command, server_command = (str(params.get(name) or command) for name in ("workerCmd", "masterCmd"))
    return (
        *(Role("worker", i, params["resourcegpu"], worker_command, i, next(ports)) for i in range(workers)),
        *(Role("ps", i, 0, server_command, workers + i, next(ports)) for i in range(servers)),
    )


def _mounts(params: Mapping[str, Any], storage: Path) -> dict[str, Path]:
    user, work = params["userName"], storage / "work"
    mounts = {f"/home/{user}": work / user, "/job": work / params["jobPath"]}
    if _flag(params.get("enableworkpath", True)):
        mounts["/work"] = work / params["workPath"]
    if _flag(params.get("enabledatapath", True)):
        mounts["/data"] = storage / "data" / params["dataPath"]
    return mounts


def _environment(params: Mapping[str, Any]) -> dict[str, str]:
    variables = {"aiframework": "frameworkType", "CODE_PATH": "codePath", "OUTPUT_PATH": "outputPath"}
    chosen = {name: str(params[field]) for name, field in variables.items() if params.get(field)}
    return chosen | {str(entry["name"]): str(entry["value"]) for entry in params.get("env") or ()}


def _platform_variables(
    params: Mapping[str, Any], roles: tuple[Role, ...], rest_api: str, email: str
) -> dict[str, str]:
    """What the platform tells every pod; the last four are secrets that must not get into a log."""
    workers = [role for role in roles if role.name == "worker"]
    owner = str(params.get("containerUserId") or 0)
    variables = {
        "DLWS_JOB_ID": params["jobId"],
        "DLWS_USER_NAME": params["userName"],
        "DLWS_USER_EMAIL": email,
        "DLWS_UID": owner,
        "DLWS_GID": owner,
        "DLWS_VC_NAME": params["vcName"],
        "DLWS_GPU_TYPE": params["gpuType"],
        "DLWS_REST_API": rest_api,
        "DLWS_NUM_PS": str(sum(role.name == "ps" for role in roles)),
        "DLWS_NUM_WORKER": str(len(workers) or 1),
        "DLWS_NUM_GPU_PER_WORKER": str(params["resourcegpu"]),
    }
    if workers:
        variables["DLWS_WORKER_NUM"] = str(len(workers))
        variables["DLWS_IS_NPU_JOB"] = str("npu" in params["gpuType"]).lower()
    if _flag(params.get("hostNetwork", False)):
        variables["DLWS_HOST_NETWORK"] = "enable"
    tokens = ("FAMILY_TOKEN", "DLTS_JOB_TOKEN", "IDENTITY_TOKEN", "PASSWORD")
    return variables | {name: secrets.token_hex(16) for name in tokens}


def _arguments(command: str) -> dict[str, str]:
    """The options `--name=value` of a command, for the simulated engine."""
    try:
        words = shlex.split(command)
        words = [inner for word in words for inner in (shlex.split(word) if " " in word else [word])]
    except ValueError:
        return {}
    pairs = (word[2:].partition("=") for word in words if word.startswith("--"))
    return {name: value for name, equals, value in pairs if equals}


def _flag(value: object) -> bool:
    if isinstance(value, str):
        if value.lower() not in {"true", "false", "0", "1"}:
            raise ValueError(f"invalid truth value {value!r}")
        return value.lower() in {"true", "1"}
    return bool(value)


def _count(value: object) -> int:
    return int(str(value or 0)) or 1


# The machines of the local Apulis, and how many of their cards are free.

GPU = "nvidia_gpu_amd64"
CARDS = 8  # in each machine
NPU_COUNTS = (0, 1, 2, 4, 8)
_MACHINES = 8  # of each kind


@dataclass(frozen=True)
class Device:
    name: str
    resource: str
    machine: str

    def can_hold(self, cards: int, nodes: int) -> bool:
        counts = NPU_COUNTS if self.name == NPU else range(CARDS + 1)
        return cards in counts and nodes <= _MACHINES

    def as_json(self, running: Iterable[Pods]) -> dict[str, Any]:
        free = [CARDS] * _MACHINES
        for pods in running:
            if pods.device != self.name:
                continue
            for role in pods.trainers:
                emptiest = free.index(max(free))
                free[emptiest] = max(0, free[emptiest] - role.cards)
        detail = [
            {"allocatable": left, "capacity": CARDS, "nodeName": f"{self.machine}{number:02d}"}
            for number, left in enumerate(free, 1)
        ]
        return {"capacity": CARDS * _MACHINES, "detail": detail, "deviceStr": self.resource}


DEVICES = {
    device.name: device for device in (Device(NPU, "npu.huawei.com/NPU", "atlas"), Device(GPU, "nvidia.com/gpu", "gpu"))
}
