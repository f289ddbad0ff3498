"""The pods of one Apulis job: their roles and addresses (`Pods`), the files and variables by which they find each
other, and the container that the engine runs for each (`Pod`).

Workers come first in the list of roles and the parameter server (`ps`) last, so that worker i is node i of the engine.
"""

from __future__ import annotations

import json
import os
import shlex
import shutil
from dataclasses import dataclass, field
from pathlib import Path, PurePosixPath
from typing import TYPE_CHECKING, Any

from pytest_aisbench.localcloud.engine import container
from pytest_aisbench.localcloud.engine.container import LOGS, PACKAGES, TEMPORARY, Container, Layout, base_environment
from pytest_aisbench.localcloud.engine.launch import Launch, card_address, node_address

if TYPE_CHECKING:
    from collections.abc import Collection, Mapping

    from pytest_aisbench.localcloud.engine.node import Spec
    from pytest_aisbench.localcloud.obs.storage import Objects


NPU = "huawei_npu_arm64"


@dataclass(frozen=True)
class Pods:
    job_id: str  # the one that clients use
    user: str
    vc: str
    device: str
    roles: tuple[Role, ...]
    mounts: Mapping[str, Path]  # the shared folders, by their paths in the pods
    environment: Mapping[str, str] = field(repr=False)
    """The platform's variables, the same for all pods. They contain tokens."""
    results: Path | None = None  # where the job is to write its results, if that is a shared folder

    @property
    def is_distributed(self) -> bool:
        return self.roles[0].name == "worker"

    @property
    def is_npu(self) -> bool:
        return self.device == NPU

    @property
    def trainers(self) -> list[Role]:
        """The pods with cards: the workers, or the one pod of a regular job."""
        return [role for role in self.roles if role.name != "ps"]

    @property
    def head(self) -> Role:
        """The pod that sets the others up."""
        return next((role for role in self.roles if role.name == "ps"), self.roles[0])

    @property
    def ranks(self) -> int:
        return sum(max(1, role.cards) for role in self.trainers)

    def name(self, role: Role) -> str:
        return f"{self.job_id}-{role.key}" if self.is_distributed else self.job_id

    def is_done(self, succeeded: Collection[str]) -> bool:
        """True if the job has succeeded: a ps has, or all workers have."""
        servers = {role.task for role in self.roles if role.name == "ps"}
        return bool(servers & set(succeeded)) or {role.task for role in self.trainers} <= set(succeeded)


@dataclass(frozen=True)
class Role:
    name: str  # `master` (of a regular job), `ps` or `worker`
    index: int
    cards: int
    command: str = field(repr=False)
    node: int  # its number in the engine
    ssh_port: int

    @property
    def key(self) -> str:
        """Its part of the names of variables and pods."""
        return f"{self.name}{self.index}"

    @property
    def host(self) -> str:
        return "master" if self.name == "master" else f"{self.name}-{self.index}"

    @property
    def task(self) -> str:
        """Its name in the engine."""
        return f"worker-{self.node}"

    @property
    def address(self) -> str:
        return node_address(self.node)

    @property
    def cards_addresses(self) -> list[str]:
        return [card_address(self.node, card) for card in range(self.cards)]


def on_host(path: str, mounts: Mapping[str, Path]) -> Path | None:
    """The host's path of something that pods see in a shared folder; None where it is in none."""
    inside = PurePosixPath(path)
    if ".." in inside.parts:
        return None
    for folder in sorted(mounts, key=len, reverse=True):
        if inside.is_relative_to(folder):
            return mounts[folder] / inside.relative_to(folder)
    return None


# What the platform tells the pods of a job about each other: variables, host files and rank tables.


def pod_variables(pods: Pods, role: Role) -> dict[str, str]:
    """The variables that tell one pod its own role and address, and those of the others."""
    variables = {
        "POD_IP": role.address,
        "DLWS_ROLE_NAME": role.name,
        "DLWS_ROLE_IDX": str(role.index),
        "DLTS_ROLE_IDX": str(role.index),
        "DLWS_SD_SELF_IP": role.address,
        "DLWS_SD_SELF_SSH_PORT": str(role.ssh_port),
        "DLWS_SD_SELF_IB_IP": role.address,
        "DLWS_SD_SELF_HOST_IP": role.address,
    }
    for other in pods.roles:
        where = {"IP": other.address, "SSH_PORT": str(other.ssh_port), "IB_IP": other.address, "HOST_IP": other.address}
        if pods.is_npu and other.cards:
            where["NPU_IP_LIST"] = _numbered(other)
        # The platform's guide names the first worker in commands of one node too.
        for key in (other.key,) if pods.is_distributed else (other.key, "worker0"):
            variables |= {f"DLWS_SD_{key}_{name}": value for name, value in where.items()}
    if pods.is_npu and role.cards:
        variables |= {"VISIBLE_IDS": ",".join(map(str, range(role.cards))), "NPU_IPS": _numbered(role)}
    return variables


