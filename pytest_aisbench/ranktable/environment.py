"""Checks the environment of a rank against the rank table and the other ranks, before a contradiction makes HCCL hang.

A training script calls `before_training` in its first line. HCCL itself waits for a rank that no process has: two nodes
that both number their cards 0 to 7 of 16 pass HCCL's check, since the device numbers are right, and then wait for ranks
8 to 15 until their timeout.
"""

from __future__ import annotations

import os
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from pytest_aisbench.errors import WorkloadError
from pytest_aisbench.model.messages import plain
from pytest_aisbench.ranktable.check import WHOLE_NUMBER, check_table, read_table
from pytest_aisbench.ranktable.table import Form, Order, RankTable, Server

_TABLE_NAME = "jobstart_hccl.json"  # ModelArts' name of the file, in the folder that RANK_TABLE_FILE names
_PATIENCE_S = 1800.0  # as HCCL: a platform may complete the table after it started the script
_PAUSE_S = 1.0
_TABLE_VARIABLES = ("MINDSPORE_HCCL_CONFIG_PATH", "RANK_TABLE_FILE")  # MindSpore 0.x looks in this order
# The variables in which platforms put a node's address, and its number.
_ADDRESSES = ("MA_CURRENT_HOST_IP", "MA_CURRENT_IP", "DLWS_SD_SELF_HOST_IP", "DLWS_SD_SELF_IP", "POD_IP")
_NUMBERS = ("DLWS_ROLE_IDX", "VC_TASK_INDEX", "DLS_TASK_INDEX")

Environment = Mapping[str, str]


@dataclass(frozen=True)
class Process:
    """The process of one rank, as it is about to start."""

    name: str  # for messages: `node 1, card 3`, or the file that its environment was kept in
    environment: Environment
    node: str = ""  # where it runs, if its environment does not say


def before_training(
    environment: Mapping[str, str] | None = None,
    *,
    wait_s: float = _PATIENCE_S,
    pause: Callable[[float], None] = time.sleep,
) -> RankTable | None:
    """Raise WorkloadError if this rank cannot train. Call it first in a training script, or in what starts the script.

    Waits until the platform has completed the rank table, and returns it; None if there is one rank and no table.
    """
    environment = os.environ if environment is None else environment
    file = table_file(environment)
    if file is None:
        faults = contradictions(environment, None)
        if environment.get("RANK_SIZE", "1") != "1":
            faults.append(
                f"RANK_SIZE is {environment['RANK_SIZE'][:40]}, and neither {' nor '.join(_TABLE_VARIABLES)} is set"
            )
        _require(faults)
        return None
    text = _completed_text(file, wait_s, pause)
    table, problems = read_table(text, Order.PODS)
    problems += check_table(table) if table else []
    faults = [f"{file}: {problem.text}" for problem in problems if not problem.warning]
    if table is not None and not faults:
        faults = contradictions(environment, table)
    _require(faults)
    return table


def table_file(environment: Mapping[str, str]) -> Path | None:
    for name in _TABLE_VARIABLES:
        if environment.get(name):
            path = Path(environment[name])
            return path / _TABLE_NAME if path.is_dir() else path
    return None


def _completed_text(file: Path, wait_s: float, pause: Callable[[float], None]) -> str:
    waited = 0.0
    while True:
        try:
            text = file.read_text(encoding="utf-8", errors="replace")
        except OSError as error:
            raise WorkloadError(f"the rank table {file} cannot be read: {error.strerror}") from None
        if '"initializing"' not in text or waited >= wait_s:
            return text
        pause(_PAUSE_S)
        waited += _PAUSE_S


def _require(faults: list[str]) -> None:
    if faults:
        raise WorkloadError(f"this rank cannot train: {faults[0]}", trail="; ".join(faults[1:4]))


def contradictions(environment: Environment, table: RankTable | None, node: str = "") -> list[str]:
    """What contradicts the table in one rank's environment; `node` is its server's id, if the environment lacks it."""
    size, faults = _number(environment, "RANK_SIZE")
    if table is not None:
        cards = len(table.ranks)
        if size is not None and size != cards:
            faults.append(f"RANK_SIZE is {size}, and the rank table has {cards} cards")
        size = cards
    rank, wrong = _rank(environment, table)
    faults += wrong
    if rank is not None and size is not None and rank >= size:
        faults.append(f"RANK_ID is {rank}, and of {size} ranks the last is {size - 1}")
    elif rank is not None and table is not None:
        faults += _against(environment, table, rank, node)
    return [plain(fault, 300) for fault in faults]


