"""What the platform tells the pods of a job about each other: variables, host files and rank tables.

Nothing here numbers the ranks (`RANK_ID`, `RANK_SIZE`, `DEVICE_ID`): on this platform scripts do that.
"""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from pathlib import Path

    from pytest_aisbench.localcloud.apulis_pods import Pods, Role

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


def variables(pods: Pods, role: Role) -> dict[str, str]:
    """Of one pod: itself, and where the others are."""
    told = {
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
        found = {"IP": other.address, "SSH_PORT": str(other.ssh_port), "IB_IP": other.address, "HOST_IP": other.address}
        if pods.is_npu and other.cards:
            found["NPU_IP_LIST"] = _numbered(other)
        told |= {f"DLWS_SD_{other.key}_{name}": value for name, value in found.items()}
    if pods.is_npu and role.cards:
        told |= {"VISIBLE_IDS": ",".join(map(str, range(role.cards))), "NPU_IPS": _numbered(role)}
    return told


def hosts(pods: Pods) -> str:
    """The lines of /etc/hosts: pods know each other by name, as the platform's ssh configuration has it."""
    return "".join(f"{role.address} {role.host} ib-{role.host}\n" for role in pods.roles)


def write_own(pods: Pods, role: Role) -> None:
    if pods.is_npu and role.cards:
        lines = f"ip={_numbered(role)}\nhost={role.address}\n"
        (_npu_folder(pods) / f"npu_{role.index}.info").write_text(lines)


def write_common(pods: Pods) -> None:
    home, job = _home(pods), pods.mounts["/job"]
    (job / "hostfile").write_text(_slots(pods, ""))
    ib_config = _slots(pods, "ib-")
    for name in ("ib_config", *(f"ib_config-{role.name}-{role.index}" for role in pods.roles)):
        (job / name).write_text(ib_config)
    (home / "ib_config").write_text(ib_config)  # where guides of the platform look for it
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
        {
            "devices": [{"device_id": str(card), "device_ip": address}],
            "server_id": role.address,
        }
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
        "para_plane_nic_num": "8",  # whatever the number of cards
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