def hosts(pods: Pods) -> str:
    """The lines for /etc/hosts: pods reach each other by name, as the platform's ssh configuration does."""
    return "".join(f"{role.address} {role.host} ib-{role.host}\n" for role in pods.roles)


def write_own(pods: Pods, role: Role) -> None:
    """Write the file in which one pod lists its cards."""
    if pods.is_npu and role.cards:
        lines = f"ip={_numbered(role)}\nhost={role.address}\n"
        (_npu_folder(pods) / f"npu_{role.index}.info").write_text(lines)


def write_common(pods: Pods) -> None:
    """Write the files that the head writes for all pods."""
    home, job = _home(pods), pods.mounts["/job"]
    (job / "hostfile").write_text(_slots(pods, ""))
    ib_config = _slots(pods, "ib-")
    for name in ("ib_config", *(f"ib_config-{role.name}-{role.index}" for role in pods.roles)):
        (job / name).write_text(ib_config)
    (home / "ib_config").write_text(ib_config)  # guides of the platform look for it here
    (job / "ib_ready").touch()
    (home / ".ssh").mkdir(mode=0o700, exist_ok=True)
    (home / ".ssh" / "config").write_text(_ssh_config(pods))
    if pods.is_npu:
        folder = _npu_folder(pods)
        (folder / "hccl_ms.json").write_text(json.dumps(lab_table(pods), indent=4))
        (folder / "hccl_tf.json").write_text(json.dumps(cloud_table(pods), indent=4))
        (folder / "train.sh").write_text(_TRAIN.format(ranks=pods.trainers[0].cards))
        (folder / "train.sh").chmod(0o755)
        (folder / "setup_environment_done").touch()


def lab_table(pods: Pods) -> dict[str, Any]:
    instances = [
        {"devices": [{"device_id": str(card), "device_ip": address}], "server_id": role.address}
        for role in pods.trainers
        for card, address in enumerate(role.cards_addresses)
    ]
    group = {
        "device_num": str(len(instances)),
        "server_num": str(len(pods.trainers)),
        "group_name": "test",
        "instance_count": str(len(instances)),
        "instance_list": [{**instance, "rank_id": str(rank)} for rank, instance in enumerate(instances)],
    }
    return {
        "board_id": "0x0020",
        "chip_info": "910",
        "deploy_mode": "lab",
        "group_count": "1",
        "group_list": [group],
        "para_plane_nic_location": "device",
        "para_plane_nic_name": [f"eth{card}" for card in range(pods.trainers[0].cards)],
        "para_plane_nic_num": "8",  # the platform writes 8 whatever the number of cards
        "status": "completed",
    }


def cloud_table(pods: Pods) -> dict[str, Any]:
    instances = [
        {
            "devices": [
                {"device_id": str(card), "device_ip": address} for card, address in enumerate(role.cards_addresses)
            ],
            "pod_name": f"{pods.job_id}-worker-{role.index}",
            "server_id": role.address,
        }
        for role in pods.trainers
    ]
    group = {
        "device_count": str(sum(role.cards for role in pods.trainers)),
        "group_name": "test",
        "instance_count": str(len(instances)),
        "instance_list": instances,
    }
    return {"group_count": "1", "group_list": [group], "status": "completed"}


def _ssh_config(pods: Pods) -> str:
    return "".join(
        f"Host {name}\n  HostName {role.address}\n  Port {role.ssh_port}\n  User {pods.user}\n"
        "  StrictHostKeyChecking no\n"
        for role in pods.roles
        for name in (role.host, f"ib-{role.host}")
    )


def _slots(pods: Pods, prefix: str) -> str:
    return "".join(f"{prefix}{role.host} slots={role.cards}\n" for role in pods.trainers)


def _numbered(role: Role) -> str:
    return ",".join(f"{card}:{address}" for card, address in enumerate(role.cards_addresses))


def _home(pods: Pods) -> Path:
    return pods.mounts[f"/home/{pods.user}"]


def _npu_folder(pods: Pods) -> Path:
    folder = _home(pods) / ".npu" / pods.job_id
    folder.mkdir(parents=True, exist_ok=True)
    return folder


_TRAIN = """#!/bin/bash
# Runs the command that it is given once for each card of this node.
export RANK_TABLE_FILE="$HOME/.npu/$DLWS_JOB_ID/hccl_ms.json"
export RANK_SIZE={ranks}
for card in ${{VISIBLE_IDS//,/ }}; do
    DEVICE_ID="$card" RANK_ID="$card" "$@" &
done
code=0
for child in $(jobs -p); do wait "$child" || code=$?; done
exit "$code"
"""


