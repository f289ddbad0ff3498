"""How the ranks of a Horovod job meet.

A launcher (``horovodrun``, ``mpirun``) has told every rank who it is, and serves as their meeting point. A platform
that starts the script once per card by itself has none: there rank 0 is the meeting point, at MASTER_ADDR and
MASTER_PORT, and everything that the launcher would have said is put into the environment, before Horovod is imported.
"""

from __future__ import annotations

import importlib.util
import os
import socket
import sys
import threading
import time
from pathlib import Path
from typing import TYPE_CHECKING, Any

from contract import LAUNCHERS, ContractError, number

if TYPE_CHECKING:
    from collections.abc import Mapping

    from contract import Job

PATIENCE_S = 300.0


def is_launched(environment: Mapping[str, str]) -> bool:
    return any(f"{launcher}_RANK" in environment for launcher in LAUNCHERS)


def variables(job: Job, environment: Mapping[str, str]) -> dict[str, str]:
    """What a launcher would have told this rank."""
    if job.rendezvous is None:
        if job.size > 1:
            raise ContractError(f"{job.size} ranks need MASTER_ADDR and MASTER_PORT to find each other")
        return {}
    host, port = job.rendezvous
    cards = job.size
    if job.server is None:
        cards = number(environment, "DEVICE_NUM", 0) or number(environment, "MA_NUM_GPUS", 0) or job.size
    node, card = divmod(job.rank, cards)
    settings = {
        "HOROVOD_HOSTNAME": f"node-{node}",
        "HOROVOD_RANK": job.rank,
        "HOROVOD_SIZE": job.size,
        "HOROVOD_LOCAL_RANK": card,
        "HOROVOD_LOCAL_SIZE": cards,
        "HOROVOD_CROSS_RANK": node,
        "HOROVOD_CROSS_SIZE": job.size // cards,
        "HOROVOD_GLOO_RENDEZVOUS_ADDR": host,
        "HOROVOD_GLOO_RENDEZVOUS_PORT": port,
        "HOROVOD_GLOO_TIMEOUT_SECONDS": round(PATIENCE_S),
        "HOROVOD_CONTROLLER": "gloo",
        "HOROVOD_CPU_OPERATIONS": "gloo",
        # Otherwise Gloo listens where the machine's name leads to, which on one machine may be nowhere.
        **({"HOROVOD_GLOO_IFACE": "lo"} if host.startswith("127.") else {}),
    }
    return {name: str(value) for name, value in settings.items()}


def require_horovod() -> None:
    """With TensorFlow: Horovod installs without a word where it was not built for it."""
    spec = importlib.util.find_spec("horovod")
    folders = [Path(folder) for folder in (spec.submodule_search_locations or ())] if spec else []
    if importlib.util.find_spec("tensorflow") is None or not any(
        list(folder.glob("tensorflow/mpi_lib*.so")) for folder in folders
    ):
        raise ContractError(f"horovod with TensorFlow is not installed for {sys.executable}")


def meet(job: Job) -> Any:
    """Returns `horovod.tensorflow.keras` when all ranks are there."""
    require_horovod()
    os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "2")
    if not is_launched(os.environ) and job.size > 1:
        settings = variables(job, os.environ)
        os.environ.update(settings)
        address = (settings["HOROVOD_GLOO_RENDEZVOUS_ADDR"], int(settings["HOROVOD_GLOO_RENDEZVOUS_PORT"]))
        if job.rank == 0:
            serve(address, job.size, int(settings["HOROVOD_LOCAL_SIZE"]))
        else:
            wait_for(address)
    import horovod.tensorflow.keras as hvd

    hvd.init()
    if (hvd.rank(), hvd.size()) != (job.rank, job.size):
        raise ContractError(
            f"Horovod counts this rank as {hvd.rank()} of {hvd.size()}, the platform as {job.rank} of {job.size}"
        )
    return hvd


def serve(address: tuple[str, int], size: int, cards: int) -> None:
    """Be the meeting point, as long as this process lives."""
    from horovod.runner.common.util.hosts import SlotInfo
    from horovod.runner.http.http_server import RendezvousHandler, RendezvousHTTPServer

    try:
        server = RendezvousHTTPServer(address, RendezvousHandler, 0)
    except OSError as error:
        raise ContractError(f"cannot listen on {address[0]}:{address[1]}: {error.strerror}") from error
    places = [(rank, *divmod(rank, cards)) for rank in range(size)]
    server.init([SlotInfo(f"node-{node}", rank, card, node, size, cards, size // cards) for rank, node, card in places])
    threading.Thread(target=server.serve_forever, daemon=True).start()


def wait_for(address: tuple[str, int]) -> None:
    """Horovod itself asks a few times only."""
    deadline = time.monotonic() + PATIENCE_S
    while True:
        try:
            socket.create_connection(address, timeout=5).close()
        except OSError as error:
            if time.monotonic() >= deadline:
                where = f"{address[0]}:{address[1]}"
                raise ContractError(f"rank 0 did not answer on {where} within {PATIENCE_S:g} s: {error}") from error
            time.sleep(0.1)
        else:
            return
