"""The environment of a node's processes, built from nothing.

Of the cloud's own variables only those listed here reach a job, so no key, token or password of whoever started the
cloud can. The keys that a job does get are lent to it, and good for nothing when it has ended.
"""

from __future__ import annotations

import json
import os
from pathlib import Path
from typing import TYPE_CHECKING, Any

from pytest_aisbench.localcloud import layout, v1_container
from pytest_aisbench.localcloud.rendezvous import node_address

if TYPE_CHECKING:
    from collections.abc import Mapping

    from pytest_aisbench.localcloud.launch import Channel, Launch
    from pytest_aisbench.localcloud.layout import Layout

_INHERITED = {"PATH", "LANG", "LANGUAGE", "TZ", "LD_LIBRARY_PATH"}
_THREADS = ("OMP_NUM_THREADS", "OPENBLAS_NUM_THREADS", "MKL_NUM_THREADS", "NUMEXPR_NUM_THREADS")


def inherited() -> dict[str, str]:
    return {name: value for name, value in os.environ.items() if name in _INHERITED or name.startswith("LC_")}


def plain() -> dict[str, str]:
    """What every process of a job starts from, whatever its platform adds."""
    return dict.fromkeys(_THREADS, "1") | inherited()  # the ranks share the cores already


def mark(launch: Launch, index: int) -> tuple[str, str]:
    """A variable that every process of this node has, and no other."""
    return "MA_CURRENT_INSTANCE_NAME", f"modelarts-job-{launch.job_id}-worker-{index}"


def told(channel: Channel, places: Layout) -> str:
    """What the job is told of a channel: the folder, or where it has none the url."""
    return places.inside(channel.local_dir) if channel.local_dir else channel.place.url


def environment(
    launch: Launch, index: int, places: Layout, *, port: int, temporary: str, store: Mapping[str, str]
) -> dict[str, str]:
    """`store`: what the processes need to reach the object store."""
    variables = plain()
    programs = [str(Path(launch.interpreter).parent), places.inside(layout.PROGRAMS)]
    variables["PATH"] = os.pathsep.join([*programs, variables.get("PATH", os.defpath)])
    variables |= {
        "HOME": places.inside(v1_container.WORK_HOME if launch.contract == "V1" else layout.MA_HOME),
        "TMPDIR": temporary,
        "PYTHONUNBUFFERED": "1",
        "HCCL_CONNECT_TIMEOUT": "1800",
        "MASTER_ADDR": node_address(0),
        "MASTER_PORT": str(port),
    }
    channels = (*launch.inputs, *launch.outputs)
    variables |= {channel.name: told(channel, places) for channel in channels if channel.by_environment}
    variables |= launch.environment
    if launch.contract == "V1":
        variables |= v1_container.environment(launch, index, port)
    packages = [variables.get("PYTHONPATH", ""), str(layout.PACKAGES)]
    return (
        variables
        | _platform(launch, index, places)
        | {"PYTHONPATH": os.pathsep.join(filter(None, packages))}
        | dict(store)
    )


def _platform(launch: Launch, index: int, places: Layout) -> dict[str, str]:
    """What the platform sets and no job may change."""
    job_dir = places.inside(v1_container.JOB_DIR if launch.contract == "V1" else layout.JOB_DIR)
    return dict([mark(launch, index)]) | {
        "MA_HOME": places.inside(layout.MA_HOME),
        "MA_JOB_DIR": job_dir,
        "MA_MOUNT_PATH": places.inside(layout.MODELARTS),
        "MA_LOG_DIR": places.inside(layout.LOGS),
        "MA_SCRIPT_INTERPRETER": launch.interpreter,
        "WORKSPACE": f"{job_dir}/{launch.code.name}" if launch.code else job_dir,
        "MA_CURRENT_IP": node_address(index),
        "MA_CURRENT_HOST_IP": node_address(index),
        "MA_NUM_HOSTS": str(launch.nodes),
        "MA_NUM_GPUS": str(launch.cards),
        "MA_TASK_NAME": "worker",
        "MA_VJ_NAME": f"ma-job-{launch.job_id}",
        "MA_JOB_KIND": "job",
        "MA_ENGINE_VERSION": launch.engine_version,
        "MA_INPUTS": json.dumps({"inputs": _described(launch.inputs, places)}),
        "MA_OUTPUTS": json.dumps({"outputs": _described(launch.outputs, places)}),
        "VC_TASK_INDEX": str(index),
        "VC_WORKER_NUM": str(launch.nodes),
        # Addresses, not names as on the platform: no resolver here knows the names.
        "VC_WORKER_HOSTS": ",".join(node_address(node) for node in range(launch.nodes)),
        "RANK_TABLE_FILE": places.inside("/user/config"),
    }


def _described(channels: tuple[Channel, ...], places: Layout) -> list[dict[str, Any]]:
    return [
        {
            "parameter": {"label": channel.name, "value": told(channel, places)},
            "data_source": {"obs": {"obs_url": str(channel.place)}},
        }
        for channel in channels
    ]