def together(processes: Sequence[Process], table: RankTable | None = None) -> list[str]:
    """All contradictions in the environments of all ranks, a line each."""
    faults: list[str] = []
    ranks: dict[int, list[Process]] = {}
    cards: dict[tuple[str, int], list[Process]] = {}
    sizes: dict[int, str] = {}
    for process in processes:
        faults += [f"{process.name}: {fault}" for fault in contradictions(process.environment, table, process.node)]
        rank, _ = _rank(process.environment, table)
        size, _ = _number(process.environment, "RANK_SIZE")
        device, _ = _number(process.environment, "DEVICE_ID")
        if rank is not None:
            ranks.setdefault(rank, []).append(process)
        if size is not None:
            sizes.setdefault(size, process.name)
        node = process.node or _node(process.environment)
        if node and device is not None:
            cards.setdefault((node, device), []).append(process)
    faults += _repeated(ranks)
    faults += [
        f"DEVICE_ID {device} is used {len(users)} times on {node}: {', '.join(user.name for user in users)}"
        for (node, device), users in sorted(cards.items())
        if len(users) > 1
    ]
    if len(sizes) > 1:
        text = ", ".join(f"{size} ({name})" for size, name in sorted(sizes.items()))
        faults.append(f"the ranks do not agree on RANK_SIZE: {text}")
    wanted = len(table.ranks) if table else max(sizes, default=len(processes))
    missing = [rank for rank in range(min(wanted, 100_000)) if rank not in ranks]
    if missing:
        faults.append(f"no process is rank {_spans(missing)} of {wanted}: the others would wait for ever")
    return [plain(fault, 300) for fault in dict.fromkeys(faults)]


def _repeated(ranks: Mapping[int, Sequence[Process]]) -> list[str]:
    twice = sorted(rank for rank, users in ranks.items() if len(users) > 1)
    if not twice:
        return []
    users = [user.name for user in ranks[twice[0]]]
    text = f"RANK_ID {_spans(twice)} is used repeatedly, such as {twice[0]} by {' and '.join(users[:3])}"
    return [f"{text}; count through all nodes: RANK_ID = number of the node × cards per node + card"]


def _against(environment: Environment, table: RankTable, rank: int, node: str) -> list[str]:
    card = table.at(rank)
    if card is None:
        return [f"RANK_ID is {rank}, and the rank table has no such rank"]
    server, device = card
    here = _server(environment, table, node)
    if here is not None and here.id != server.id:
        own = sorted(each.rank for each in here.devices)
        text = f"RANK_ID is {rank}, which the rank table has on server {server.id}, and this is server {here.id}"
        return [f"{text}: its ranks are {_spans(own)}"]
    used, faults = _number(environment, "DEVICE_ID")
    # A platform may count the cards it gives a container from 0, whatever their numbers in the server are.
    place = sorted(each.id for each in server.devices).index(device.id)
    if used is not None and used not in {device.id, place}:
        text = f"DEVICE_ID is {used}, and the rank table has rank {rank} on card {device.id} of server {server.id}"
        faults.append(f"{text} (HCCL's EI0004: devId is inconsistent with the local devId)")
    return faults


def _server(environment: Environment, table: RankTable, node: str) -> Server | None:
    """The server of the table that this process runs on; None if neither `node` nor the environment names it."""
    addresses = [node, *(environment.get(name, "") for name in _ADDRESSES)]
    for address in filter(None, addresses):
        if here := next((server for server in table.servers if address in {server.id, server.host_ip}), None):
            return here
    number = next((environment[name] for name in _NUMBERS if WHOLE_NUMBER.match(environment.get(name, ""))), None)
    return table.nodes[int(number)] if number is not None and int(number) < len(table.nodes) else None


def _node(environment: Environment) -> str:
    return next((environment[name] for name in (*_ADDRESSES, *_NUMBERS) if environment.get(name)), "")


def _rank(environment: Environment, table: RankTable | None) -> tuple[int | None, list[str]]:
    """The rank, and its problems. With a cloud table RANK_ID may be the pod's name; then DEVICE_INDEX has the rank."""
    rank_id = environment.get("RANK_ID", "")
    if (
        table is not None
        and table.form is Form.CLOUD
        and rank_id
        and any(rank_id == server.pod for server in table.servers)
    ):
        return _number(environment, "DEVICE_INDEX", needed=True)
    return _number(environment, "RANK_ID", needed=True)


def _number(environment: Environment, name: str, *, needed: bool = False) -> tuple[int | None, list[str]]:
    text = environment.get(name, "")
    if not text:
        return None, [f"{name} is not set"] if needed else []
    if not WHOLE_NUMBER.match(text):
        return None, [f"{name} is {text[:40]!r}, which is not a whole number"]
    return int(text), []


def _spans(numbers: Sequence[int]) -> str:
    """The numbers in short: `0-7, 9`."""
    spans: list[list[int]] = []
    for number in numbers:
        if spans and number == spans[-1][1] + 1:
            spans[-1][1] = number
        else:
            spans.append([number, number])
    return ", ".join(str(low) if low == high else f"{low}-{high}" for low, high in spans[:8])
