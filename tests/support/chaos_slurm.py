"""Runs on a real Slurm whose parts are killed on purpose, then one that is left alone: no job is lost or doubled.

    scripts/python tests/support/chaos_slurm.py [--kills 100] [--seed N]

Each round starts pytest over six suites, and kills pytest itself, the controller (half of the time within a second of a
submission), a node's daemon, or the ranks of a node. What dies is started again, as an operator would. After at most
three rounds a run goes to its end undisturbed; then the ledger, Slurm's queue and the jobs' own notes must agree.
"""

from __future__ import annotations

import argparse
import contextlib
import json
import os
import random
import signal
import sys
import tempfile
import time
from collections import Counter
from pathlib import Path

import forking
from slurm import ABSENT, Cluster, install, missing_programs, shared
from waiting import wait_until
from yard import SCRIPT, THRESHOLDS, Yard

SUITES = 6
VICTIMS = ("pytest", "slurmctld", "slurmctld at submit", "slurmd", "ranks")
_MARK = "import os, time\nif os.environ['RANK_ID'] == '0': open(os.environ['work'] + '/began', 'a').write('x')\n"
_TRIALS = "8"  # a job may be unlucky several times in a row


class Arena:
    """A folder with suites, its ledger and reports, on a cluster that outlives every run."""

    def __init__(self, folder: Path, cluster: Cluster, chance: random.Random) -> None:
        self._yard, self._cluster, self._chance = Yard(folder, folder / "no cloud"), cluster, chance
        table = f'share = "{cluster.share}"\npython = "{sys.executable}"\npoll = "0.2s"\nexclusive = "no"\n'
        (folder / "aisbench.toml").write_text(f'platform = "slurm"\n[slurm]\n{table}')
        self._edition = 0

    def renew(self) -> None:
        """Suites that no earlier run has trained."""
        self._edition += 1
        script = f"{_MARK}time.sleep({self._chance.uniform(0.5, 2)})\n{SCRIPT}# {self._edition}\n"
        for number in range(SUITES):
            self._yard.suite(f"toy{number}", script=script, thresholds=THRESHOLDS.replace("local", "slurm"))

    def play(self, victims: list[str]) -> int:
        """One run, with these deaths in it; its exit code."""
        run = self._start()
        for victim in victims:
            if victim == "slurmctld at submit":
                self._wait_for_submission(run)
                time.sleep(self._chance.uniform(0, 1))
            else:
                time.sleep(self._chance.uniform(0.2, 2.5))
            if run.poll() is None or victim != "pytest":
                self._kill(victim, run)
            self._repair()
        out, _ = run.communicate()
        (self._yard.folder / "last.log").write_text(out or "")
        return int(run.returncode)

    def _wait_for_submission(self, run: forking.Child) -> None:
        known, end = len(self._folders()), time.monotonic() + 4
        while len(self._folders()) == known and run.poll() is None and time.monotonic() < end:
            time.sleep(0.02)

    def settle(self) -> list[str]:
        """An undisturbed run, and what is wrong after it."""
        self._repair()
        code = self.play([])
        problems = [] if code == 0 else [f"exit {code}: {(self._yard.folder / 'last.log').read_text()[-3000:]}"]
        results = json.loads((self._yard.folder / "reports/latest/results.json").read_text())
        problems += [f"{case['id']}: {case['verdict']}" for case in results["cases"] if case["verdict"] != "PASSED"]
        trials = self._yard.trials()
        problems += [f"{trial['name']} is at {trial['step']}" for trial in trials if trial["step"] != "DONE"]
        names = {trial["name"] for trial in trials}
        for folder in self._folders():
            began = folder / "began"
            if began.exists() and began.read_text() != "x":
                problems.append(f"{folder.name} ran {len(began.read_text())} times")
            if folder.name not in names:
                problems.append(f"{folder.name} is in no ledger")
        left = self._cluster.run("squeue", "-h", "-t", "PD,R,S", "-o", "%j %T")
        return problems + [f"still there: {line}" for line in left.splitlines()]

    def _start(self) -> forking.Child:
        trials = ("--aisbench-max-trials", _TRIALS)
        return self._yard.start(*trials, cloud=False)

    def _folders(self) -> list[Path]:
        jobs = self._cluster.share / "aisbench/jobs"
        return [path for path in jobs.iterdir() if path.is_dir()] if jobs.is_dir() else []

    def _kill(self, victim: str, run: forking.Child) -> None:
        if victim == "pytest":
            os.killpg(run.pid, signal.SIGKILL)
        elif victim.startswith("slurmctld"):
            self._die("slurmctld")
            self._cluster.start_controller()
        elif victim == "slurmd":
            node = self._chance.choice(self._cluster.nodes)
            self._die(f"slurmd-{node}")
            self._cluster.start_node(node)
        else:
            for pid in self._ranks():
                with contextlib.suppress(ProcessLookupError):
                    os.kill(pid, signal.SIGKILL)

    def _die(self, daemon: str) -> None:
        pid = self._cluster.signal(daemon, signal.SIGKILL)
        wait_until(lambda: not pid or not Path(f"/proc/{pid}").exists())

    def _ranks(self) -> list[int]:
        """The processes of one job's ranks on this machine."""
        by_job: dict[str, list[int]] = {}
        for path in Path("/proc").glob("[0-9]*"):
            with contextlib.suppress(OSError):
                variables = (path / "environ").read_bytes().split(b"\0")
                marks = dict(each.split(b"=", 1) for each in variables if b"=" in each)
                if marks.get(b"work", b"").startswith(str(self._cluster.share).encode()) and b"RANK_ID" in marks:
                    by_job.setdefault(marks[b"work"].decode(), []).append(int(path.name))
        return self._chance.choice(list(by_job.values())) if by_job else []

    def _repair(self) -> None:
        """What an operator does: a controller that meets a job twice drains its node."""
        for node in self._cluster.nodes:
            self._cluster.run("scontrol", "update", f"nodename={node}", "state=resume", check=False)


def main() -> int:
    parser = argparse.ArgumentParser()
    parser.add_argument("--kills", type=int, default=100)
    parser.add_argument("--seed", type=int, default=random.randrange(1_000_000))
    options = parser.parse_args()
    install()
    if missing_programs():
        print(ABSENT, file=sys.stderr)
        return 0
    chance, deaths, wrong = random.Random(options.seed), Counter[str](), 0
    with tempfile.TemporaryDirectory(prefix="chaos-slurm-") as name, shared(Path(name) / "slurm") as cluster:
        os.environ["SLURM_CONF"] = cluster.environment["SLURM_CONF"]
        yard = Path(name) / "yard"
        yard.mkdir()
        arena = Arena(yard, cluster, chance)
        while deaths.total() < options.kills:
            arena.renew()
            began = time.monotonic()
            for _ in range(chance.randint(1, 3)):
                victims = chance.sample(VICTIMS, chance.randint(1, 3))
                victims.sort(key=lambda victim: victim == "pytest")  # after which nothing of the run is left to die
                code = arena.play(victims)
                deaths.update(victims)
                print(f"{', '.join(victims)}: exit {code}", flush=True)
            problems = arena.settle()
            wrong += bool(problems)
            print(
                f"after {deaths.total()} kills, {time.monotonic() - began:.0f} s:",
                problems or "all is well",
                flush=True,
            )
    print(f"seed {options.seed}: {deaths.total()} kills ({dict(deaths)}), {wrong} campaigns that lost something")
    return bool(wrong)


if __name__ == "__main__":
    sys.exit(main())
