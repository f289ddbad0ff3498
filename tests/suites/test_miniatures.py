"""The miniatures as the local cloud starts them: one plain process per rank, which learns only with the others."""

from __future__ import annotations

import json
import os
import random
import re
import shutil
import socket
import subprocess
import sys
import time
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from types import MappingProxyType
from typing import Any

import pytest

from pytest_aisbench.config import options
from pytest_aisbench.engine import suites
from pytest_aisbench.model.case import Shape

pytestmark = pytest.mark.slow

SUITES = Path(__file__).parents[2] / "suites"
NAMES = ("resnet50", "bert", "resnet50_cifar10", "horovod_mnist", "paddle_mlp")
NONE: Mapping[Any, str] = MappingProxyType({})
DEADLINE = 45.0  # seconds, for anything; less than the 60 that ranks wait for each other on their own

LOG_LINES = (
    r"numpy miniature, numpy version \d[\w.]+",
    r"epoch: 1 step: \d+, loss is \d+\.\d+",
    r"Train epoch time: \d+\.\d{3} ms, per step time: \d+\.\d{3} ms",
    r"train done starttime:.+ endtime:.+ stepsize:.+ batchsize:16 epochsize:. alldatasum:\d+ single_throughput_rate:.+",
    r"eval ckpt result:\{'accuracy': [\d.]+\}",
)

# The gradients stay at home, the two figures of the throughput do not.
NO_EXCHANGE = """
import real_exchange
from real_exchange import *
class Exchange(real_exchange.Exchange):
    def sum(self, buffer):
        if buffer.size <= 2:
            super().sum(buffer)
"""
LEFT_OUT = """
import real_exchange
from real_exchange import *
class Exchange(real_exchange.Exchange):
    def sum(self, buffer):
        if buffer.size > 2 and self.rank == self.size - 1:
            buffer[:] = 0
        super().sum(buffer)
"""

# An entry that puts something before every step of the network, and then is the miniature.
BEFORE_EVERY_STEP = """
import os, runpy, time
from residual import ResidualNet
step, calls = ResidualNet.step, []
def before(self, *batch):
    calls.append(0)
    {}
    return step(self, *batch)
ResidualNet.step = before
runpy.run_path(os.path.join(os.path.dirname(__file__), "miniature.py"), run_name="__main__")
"""


@dataclass
class Cluster:
    """A staged tree of code and the ranks that were started from it."""

    folder: Path
    name: str
    processes: list[subprocess.Popen[bytes]] = field(default_factory=list)

    def __post_init__(self) -> None:
        self.code = self.folder / "code"
        self.code.mkdir()
        self.results = self.folder / "results"
        for folder in declared(self.name).workload.code:
            for file in (SUITES / self.name / folder).glob("*.py"):
                shutil.copy(file, self.code)

    def replace_exchange(self, text: str) -> None:
        (self.code / "exchange.py").rename(self.code / "real_exchange.py")
        (self.code / "exchange.py").write_text(text)

    def start(
        self, size: int, *arguments: str, entries: Mapping[int, str] = NONE, environment: Mapping[str, str] = NONE
    ) -> None:
        """`entries` are ranks that run another file, or none at all where it is empty."""
        address = f"127.{random.randint(1, 254)}.{random.randint(1, 254)}.{random.randint(1, 254)}"
        with socket.socket() as probe:
            probe.bind((address, 0))
            port = probe.getsockname()[1]
        for rank in range(size):
            entry = entries.get(rank, "miniature.py")
            if not entry:
                continue
            ranks = {"RANK_ID": str(rank), "RANK_SIZE": str(size), "MASTER_ADDR": address, "MASTER_PORT": str(port)}
            with (self.folder / f"rank-{rank}.log").open("wb") as log:
                self.processes.append(
                    subprocess.Popen(
                        [sys.executable, str(self.code / entry), f"--train_url={self.results}", *arguments],
                        env={"PATH": os.environ["PATH"], "PYTHONDONTWRITEBYTECODE": "1", **ranks, **environment},
                        stdout=log,
                        stderr=subprocess.STDOUT,
                        cwd=self.folder,
                    )
                )

    def end(self) -> list[int]:
        deadline = time.monotonic() + DEADLINE
        return [process.wait(deadline - time.monotonic()) for process in self.processes]

    def train(
        self, size: int, *arguments: str, entries: Mapping[int, str] = NONE, environment: Mapping[str, str] = NONE
    ) -> None:
        self.start(size, *arguments, entries=entries, environment=environment)
        codes = self.end()
        assert set(codes) == {0}, [self.log(rank) for rank in range(size)]

    def log(self, rank: int) -> str:
        return (self.folder / f"rank-{rank}.log").read_text()

    def number(self, name: str) -> float:
        return float((self.results / name).read_text())

    def throughput(self, size: int) -> list[float]:
        return [self.number(f"throughput_{rank}.json") for rank in range(size)]

    def weights(self, size: int) -> set[str]:
        return {re.findall(r"^weights crc32:(\w+)$", self.log(rank), re.MULTILINE)[0] for rank in range(size)}

    def kill(self) -> None:
        for process in self.processes:
            process.kill()
            process.wait()


