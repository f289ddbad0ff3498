"""What a rank was told of itself, against the rank table and the other ranks: a contradiction is a hang later.

HCCL waits for a rank that nobody is. Two nodes that both number their cards 0 to 7 of 16 pass its own check, since the
devices' numbers are right, and wait for ranks 8 to 15 until their time is up.
"""

from __future__ import annotations

import os
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from pytest_aisbench.errors import WorkloadError
from pytest_aisbench.model.messages import plain
from pytest_aisbench.ranktable.check import checked
from pytest_aisbench.ranktable.parse import WHOLE, read
from pytest_aisbench.ranktable.table import Form, Order, RankTable, Server

# Which server this is: the platform's words for the address, and for the number of the node.
_ADDRESSES = ("MA_CURRENT_HOST_IP", "MA_CURRENT_IP", "DLWS_SD_SELF_HOST_IP", "DLWS_SD_SELF_IP", "POD_IP")
_NUMBERS = ("DLWS_ROLE_IDX", "VC_TASK_INDEX", "DLS_TASK_INDEX")

Environment = Mapping[str, str]


@dataclass(frozen=True)
class Process:
    """One rank as it is about to start."""

    name: str  # for messages: `node 1, card 3`, or the file that its environment was kept in
    environment: Environment
    node: str = ""  # where it runs, if its environment does not say


def alone(environment: Environment, table: RankTable | None, node: str = "") -> list[str]:
    """What one process can tell by itself; `node` is its server's id, if known better than by the environment."""
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
    """What only shows when all ranks are looked at; one line per contradiction."""
    faults: list[str] = []
    ranks: dict[int, list[Process]] = {}
    cards: dict[tuple[str, int], list[Process]] = {}
    sizes: dict[int, str] = {}
    for process in processes:
        faults += [f"{process.name}: {fault}" for fault in alone(process.environment, table, process.node)]
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
        told = ", ".join(f"{size} ({name})" for size, name in sorted(sizes.items()))
        faults.append(f"the ranks do not agree on RANK_SIZE: {told}")
    wanted = len(table.ranks) if table else max(sizes, default=len(processes))
    missing = [rank for rank in range(min(wanted, 100_000)) if rank not in ranks]
    if missing:
        faults.append(f"nobody is rank {_spans(missing)} of {wanted}: the others would wait for ever")
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
        text = f"DEVICE_ID is {used}, and the rank table has rank {rank} on device {device.id} of server {server.id}"
        faults.append(f"{text} (HCCL's EI0004: devId is inconsistent with the local devId)")
    return faults


def _server(environment: Environment, table: RankTable, node: str) -> Server | None:
    """The table's server that this process is on; None where nothing says so."""
    addresses = [node, *(environment.get(name, "") for name in _ADDRESSES)]
    for address in filter(None, addresses):
        if found := next((server for server in table.servers if address in {server.id, server.host_ip}), None):
            return found
    number = next((environment[name] for name in _NUMBERS if WHOLE.match(environment.get(name, ""))), None)
    return table.nodes[int(number)] if number is not None and int(number) < len(table.nodes) else None


def _node(environment: Environment) -> str:
    return next((environment[name] for name in (*_ADDRESSES, *_NUMBERS) if environment.get(name)), "")


def _rank(environment: Environment, table: RankTable | None) -> tuple[int | None, list[str]]:
    """With a cloud table RANK_ID may be the pod's name; the rank is then in DEVICE_INDEX."""
    told = environment.get("RANK_ID", "")
    if table is not None and table.form is Form.CLOUD and told and any(told == server.pod for server in table.servers):
        return _number(environment, "DEVICE_INDEX", needed=True)
    return _number(environment, "RANK_ID", needed=True)


def _number(environment: Environment, name: str, *, needed: bool = False) -> tuple[int | None, list[str]]:
    told = environment.get(name, "")
    if not told:
        return None, [f"{name} is not set"] if needed else []
    if not WHOLE.match(told):
        return None, [f"{name} is {told[:40]!r}, which is not a whole number"]
    return int(told), []


def _spans(numbers: Sequence[int]) -> str:
    """`0-7, 9`."""
    spans: list[list[int]] = []
    for number in numbers:
        if spans and number == spans[-1][1] + 1:
            spans[-1][1] = number
        else:
            spans.append([number, number])
    return ", ".join(str(low) if low == high else f"{low}-{high}" for low, high in spans[:8])


# -- Looking at a rank's environment and its rank table before it trains: a line now, instead of a hang.

_FILE = "jobstart_hccl.json"  # what ModelArts calls it in the folder that RANK_TABLE_FILE names
_PATIENCE_S = 1800.0  # HCCL's own: a platform may fill the table in after it started the script
_PAUSE_S = 1.0
_FIRST = ("MINDSPORE_HCCL_CONFIG_PATH", "RANK_TABLE_FILE")  # MindSpore 0.x looks in this order


def before_training(
    environment: Mapping[str, str] | None = None,
    *,
    wait_s: float = _PATIENCE_S,
    pause: Callable[[float], None] = time.sleep,
) -> RankTable | None:
    """Call it first in a training script, or in what starts it: raises WorkloadError where this rank cannot train.

    The table is None where there is one rank and no table. Waits while the platform has not completed the table.
    """
    told = os.environ if environment is None else environment
    file = table_file(told)
    if file is None:
        faults = alone(told, None)
        if told.get("RANK_SIZE", "1") != "1":
            faults.append(f"RANK_SIZE is {told['RANK_SIZE'][:40]}, and neither {' nor '.join(_FIRST)} is set")
        _require(faults)
        return None
    text = _completed(file, wait_s, pause)
    table, problems = read(text, Order.PODS)
    found = [*problems, *(checked(table) if table else [])]
    faults = [f"{file}: {problem.text}" for problem in found if not problem.warning]
    if table is not None and not faults:
        faults = alone(told, table)
    _require(faults)
    return table


def table_file(environment: Mapping[str, str]) -> Path | None:
    for name in _FIRST:
        if environment.get(name):
            path = Path(environment[name])
            return path / _FILE if path.is_dir() else path
    return None


def _completed(file: Path, wait_s: float, pause: Callable[[float], None]) -> str:
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
