"""How the ranks of a MindSpore job meet: on Ascend by HCCL and the rank table, on CPU by MindSpore's own scheduler.

The scheduler is a process of its own, which rank 0 starts from this very file. Everything here is told to MindSpore
by the environment, before it is imported.
"""

from __future__ import annotations

import importlib.util
import json
import os
import subprocess
import sys
import tempfile
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any

from contract import ContractError
from telling import tell_version

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping

    from contract import Job

ASCEND, CPU = "Ascend", "CPU"
DRIVER = Path("/dev/davinci_manager")  # what every machine with Ascend cards has


def device_target(wanted: str = "") -> str:
    return wanted or (ASCEND if DRIVER.exists() else CPU)


def cpu_variables(job: Job) -> dict[str, str]:
    """For a rank that trains on the CPU, alone or with others."""
    # By default oneDNN takes its reference convolution on machines with AVX-512, which is ten times slower.
    variables = {"ONEDNN_MAX_CPU_ISA": "AVX2", "GLOG_v": "3"}
    if job.size == 1:
        return variables
    if job.rendezvous is None:
        raise ContractError(f"{job.size} ranks need MASTER_ADDR and MASTER_PORT to find each other")
    host, port = job.rendezvous
    return {
        **variables,
        "MS_ROLE": "MS_WORKER",
        "MS_WORKER_NUM": str(job.size),
        "MS_SCHED_HOST": host,
        "MS_SCHED_PORT": str(port),
        "MS_NODE_ID": str(job.rank),  # without it ranks are counted in the order of their arrival
    }


def scheduler_variables(worker: Mapping[str, str]) -> dict[str, str]:
    variables = {name: value for name, value in worker.items() if name != "MS_NODE_ID"}
    return {**variables, "MS_ROLE": "MS_SCHED"}


def ascend_variables(job: Job, table: str) -> dict[str, str]:
    """For a rank on an Ascend card: where a server trains alone, HCCL must not know of the others."""
    if job.server is None:
        return {}
    narrowed = Path(tempfile.mkdtemp(prefix="rank-table-")) / "jobstart_hccl.json"
    narrowed.write_text(json.dumps(of_one_server(json.loads(Path(table).read_text()), job.server)), encoding="utf-8")
    # MindSpore 0.x asks for the second name first; Apulis sets both.
    files = dict.fromkeys(("RANK_TABLE_FILE", "MINDSPORE_HCCL_CONFIG_PATH"), str(narrowed))
    return {**files, "RANK_ID": str(job.rank), "RANK_SIZE": str(job.size)}


def of_one_server(table: Mapping[str, Any], index: int) -> dict[str, Any]:
    """A rank table of version 1.0, or of the lab format, with this server only, whose ranks are counted from 0."""
    if "deploy_mode" in table:
        return _of_one_server_of_a_lab(table, index)
    server = table["server_list"][index]
    devices = sorted(server["device"], key=lambda device: int(device["rank_id"]))
    counted = [{**device, "rank_id": str(rank)} for rank, device in enumerate(devices)]
    return {**table, "server_count": "1", "server_list": [{**server, "device": counted}]}


def _of_one_server_of_a_lab(table: Mapping[str, Any], index: int) -> dict[str, Any]:
    cards = [card for group in table["group_list"] for card in group["instance_list"]]
    wanted = list(dict.fromkeys(card["server_id"] for card in cards))[index]
    mine = sorted((card for card in cards if card["server_id"] == wanted), key=lambda card: int(card["rank_id"]))
    count = str(len(mine))
    group = {
        **table["group_list"][0],
        **dict.fromkeys(("device_num", "instance_count"), count),
        "server_num": "1",
        "instance_list": [{**card, "rank_id": str(rank)} for rank, card in enumerate(mine)],
    }
    return {**table, "group_count": "1", "group_list": [group]}


@contextmanager
def joined(job: Job) -> Iterator[str]:
    """The ranks have met on this device target, and start from the same seed."""
    if importlib.util.find_spec("mindspore") is None:
        raise ContractError(f"mindspore is not installed for {sys.executable}")
    target = device_target(job.arguments.device_target)
    variables = cpu_variables(job) if target == CPU else ascend_variables(job, os.environ.get("RANK_TABLE_FILE", ""))
    scheduler = None
    if target == CPU and job.size > 1 and job.rank == 0:
        environment = {**os.environ, **scheduler_variables(variables)}
        scheduler = subprocess.Popen([sys.executable, str(Path(__file__).resolve())], env=environment)
    os.environ.update(variables)
    try:
        _initialise(job, target)
        yield target
    except BaseException:
        if scheduler is not None:
            scheduler.kill()
        raise
    # The scheduler ends by itself when the last rank has left it, which MindSpore does at the end of its process.


def _initialise(job: Job, target: str) -> None:
    import mindspore
    from mindspore import context, set_seed

    tell_version(job, "mindspore", mindspore.__version__)
    context.set_context(mode=context.GRAPH_MODE, device_target=target)
    set_seed(job.arguments.seed)  # the ranks start from the same weights
    if target == ASCEND:
        context.set_context(device_id=int(os.environ.get("DEVICE_ID", "0")))
    if job.size == 1:
        return
    from mindspore.communication.management import get_rank, init

    init()
    if get_rank() != job.rank:
        raise ContractError(f"the collective counts this rank as {get_rank()}, the platform as {job.rank}")
    context.set_auto_parallel_context(
        device_num=job.size, parallel_mode=context.ParallelMode.DATA_PARALLEL, gradients_mean=True
    )


def meet(job: Job) -> None:
    """Returns when every rank has come so far."""
    if job.size == 1:
        return
    import mindspore
    from mindspore.ops import operations as P

    total = P.AllReduce()(mindspore.Tensor([1.0], mindspore.float32))
    if int(total.asnumpy()[0]) != job.size:
        raise ContractError(f"the collective counts {total.asnumpy()[0]:g} ranks, the platform {job.size}")


if __name__ == "__main__":  # the scheduler: it stays in `init` until the ranks have left
    from mindspore import context
    from mindspore.communication.management import init

    context.set_context(mode=context.GRAPH_MODE, device_target=CPU)
    init()