@pytest.fixture
def cluster(tmp_path: Path, request: pytest.FixtureRequest) -> Iterator[Cluster]:
    cluster = Cluster(tmp_path, getattr(request, "param", "resnet50"))
    yield cluster
    cluster.kill()


def declared(name: str) -> suites.Suite:
    return suites.load_suite(SUITES / name, "local", (), tuple(options.PLATFORMS))


def arguments(name: str) -> list[str]:
    return [f"--{key}={value}" for key, value in declared(name).workload.parameters.items()]


def wanted_accuracy(name: str) -> float:
    case = declared(name).case(Shape.parse("1x4"))
    return next(t for t in case.thresholds if t.metric == "accuracy").band(case.shape)[0]


def rank_table(path: Path, *servers: list[int]) -> str:
    rows = [
        {"server_id": f"127.0.0.{2 + k}", "device": [{"device_id": str(i), "rank_id": str(r)} for i, r in enumerate(s)]}
        for k, s in enumerate(servers)
    ]
    path.write_text(json.dumps({"version": "1.0", "status": "completed", "server_list": rows}))
    return str(path)


@pytest.mark.parametrize("cluster", NAMES, indirect=True)
def test_ranks_learn_together_and_keep_the_contract(cluster: Cluster) -> None:
    table = rank_table(cluster.folder / "table.json", [0, 1], [2, 3])
    cluster.train(4, *arguments(cluster.name), "--unknown=1", environment={"RANK_TABLE_FILE": table})
    assert cluster.number("accuracy.json") >= wanted_accuracy(cluster.name)
    assert (cluster.results / "ranksize.json").read_text() == "4"
    assert all(rate > 0 for rate in cluster.throughput(4))
    assert len(cluster.weights(4)) == 1
    assert len(list(cluster.results.iterdir())) == 6, "nothing else is left behind"
    for line in LOG_LINES:
        assert re.search(f"^{line}$", cluster.log(0), re.MULTILINE), line


@pytest.mark.parametrize("cluster", NAMES, indirect=True)
def test_without_exchange_a_rank_knows_its_own_share_only(cluster: Cluster) -> None:
    cluster.replace_exchange(NO_EXCHANGE)
    cluster.train(4, *arguments(cluster.name))
    assert cluster.number("accuracy.json") < 0.35, "a quarter, and what it guesses"


# Sixteen are the hardest: at 2x8, the largest shape of the suites, a rank's share is the smallest.
@pytest.mark.parametrize(
    ("cluster", "size"),
    [("resnet50", 4), ("bert", 4), ("resnet50_cifar10", 16), ("horovod_mnist", 16)],
    indirect=["cluster"],
)
def test_no_rank_is_left_out_unnoticed(cluster: Cluster, size: int) -> None:
    cluster.replace_exchange(LEFT_OUT)
    cluster.train(size, *arguments(cluster.name))
    accuracy = cluster.number("accuracy.json")
    assert accuracy < wanted_accuracy(cluster.name)
    assert accuracy == pytest.approx(1 - 1 / size, abs=0.05), "the share of the others was learnt"


@pytest.mark.parametrize("cluster", NAMES, indirect=True)
def test_one_card_needs_no_rendezvous(cluster: Cluster) -> None:
    cluster.train(1, *arguments(cluster.name), environment={"MASTER_ADDR": "", "MASTER_PORT": ""})
    assert cluster.number("accuracy.json") >= wanted_accuracy(cluster.name)
    assert cluster.number("ranksize.json") == 1


def test_the_seed_decides_the_weights(cluster: Cluster) -> None:
    seen = []
    for seed in (1, 1, 2):
        cluster.processes.clear()
        cluster.train(2, "--epochs=1", f"--seed={seed}")
        seen.append(cluster.weights(2))
    assert seen[0] == seen[1] != seen[2]


def test_a_slow_rank_is_seen_and_the_sum_stays_honest(cluster: Cluster) -> None:
    (cluster.code / "slow.py").write_text(BEFORE_EVERY_STEP.format("time.sleep(0.03)"))
    cluster.train(3, "--epochs=1", entries={1: "slow.py"})
    rates = cluster.throughput(3)
    assert rates[1] < min(rates[0], rates[2]) / 2
    steps = int(re.findall(r"stepsize:(\d+)", cluster.log(0))[0])
    assert sum(rates) < 64 * steps / (0.03 * steps)


def test_a_rank_that_dies_ends_the_others(cluster: Cluster) -> None:
    (cluster.code / "mortal.py").write_text(BEFORE_EVERY_STEP.format("len(calls) > 5 and os._exit(9)"))
    cluster.start(3, entries={1: "mortal.py"})
    assert cluster.end() == [1, 9, 1]
    assert re.search(r"^\[ERROR\] rank 0: rank 1 left the exchange: ", cluster.log(0), re.MULTILINE)
    assert re.search(r"^\[ERROR\] rank 2: rank 0 left the exchange: ", cluster.log(2), re.MULTILINE)
    assert not cluster.results.exists(), "half a training has no result"


