"""32 jobs of one second each: our Fleet, a fixture that waits for its job, the same with xdist, and ReFrame.

    python tests/bench/fleet.py [--quick]

All in one run, in turns, medians. Start-up is the same command with one job of no length. The ideal is the longest job,
as the server's books have it, and the start-up. Beside those that start processes stands the limit of the machine: the
same processes, started at once by hand. ReFrame is installed in an environment of its own, in the user's cache.
"""

from __future__ import annotations

import argparse
import collections
import os
import re
import shutil
import statistics
import subprocess
import sys
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import ExitStack
from functools import partial
from pathlib import Path
from typing import NamedTuple

import track
from figures import Figure, table

JOBS = 32
SECONDS = 1.0
_OURS, _PROCESSES, _BY_HAND = "ours, simulated jobs", "ours, processes", "the same processes by hand"
_WAITS = "a fixture that waits"

NAIVE_FIXTURE = """import os, pathlib, time
import pytest
from pytest_aisbench.platforms.local import Local
from pytest_aisbench.model.case import Shape
from pytest_aisbench.model.job import JobSpec
from pytest_aisbench.engine.staging import code_placement as of_code, upload_tree as put
from pytest_aisbench.engine.staging import read_tree as plant
from pytest_aisbench.config.settings import Settings


@pytest.fixture(scope="session")
def platform():
    platform = Local(Settings(cloud=pathlib.Path(os.environ["CARD"])))
    yield platform
    platform.close()


@pytest.fixture
def accuracy(platform, request):
    name, store = request.node.name.strip("]").replace("[", "-"), platform.store
    place = platform.root / f"naive/{time.time_ns()}-{name}/"
    code = put(store, of_code(platform.root, plant(name, [pathlib.Path(__file__).parent / "code"])))
    job = platform.submit(platform.render(JobSpec(
        name=f"{name}-{time.time_ns()}", shape=Shape(1, 1), code=code, entry="train.py", outputs=place / "outputs/",
        logs=place / "logs/", framework="python", parameters={"seconds": os.environ["SECONDS"], "epochs": "1"})))
    while not platform.inspect([job])[job].phase.is_final:
        time.sleep(platform.poll_s)
    return float(store.read(place / "outputs/accuracy.json"))
"""
NAIVE_TEST = """import os
import pytest


@pytest.mark.parametrize("number", range(int(os.environ["JOBS"])))
def test_trains(accuracy, number):
    assert accuracy >= 0.5
"""
REFRAME_SITE = """site_configuration = {
    "systems": [{"name": "here", "hostnames": [".*"], "partitions": [
        {"name": "all", "scheduler": "local", "launcher": "local", "environs": ["builtin"], "max_jobs": %d}]}],
    "environments": [{"name": "builtin"}],
}
"""
REFRAME_CHECK = """import os
import reframe as rfm
import reframe.utility.sanity as sn


@rfm.simple_test
class Sleeps(rfm.RunOnlyRegressionTest):
    number = parameter(range(int(os.environ["JOBS"])))
    valid_systems = ["*"]
    valid_prog_environs = ["*"]
    executable = "sleep"
    executable_opts = [os.environ["SECONDS"]]

    @sanity_function
    def ends_well(self):
        return sn.assert_eq(self.job.exitcode, 0)
"""


class Round(NamedTuple):
    wall: float
    start: float
    longest: float


Contestant = Callable[[int, float], track.Ended]


def variables(jobs: int, seconds: float, **more: str) -> dict[str, str]:
    """What the scripts of the other contestants read from their environment."""
    return {"JOBS": str(jobs), "SECONDS": f"{seconds:g}", **more}


