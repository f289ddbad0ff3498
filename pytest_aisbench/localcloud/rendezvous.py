"""Where the ranks of a job find each other: addresses on loopback, a port, and the rank table that says so.

The rank table is the platform's (version 0.1). `MASTER_ADDR` and `MASTER_PORT` are the local cloud's own gift:
on the platform the cards have a network of their own, here the ranks need a port that nobody else has.
"""

from __future__ import annotations

import contextlib
import errno
import functools
import os
import random
import socket
import threading
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from collections.abc import Iterator

# Below the range from which the kernel gives ports to outgoing connections.
_PORTS = range(16384, 32768)


@functools.cache
def _many_loopbacks() -> bool:
    """Linux answers to all of 127/8, others only to the addresses that were configured."""
    with socket.socket() as probe:
        try:
            probe.bind(("127.0.0.2", 0))
        except OSError:
            return False
    return True


def node_address(node: int) -> str:
    return f"127.0.{node // 250}.{node % 250 + 2}" if _many_loopbacks() else "127.0.0.1"


def card_address(node: int, card: int) -> str:
    return f"127.{node // 250 + 1}.{node % 250}.{card + 1}" if _many_loopbacks() else "127.0.0.1"


class Ports:
    """Ports for the jobs of one engine, each verified to be free and given to one job at a time."""

    def __init__(self) -> None:
        self._taken: set[int] = set()
        self._lock = threading.Lock()

    def _candidates(self) -> Iterator[int]:
        # At random: another cloud on this machine chooses from the same range.
        return iter(random.sample(_PORTS, len(_PORTS)))

    def take(self, address: str) -> int:
        with self._lock:
            for port in self._candidates():
                if port not in self._taken and _is_free(address, port):
                    self._taken.add(port)
                    return port
        raise OSError(errno.EADDRINUSE, os.strerror(errno.EADDRINUSE))

    def give_back(self, port: int) -> None:
        with self._lock:
            self._taken.discard(port)


def _is_free(address: str, port: int) -> bool:
    for host in (address, ""):
        with socket.socket() as probe, contextlib.suppress(OSError):
            probe.bind((host, port))
            continue
        return False
    return True


def rank_table(job_id: str, nodes: int, cards: int, status: str) -> dict[str, Any]:
    """Version 0.1, as the platform writes it: `initializing` knows nothing yet, `completed` everything."""
    if status != "completed":
        return {"status": status}
    instances = [
        {
            "pod_name": f"modelarts-job-{job_id}-worker-{node}",
            "server_id": node_address(node),
            "devices": [{"device_id": str(card), "device_ip": card_address(node, card)} for card in range(cards)],
        }
        for node in range(nodes)
    ]
    group = {
        "group_name": "job-trainjob",
        "device_count": str(nodes * cards),
        "instance_count": str(nodes),
        "instance_list": instances,
    }
    return {"status": status, "group_count": "1", "group_list": [group]}
