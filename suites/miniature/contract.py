"""What a training script on ModelArts' Ascend engine is given, and what AIS-Bench expects it to leave behind.

Given, once per card: ``--data_url``, ``--train_url`` (folders; by API V1 urls, which ``moxing`` reaches) and the
workload's parameters; in the environment RANK_ID, RANK_SIZE, RANK_TABLE_FILE, and MASTER_ADDR and MASTER_PORT, where
the ranks meet. A launcher counts the ranks in variables of its own. Left behind, in ``train_url``: bare numbers in
``throughput_<rank>.json``, ``ranksize.json`` and ``accuracy.json``; with SINGLESERVER_MODE=True, where every server
trains alone, ``<server>/throughput_<card>.json`` and ``accuracy_<server>.json``.
"""

from __future__ import annotations

import argparse
import fcntl
import hashlib
import json
import os
import sys
import tempfile
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from exchange import ExchangeError

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence

    Server = tuple[str, Sequence[int]]  # its address and its ranks

# Of horovodrun and of mpirun: they start the ranks themselves, where the platform does not.
LAUNCHERS = ("HOROVOD", "OMPI_COMM_WORLD")
CACHE = Path("/cache")  # the large disk of a node on ModelArts
# What platforms call the address of this server.
ADDRESSES = ("MA_CURRENT_HOST_IP", "MA_CURRENT_IP", "DLWS_SD_SELF_HOST_IP", "DLWS_SD_SELF_IP", "POD_IP")


class ContractError(Exception):
    """The script was started, or fed, with something that it cannot work with."""


@dataclass(frozen=True)
class Job:
    """One rank's view of the job. ``rank`` and ``size`` count those who train together."""

    arguments: argparse.Namespace
    train_url: str
    rank: int
    size: int
    rendezvous: tuple[str, int] | None
    all_ranks: int
    server: int | None = None  # set when this server trains alone

    def write_throughput(self, value: float) -> None:
        folder = "" if self.server is None else f"{self.server}/"
        write_number(self.train_url, f"{folder}throughput_{self.rank}.json", value)

    def write_accuracy(self, value: float) -> None:
        """By the first rank, which also says how many ranks there are."""
        suffix = "" if self.server is None else f"_{self.server}"
        write_number(self.train_url, f"accuracy{suffix}.json", value)
        if not self.server:
            write_number(self.train_url, "ranksize.json", self.all_ranks)


def write_number(place: str, name: str, value: float) -> None:
    """Whole or not at all: the platform synchronises the folder while the job runs."""
    if is_remote(place):
        import moxing

        moxing.file.write(f"{place.rstrip('/')}/{name}", repr(value))
        return
    path = Path(place) / name
    path.parent.mkdir(parents=True, exist_ok=True)
    draft = path.with_name(f".{path.name}.{os.getpid()}")
    draft.write_text(repr(value), encoding="ascii")
    draft.replace(path)


def is_remote(place: str) -> bool:
    return "://" in place


