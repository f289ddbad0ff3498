"""Suites that take a second instead of a minute, run by a real pytest on a real local cloud."""

from __future__ import annotations

import atexit
import json
import os
import socket
import sqlite3
import subprocess
import sys
from collections.abc import Mapping
from contextlib import closing
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import forking
import pytest
import results_schema
from commands import AISBENCH, run
from waiting import PATIENCE, wait_until

from pytest_aisbench.config.settings import Settings
from pytest_aisbench.platforms.local import Local

# A run alone, and one by workers of xdist, each of which imports everything again.
WORKERS = pytest.mark.parametrize(
    "workers", [pytest.param([], id="single"), pytest.param(["-n", "2"], id="xdist", marks=pytest.mark.slow)]
)
_CI = {"CI", "BUILD_NUMBER"}
# At the end of a run uploads get 5 s, which are too many where nobody listens, and too few on a busy machine.
_TESTER_PATIENCE = "pytest_aisbench.session.reporters:PATIENCE_S"
CACHELESS = ("-pno:cacheprovider",)
STRANGERS = ("hypothesispytest", "anyio", "repeat")  # plugins that come with the tests
SCRIPT = """
import argparse, os, pathlib
parser = argparse.ArgumentParser()
parser.add_argument("--train_url")
out = pathlib.Path(parser.parse_known_args()[0].train_url)
rank, size = int(os.environ["RANK_ID"]), int(os.environ["RANK_SIZE"])
print("rank", rank, "of", size, flush=True)

def write(name, text):
    (out / f"{name}.json").write_text(text)

write(f"throughput_{rank}", "12.5")
if rank == 0:
    write("ranksize", str(size))
    write("accuracy", "0.9")
"""
WORKLOAD = """name = "{name}"
code = ["code"]
entry = "train.py"
devices = 2
[metrics.throughput]
unit = "images/s"
"""
THRESHOLDS = """[local."*"]
throughput = { at_least = 1 }
accuracy = { at_least = 0.5 }
"""
TEST = """import pytest

pytestmark = pytest.mark.workload("{name}", nodes=[1, 2])


def test_trains(trial):
    trial.verdict.require()
"""


class Gate:
    """Where a job waits until the test lets it go on: a port, since a node shares no folder with anybody."""

    def __init__(self) -> None:
        self._socket = socket.socket()  # bound, so that nobody else takes it
        self._socket.bind(("127.0.0.1", 0))
        atexit.register(self._socket.close)  # a job may look for it until the end

    @property
    def wait(self) -> str:
        """What the job's script begins with."""
        address = self._socket.getsockname()
        return f"import socket, time\nwhile socket.socket().connect_ex({address}):\n    time.sleep(0.05)\n"

    def open(self) -> None:
        self._socket.listen(64)


@dataclass(frozen=True)
class Ended:
    """How a run of pytest ended, and what it left."""

    code: int
    out: str
    folder: Path

    @property
    def reports(self) -> Path:
        return self.folder / "reports" / "latest"

    @property
    def results(self) -> Any:
        """Held against the published schema, whatever the test is about."""
        document = json.loads((self.reports / "results.json").read_text(encoding="utf-8"))
        results_schema.check(document)
        return document

    @property
    def verdicts(self) -> dict[str, str | None]:
        return {case["id"]: case["verdict"] for case in self.results["cases"]}


@dataclass(frozen=True)
class Yard:
    """A folder with suites of our making."""

    folder: Path
    card: Path

    def suite(
        self,
        name: str = "toy",
        *,
        script: str = SCRIPT,
        workload: str = WORKLOAD,
        thresholds: str = THRESHOLDS,
        test: str = TEST,
    ) -> Path:
        place = self.folder / "suites" / name
        (place / "code").mkdir(parents=True, exist_ok=True)
        (place / "code" / "train.py").write_text(script)
        (place / "workload.toml").write_text(workload.replace("{name}", name))
        (place / "thresholds.toml").write_text(thresholds)
        (place / f"test_{name}.py").write_text(test.replace("{name}", name))
        return place

    def command(self, *arguments: str, cloud: bool = True) -> list[str]:
        attach = ["--aisbench-cloud", str(self.card)] if cloud else []
        without = [part for name in STRANGERS for part in ("-p", f"no:{name}")]
        return [sys.executable, "-m", "pytest", *without, *CACHELESS, "-W", "error", *attach, *arguments]

    def environment(self, **changes: str) -> dict[str, str]:
        theirs = ("AISBENCH_", "PYTEST_", "HUAWEICLOUD_", "GITHUB_")
        # In CI pytest writes whole messages of tests into its summary, whatever lines they have.
        ours = {key: value for key, value in os.environ.items() if not key.startswith(theirs) and key not in _CI}
        return {**ours, "COLUMNS": "120", **changes}

    def start(self, *arguments: str, nodes: int = 1, cloud: bool = True) -> forking.Child:
        """Start a run of the suites, which the test then kills, interrupts or lets end."""
        return forking.Child(
            self.command("suites", "--nodes", str(nodes), *arguments, cloud=cloud),
            self.folder,
            self.environment(),
            stderr=subprocess.STDOUT,
            new_session=True,
            planted={_TESTER_PATIENCE: PATIENCE},
        )

    def trials(self) -> list[dict[str, Any]]:
        """The trials on record, oldest first; none while the ledger is being made."""
        file = self.folder / "reports" / "ledger.db"
        if not file.exists():
            return []
        with closing(sqlite3.connect(file)) as db:
            try:
                rows = db.execute("SELECT step, job_id, record FROM trials ORDER BY updated").fetchall()
            except sqlite3.OperationalError:
                return []
        return [{**json.loads(record), "step": step, "job_id": job_id} for step, job_id, record in rows]

    def wait_for_job(self, phase: str | None = None) -> str:
        """Wait until every trial's job is submitted, and in that phase if one is named; return an id of a job."""

        def is_there(trials: list[dict[str, Any]]) -> bool:
            return bool(trials) and all(
                trial["step"] == "WATCH" and phase in {None, (trial["job"] or {}).get("phase")} for trial in trials
            )

        return str(wait_until(self.trials, is_there)[0]["job_id"])

    def aisbench(self, *arguments: str, seconds: float = PATIENCE, **changes: str) -> subprocess.CompletedProcess[str]:
        """Run a command of `aisbench` here; `changes` are of its environment."""
        return run(*AISBENCH, *arguments, folder=self.folder, environment=self.environment(**changes), seconds=seconds)

    def pytest(
        self,
        *arguments: str,
        cloud: bool = True,
        env: Mapping[str, str] | None = None,
        fork: bool = True,
        tester_patience: float = PATIENCE,
    ) -> Ended:
        """Run pytest here to its end; `tester_patience`: how long it waits at its end for a Tester that is down."""
        done = run(
            *self.command(*arguments, cloud=cloud),
            folder=self.folder,
            environment=self.environment(**(env or {})),
            merge=True,
            fork=fork,
            planted={_TESTER_PATIENCE: tester_patience},
        )
        return Ended(done.returncode, done.stdout, self.folder)


def submitted(card: Path) -> int:
    """How many jobs a local cloud has seen."""
    platform = Local(Settings(cloud=card))
    try:
        page = platform.session.call("POST", "/v2/{project_id}/training-job-searches", {"offset": 0, "limit": 1})
        return int(page["total"])
    finally:
        platform.close()