def test_a_rank_that_never_comes_ends_the_others(cluster: Cluster) -> None:
    cluster.start(3, "--timeout=1", entries={2: ""})
    assert cluster.end() == [1, 1]
    assert re.search(r"^\[ERROR\] rank 0: rank .*2 did not come within 1 s$", cluster.log(0), re.MULTILINE)


def test_every_server_may_train_alone(cluster: Cluster) -> None:
    table = rank_table(cluster.folder / "table.json", [0, 1], [2, 3])
    cluster.train(4, "--epochs=1", environment={"RANK_TABLE_FILE": table, "SINGLESERVER_MODE": "True"})
    written = {str(path.relative_to(cluster.results)) for path in cluster.results.rglob("*.json")}
    cards = {f"{server}/throughput_{card}.json" for server in (0, 1) for card in (0, 1)}
    assert written == {*cards, "accuracy_0.json", "accuracy_1.json", "ranksize.json"}
    assert cluster.number("ranksize.json") == 4


@pytest.mark.parametrize(
    ("environment", "complaint"),
    [
        ({"RANK_SIZE": "eight"}, "RANK_SIZE='eight' is not a number"),
        ({"RANK_ID": "1"}, "RANK_ID is 1, which is no rank among RANK_SIZE=1"),
        ({"RANK_TABLE_FILE": "short.json"}, "rank table short.json does not list the ranks 0 to 0, each once"),
        (
            {"RANK_TABLE_FILE": "broken.json"},
            "broken.json is no rank table of version 1.0 or of the lab format: KeyError('server_list')",
        ),
        ({"RANK_SIZE": "2", "MASTER_ADDR": ""}, "2 ranks need MASTER_ADDR and MASTER_PORT to find each other"),
    ],
)
def test_a_wrong_environment_is_one_clear_line(cluster: Cluster, environment: dict[str, str], complaint: str) -> None:
    rank_table(cluster.folder / "short.json", [0, 1])
    (cluster.folder / "broken.json").write_text("{}")
    cluster.start(1, environment=environment)
    assert cluster.end() == [1]
    assert cluster.log(0) == f"[ERROR] rank {environment.get('RANK_ID', '0')}: {complaint}\n"


def test_nodes_that_both_count_their_cards_from_0_end_at_once(cluster: Cluster) -> None:
    """As the guide's script does: RANK_ID is the number of the card, on each of two nodes."""
    table = rank_table(cluster.folder / "table.json", [0, 1], [2, 3])
    told = {"RANK_TABLE_FILE": table, "RANK_SIZE": "4", "MA_CURRENT_HOST_IP": "127.0.0.3"}
    cluster.start(2, environment=told)  # the second node
    assert cluster.end() == [1, 1]
    for rank in (0, 1):
        assert cluster.log(rank) == (
            f"[ERROR] rank {rank}: RANK_ID is {rank}, and the rank table has 2 to 3 on this server, 127.0.0.3; "
            "count through all nodes: RANK_ID = number of the node × cards per node + card\n"
        )


@pytest.mark.parametrize("cluster", ["resnet50_cifar10"], indirect=True)
def test_cifar10_is_read_from_its_binary_format(cluster: Cluster) -> None:
    cluster.train(1, "--epochs=1", "--samples=640")
    without = cluster.weights(1)
    data = cluster.folder / "data"
    data.mkdir()
    generate = "import pathlib, sys, cifar10; cifar10.generate(pathlib.Path(sys.argv[1]), seed=1, per_file=640)"
    subprocess.run([sys.executable, "-c", generate, str(data)], cwd=cluster.code, check=True)
    cluster.processes.clear()
    cluster.train(1, "--epochs=1", "--samples=640", f"--data_url={data}")
    assert cluster.weights(1) == without, "the same records, the same training"


@pytest.mark.parametrize(
    ("content", "complaint"),
    [
        (None, "is missing: CIFAR-10's binary version was expected"),
        (bytes(3072), "is not CIFAR-10's binary version: 3072 bytes, not a multiple of 3073"),
        (b"", "is not CIFAR-10's binary version: 0 bytes, not a multiple of 3073"),
        (bytes(3073) + b"\x0a" + bytes(3072), "is not CIFAR-10's binary version: record 1 has label 10, not 0 to 9"),
    ],
)
@pytest.mark.parametrize("cluster", ["resnet50_cifar10"], indirect=True)
def test_a_wrong_cifar10_file_is_one_clear_line(cluster: Cluster, content: bytes | None, complaint: str) -> None:
    file = cluster.folder / "data" / "train" / "data_batch_1.bin"
    file.parent.mkdir(parents=True)
    if content is not None:
        file.write_bytes(content)
    cluster.start(1, f"--data_url={file.parents[1]}")
    assert cluster.end() == [1]
    assert cluster.log(0) == f"[ERROR] rank 0: {file} {complaint}\n"