def fetched(place: str | None, environment: Mapping[str, str]) -> str | None:
    """A folder with the data that lie there; None where there are none: V1 always names a place, be it empty.

    The ranks of a node share one copy. The first of them makes it, on the large disk if there is one; the others wait.
    """
    if not place or not is_remote(place):
        return place
    import moxing

    disk = CACHE if CACHE.is_dir() and "TMPDIR" not in environment else Path(tempfile.gettempdir())
    job = f"{environment.get('DLS_JOB_ID', '')} {place}"
    folder = disk / f"data_url-{hashlib.sha256(job.encode()).hexdigest()[:16]}"
    with folder.with_suffix(".lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)  # a rank that dies lets go of it
        if not folder.exists():
            draft = tempfile.mkdtemp(prefix="draft-", dir=str(disk))
            moxing.file.copy_parallel(place, draft)
            Path(draft).rename(folder)
    return str(folder) if any(folder.iterdir()) else None


def run(parser: argparse.ArgumentParser, train: Callable[[Job], None]) -> None:
    answer_for(lambda: train(read_job(parser, sys.argv[1:], os.environ)), os.environ.get("RANK_ID", "0"))


def answer_for(train: Callable[[], None], rank: str) -> None:
    """Train; what the user can mend, or another rank broke, is one line and exit code 1."""
    try:
        train()
    except (ContractError, ExchangeError, OSError) as error:
        print(f"[ERROR] rank {rank}: {error}", file=sys.stderr, flush=True)
        sys.exit(1)


def read_job(parser: argparse.ArgumentParser, argv: Sequence[str], environment: Mapping[str, str]) -> Job:
    parser.add_argument("--data_url", help="folder of the data set")
    parser.add_argument("--train_url", required=True, help="folder for the results")
    rank, size = rank_and_size(environment)
    arguments = known_arguments(parser, argv, rank)
    if not 0 <= rank < size:
        raise ContractError(f"RANK_ID is {rank}, which is no rank among RANK_SIZE={size}")
    host, port = environment.get("MASTER_ADDR", ""), number(environment, "MASTER_PORT", 0)
    job = Job(arguments, arguments.train_url, rank, size, (host, port) if host and port else None, size)
    table = environment.get("RANK_TABLE_FILE", "")
    servers = read_rank_table(Path(table)) if table else []
    if servers and sorted(r for _, ranks in servers for r in ranks) != list(range(size)):
        raise ContractError(f"rank table {table} does not list the ranks 0 to {size - 1}, each once")
    require_own_rank(rank, servers, environment)
    arguments.data_url = fetched(arguments.data_url, environment)
    return alone(job, servers, port) if environment.get("SINGLESERVER_MODE") == "True" else job


def known_arguments(parser: argparse.ArgumentParser, argv: Sequence[str], rank: int) -> argparse.Namespace:
    """A platform may add arguments of its own. One that is misspelt looks the same, so that the log names them all."""
    arguments, others = parser.parse_known_args(argv)
    if others and rank == 0:
        print(f"[WARNING] rank 0: this script does not know, and left out: {' '.join(others)}", flush=True)
    return arguments


def require_own_rank(rank: int, servers: Sequence[Server], environment: Mapping[str, str]) -> None:
    """Nodes that both number their cards from 0 would wait for ever for the ranks that nobody is: say so instead."""
    ranks = dict(servers)
    here = next((environment[name] for name in ADDRESSES if environment.get(name) in ranks), "")
    if here and len(ranks) == len(servers) and rank not in ranks[here]:
        own = f"{min(ranks[here])} to {max(ranks[here])}"
        raise ContractError(
            f"RANK_ID is {rank}, and the rank table has {own} on this server, {here}; "
            "count through all nodes: RANK_ID = number of the node × cards per node + card"
        )


def rank_and_size(environment: Mapping[str, str]) -> tuple[int, int]:
    launcher = next((name for name in LAUNCHERS if f"{name}_RANK" in environment), "")
    if launcher and "RANK_ID" not in environment:
        return number(environment, f"{launcher}_RANK", 0), number(environment, f"{launcher}_SIZE", 1)
    return number(environment, "RANK_ID", 0), number(environment, "RANK_SIZE", 1)


def alone(job: Job, servers: Sequence[Server], port: int) -> Job:
    """The same job as seen by a server that trains alone: its cards meet at its own address."""
    for index, (host, ranks) in enumerate(servers):
        if job.rank in ranks:
            card = sorted(ranks).index(job.rank)
            return Job(job.arguments, job.train_url, card, len(ranks), (host, port), job.size, server=index)
    raise ContractError("SINGLESERVER_MODE=True needs RANK_TABLE_FILE to know which ranks share a server")


def positive(text: str) -> int:
    """What an epoch, a batch or a layer is counted in."""
    if not text.isdecimal() or int(text) < 1:
        raise argparse.ArgumentTypeError(f"{text!r} is not a whole number of 1 or more")
    return int(text)


def number(environment: Mapping[str, str], name: str, default: int) -> int:
    text = environment.get(name) or str(default)
    if not text.isdecimal():
        raise ContractError(f"{name}={text!r} is not a number")
    return int(text)


def read_rank_table(path: Path) -> list[Server]:
    """The servers, in the table's order: of version 1.0, or of the lab format, which Apulis writes."""
    try:
        table: Any = json.loads(path.read_text(encoding="utf-8"))
        if "deploy_mode" not in table:
            return [(str(s["server_id"]), [int(d["rank_id"]) for d in s["device"]]) for s in table["server_list"]]
        servers: dict[str, list[int]] = {}
        for card in (card for group in table["group_list"] for card in group["instance_list"]):
            servers.setdefault(str(card["server_id"]), []).append(int(card["rank_id"]))
        return list(servers.items())
    except (ValueError, KeyError, TypeError) as error:
        raise ContractError(f"{path} is no rank table of version 1.0 or of the lab format: {error!r}") from error