# The inside of one pod.

_OWN = ("/pod", "/dlts-runtime", TEMPORARY)
_PYTHON = "/pod/python"
_FILES = ("/pod.env", "/etc/hosts")
_IMAGE = PACKAGES / "apulis"
_PROGRAMS = _IMAGE / "bin"


class Pod(Container):
    def __init__(self, root: Path, launch: Launch, index: int) -> None:
        super().__init__(root, launch, index)
        if launch.pods is None:
            raise ValueError("not a job of pods")
        self._pods: Pods = launch.pods
        self._role = launch.pods.roles[index]
        self._paths = (*_OWN, *launch.pods.mounts)

    @property
    def mark(self) -> tuple[str, str]:
        return "POD_NAME", self._pods.name(self._role)

    def prepare(self, objects: Objects, *, private: bool) -> None:
        """The engine prepares all pods before it starts the first, so each finds the files that the head writes."""
        self._layout = Layout(self.root, private, self._paths)
        for folder in (*_OWN, LOGS, "/view", "/etc"):
            self.path(folder).mkdir(parents=True, exist_ok=True)
        self._make_temporary()
        for path, shared in self._pods.mounts.items():
            shared.mkdir(parents=True, exist_ok=True)
            if not private:
                self.path(path).parent.mkdir(parents=True, exist_ok=True)
                self.path(path).symlink_to(shared)
        self._provide_python(_PYTHON)
        shutil.copytree(_IMAGE / "scripts", self.path("/pod/scripts"), dirs_exist_ok=True)
        self.path("/etc/hosts").write_text(Path("/etc/hosts").read_text(errors="replace") + hosts(self._pods))
        write_own(self._pods, self._role)
        if self._role == self._pods.head:
            write_common(self._pods)

    def write_rank_table(self, status: str) -> None:
        """Do nothing: `prepare` has written them."""

    def spec(self, port: int, store: Mapping[str, str], grace: float) -> Spec:
        """Ignores `store`: this platform lends its jobs no keys."""
        pods, private = self._pods, self._layout.private
        meeting = self._layout.inside(f"/job/.ready/{self._launch.job_id}")
        environment = self._environment(port)
        exported = "".join(f"export {name}={shlex.quote(value)}\n" for name, value in environment.items())
        self.path("/pod.env").write_text(exported)
        return {
            "environment": environment,
            "pre_start": [],
            "pre_start_folder": "",
            "pre_start_environment": "",
            "ranks": [
                {
                    "command": [
                        "bash",
                        self._layout.inside("/pod/scripts/bootstrap.sh"),
                        meeting,
                        str(len(pods.roles)),
                    ],
                    "folder": self._layout.inside(f"/home/{pods.user}"),
                    "log": str(self.root / "command.log"),
                    "environment": {},
                }
            ],
            "log": str(self.worker_log),
            "silent": True,
            "rank_table": "",
            "rank_table_v1": "",
            "grace": grace,
            "view": str(self.path("/view")) if private else "",
            "binds": self._binds() if private else [],
            "read_only": container.package_folders(self._launch.interpreter),
        }

    def _binds(self) -> list[tuple[str, str]]:
        extra = dict(self._pods.mounts) | {file: self.path(file) for file in _FILES}
        return self._layout.binds(extra, self._launch.interpreter)

    def _environment(self, port: int) -> dict[str, str]:
        launch, pods, role = self._launch, self._pods, self._role
        variables = base_environment()
        python = f"{self._layout.inside(_PYTHON)}/bin"
        below = str(Path(launch.interpreter).parent)
        programs = [str(_PROGRAMS), python, below, variables.get("PATH", os.defpath)]
        home = self._layout.inside(f"/home/{pods.user}")
        variables |= {
            "PATH": os.pathsep.join(programs),
            "HOME": home,
            "USER": pods.user,
            "TMPDIR": TEMPORARY if self._layout.private else str(self.temporary),
            "PYTHONUNBUFFERED": "1",
            # Beyond what Apulis sets: a port that no other job has, as on the other platforms of the local cloud.
            "MASTER_ADDR": node_address(0),
            "MASTER_PORT": str(port),
        }
        variables |= launch.environment
        packages = [variables.get("PYTHONPATH", ""), str(PACKAGES)]
        variables["PYTHONPATH"] = os.pathsep.join(filter(None, packages))
        variables |= {**pods.environment} | pod_variables(pods, role) | dict([self.mark])
        variables["DLWS_LAUNCH_CMD"] = self._layout.translate(role.command)
        return variables