class Arena:
    """A folder for all contestants, a cloud for each engine."""

    def __init__(self, folder: Path, simulated: track.Cloud, processes: track.Cloud) -> None:
        self._folder = folder
        self._clouds = {"simulated": simulated, "processes": processes}
        for jobs, seconds in ((JOBS, SECONDS), (1, 0.0)):
            track.write_suites(folder / f"suites-{jobs}", jobs, seconds)
        naive = folder / "naive"
        naive.mkdir()
        shutil.copytree(folder / "suites-1" / "code", naive / "code")
        (naive / "conftest.py").write_text(NAIVE_FIXTURE)
        (naive / "test_naive.py").write_text(NAIVE_TEST)
        (folder / "site.py").write_text(REFRAME_SITE % JOBS)
        (folder / "check.py").write_text(REFRAME_CHECK)

    def ours(self, engine: str, jobs: int, seconds: float) -> track.Ended:
        del seconds  # written in the suites
        return track.measured(track.ours(self._clouds[engine], JOBS, f"suites-{jobs}"), self._folder)

    def naive(self, more: Sequence[str], jobs: int, seconds: float) -> track.Ended:
        command = track.pytest_command("-p", "no:pytest_aisbench.plugin", *more, "naive")
        settings = variables(jobs, seconds, CARD=str(self._clouds["simulated"].file))
        return track.measured(command, self._folder, settings=settings)

    def reframe(self, program: Path, jobs: int, seconds: float) -> track.Ended:
        command = [str(program), "-C", "site.py", "-c", "check.py", "--exec-policy=async", "--prefix=reframe", "-r"]
        return track.measured(command, self._folder, settings=variables(jobs, seconds))

    def by_hand(self, command: Sequence[str], jobs: int, seconds: float) -> track.Ended:
        start = time.perf_counter()
        started = [subprocess.Popen([*command, f"{seconds:g}"], cwd=self._folder) for _ in range(jobs)]
        for process in started:
            assert process.wait() == 0
        return track.Ended(time.perf_counter() - start, 0.0, 0.0)

    def longest(self, engine: str, since: float) -> float:
        """Of the jobs that were created since then, in seconds, as the server's books have it."""
        jobs = self._clouds[engine].books()["jobs"]
        return max(float(job["ended"] - job["started"]) for job in jobs if job["created"] >= since * 1000) / 1000


def installed_reframe() -> Path | str:
    """The program; or why there is none."""
    cache = Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "pytest-aisbench" / "reframe"
    program = cache / "bin" / "reframe"
    if not program.exists():
        for command in ([sys.executable, "-m", "venv", str(cache)], [f"{cache}/bin/pip", "install", "ReFrame-HPC"]):
            done = subprocess.run(command, check=False, capture_output=True, text=True, timeout=120)
            if done.returncode:
                return (done.stderr.strip() or done.stdout.strip()).splitlines()[-1]
    return program


def measure(rounds: int = 2, *, full: bool = False) -> list[Figure]:
    """Medians of the rounds. Only with `full` the fixtures that wait take part: they need half a minute."""
    taken: dict[str, list[Round]] = collections.defaultdict(list)
    with track.scratch() as folder, ExitStack() as stack:
        arena = Arena(
            folder, *(stack.enter_context(track.local_cloud(folder, name)) for name in ("simulated", "processes"))
        )
        contestants = _contestants(arena, full=full)
        for turn in range(rounds):
            for name, (contestant, engine) in contestants.items():
                if turn and name == _WAITS:
                    continue  # its 32 seconds do not vary
                start = contestant(1, 0.0).wall
                since = time.time()
                wall = contestant(JOBS, SECONDS).wall
                taken[name].append(Round(wall, start, arena.longest(engine, since) if engine else SECONDS))
    medians = {name: Round(*map(statistics.median, zip(*each, strict=True))) for name, each in taken.items()}
    return list(_figures(medians))


def _contestants(arena: Arena, *, full: bool) -> dict[str, tuple[Contestant, str]]:
    """By name: how it runs so many jobs, and whose books say how long they took."""
    contestants: dict[str, tuple[Contestant, str]] = {
        _OURS: (partial(arena.ours, "simulated"), "simulated"),
        _PROCESSES: (partial(arena.ours, "processes"), "processes"),
        _BY_HAND: (partial(arena.by_hand, [sys.executable, "suites-1/code/train.py", "--seconds"]), ""),
    }
    reframe = installed_reframe()
    if isinstance(reframe, Path):
        contestants["ReFrame, asynchronous, `sleep 1`"] = (partial(arena.reframe, reframe), "")
    else:
        print(f"ReFrame is not installed: {reframe}", file=sys.stderr)
    if full:
        contestants["`sleep 1` by hand"] = (partial(arena.by_hand, ["sleep"]), "")
        contestants["a fixture that waits, `-n 8`"] = (partial(arena.naive, ["-n", "8"]), "simulated")
        contestants[_WAITS] = (partial(arena.naive, []), "simulated")
    return contestants


def _figures(medians: Mapping[str, Round]) -> Iterator[Figure]:
    for name, (wall, start, longest) in medians.items():
        key = re.sub(r"\W+", "_", name).strip("_").lower()
        if name == _PROCESSES:
            alone = medians[_BY_HAND].wall
            yield Figure(key, f"{name}, beyond start-up", wall - start, "s", _BY_HAND, alone, target=1.5)
        else:
            target = 1.15 if name == _OURS else None
            yield Figure(key, name, wall, "s", "the longest job and start-up", longest + start, target=target)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--quick", action="store_true", help="one round instead of three")
    rounds = 1 if parser.parse_args().quick else 3
    print(f"{JOBS} jobs of {SECONDS:g} s, {rounds} round(s), {track.machine()}", flush=True)
    print(table(measure(rounds, full=True)))


if __name__ == "__main__":
    main()
