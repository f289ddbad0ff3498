"""What a command in an image of one's own is told of its job, once for each node and not for each card.

V1 tells it by DLS_ and BATCH_ variables, parameters included; its data and results are urls, which ``moxing`` reaches.
V2 tells it by VC_ and MA_ variables, and by arguments; its data and results are folders. Apulis tells it by DLWS_
variables, and by arguments.
"""

from __future__ import annotations

import re
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING

from contract import ContractError, number

if TYPE_CHECKING:
    import argparse
    from collections.abc import Mapping, Sequence

PORT = 6170  # where the nodes meet, if nobody tells
DEVICES = Path("/dev")
CARD = re.compile(r"(nvidia|davinci)\d+")  # what a machine has for each GPU, or NPU
KEY = re.compile(r"(?:^|_)(?:AK|SK|KEY|SECRET|TOKEN|PASSWORD|CREDENTIALS?)(?:_|$)", re.IGNORECASE)


@dataclass(frozen=True)
class Node:
    index: int
    hosts: tuple[str, ...]  # of all nodes, in their order
    port: int  # free on each of them
    cards: int  # of each
    accelerated: bool

    @property
    def host(self) -> str:
        return self.hosts[self.index]

    def by_itself(self) -> Node:
        """As it looks where every server trains alone: there is no other."""
        return replace(self, index=0, hosts=(self.host,))


def read_node(environment: Mapping[str, str], devices: Path = DEVICES) -> Node:
    told_by = _v1 if "DLS_TASK_INDEX" in environment else _apulis if "DLWS_JOB_ID" in environment else _v2
    index, hosts, port = told_by(environment)
    if not 0 <= index < len(hosts):
        raise ContractError(f"this is node {index}, and there are {len(hosts)}: {', '.join(hosts)}")
    card_files = [path for path in devices.iterdir() if CARD.fullmatch(path.name)]
    cards = number(environment, "MA_NUM_GPUS", number(environment, "DLWS_NUM_GPU_PER_WORKER", len(card_files))) or 1
    return Node(index, hosts, number(environment, "MASTER_PORT", port), cards, bool(card_files))


def _v1(environment: Mapping[str, str]) -> tuple[int, tuple[str, ...], int]:
    index, nodes = number(environment, "DLS_TASK_INDEX", 0), number(environment, "DLS_TASK_NUMBER", 1)
    port = number(environment, "BATCH_CURRENT_PORT", PORT)
    if nodes == 1:
        return index, (environment.get("BATCH_CURRENT_HOST", "127.0.0.1"),), port
    names = [f"BATCH_CUSTOM{node}_HOSTS" for node in range(nodes)]
    if missing := [name for name in names if name not in environment]:
        raise ContractError(f"there are {nodes} nodes, and {missing[0]} is not set")
    # Each is host:port, and who asks for hosts does not want the port.
    places = [environment[name].split(":") for name in names]
    first_port = {names[0]: places[0][1]} if len(places[0]) > 1 else {}
    return index, tuple(place[0] for place in places), number(first_port, names[0], port)


def _v2(environment: Mapping[str, str]) -> tuple[int, tuple[str, ...], int]:
    hosts = tuple(filter(None, environment.get("VC_WORKER_HOSTS", "").split(",")))
    return number(environment, "VC_TASK_INDEX", 0), hosts or ("127.0.0.1",), PORT


def _apulis(environment: Mapping[str, str]) -> tuple[int, tuple[str, ...], int]:
    nodes = range(number(environment, "DLWS_NUM_WORKER", 1))
    hosts = tuple(environment.get(f"DLWS_SD_worker{node}_IP", "127.0.0.1") for node in nodes)
    return number(environment, "DLWS_ROLE_IDX", 0), hosts, PORT


def arguments(parser: argparse.ArgumentParser, argv: Sequence[str], environment: Mapping[str, str]) -> list[str]:
    """What the script is to be told: by V2 it stands in the command already, by V1 in the environment."""
    if "DLS_TASK_INDEX" not in environment:
        return list(argv)
    options = vars(parser.parse_known_args([])[0])
    from_environment = [f"--{name}={environment[name]}" for name in options if name in environment]
    urls = {"train_url": environment.get("DLS_TRAIN_URL"), "data_url": environment.get("DLS_DATA_URL")}
    return [*from_environment, *(f"--{name}={url}" for name, url in urls.items() if url), *argv]


def without_keys(environment: Mapping[str, str]) -> dict[str, str]:
    """For a launcher that writes down what it was given."""
    return {name: value for name, value in environment.items() if not KEY.search(name)}
