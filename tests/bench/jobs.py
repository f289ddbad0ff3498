"""What jobs cost the pytest process that holds them: CPU, memory, requests, bytes written, and how each grows.

    python tests/bench/jobs.py [--full]

Jobs of a local cloud that simulates them. First 1, 100 and 1,000 jobs that end as soon as they begin, beside what
pytest itself needs for as many tests that pass, with the same kinds of reports. Then jobs in flight: the cloud shows
them as running until all have been in flight for a while; then they end at the same moment, the worst there is. Asked
as the local cloud is, every 0.1 to 0.6 s, or as ModelArts is, every 5 to 30 s: the same adapter, with the same cloud
as its endpoint. CPU, memory and bytes are those of the pytest process, which writes into a folder in memory; requests
are counted by the server.
"""

from __future__ import annotations

import argparse
import collections
import time
from collections.abc import Iterator
from typing import NamedTuple

import track
from calibration import Calibration
from figures import Figure, table

FEW, MANY, VERY_MANY = 100, 1_000, 10_000
POLLS = ("modelarts search", "modelarts show", "modelarts log")  # how many depends on how long the jobs take
_EXPECTED_S = 60.0  # what the suites say: far from its end a job is asked about less often
_WINDOW_S = 10.0
_ROUNDS = 5
_ENOUGH_S = 40.0  # a long measurement is not repeated beyond this


class Through(NamedTuple):
    ended: track.Ended
    requests: dict[str, int]  # by kind, from the server's books

    @property
    def beside_polls(self) -> int:
        return sum(count for kind, count in self.requests.items() if kind not in POLLS)


def through(jobs: int) -> Through:
    """A run of so many jobs that end at once."""
    with track.scratch() as folder, track.local_cloud(folder) as cloud:
        track.write_suites(folder / "suites", jobs, 0.0)
        ended = track.measured(track.ours(cloud, jobs, "suites"), folder)
        assert len(cloud.books()["jobs"]) == jobs
        return Through(ended, cloud.requests_by_kind())


def empty_tests(count: int) -> track.Ended:
    """pytest without us, with as many tests that pass."""
    with track.scratch() as folder:
        track.write_empty_tests(folder / "suites", count)
        return track.measured(track.theirs(folder, "suites"), folder)


class _Best:
    """CPU seconds by number of jobs: the best of all rounds."""

    def __init__(self) -> None:
        self._cpu: dict[int, float] = collections.defaultdict(lambda: float("inf"))

    def add(self, jobs: int, ended: track.Ended) -> None:
        self._cpu[jobs] = min(self._cpu[jobs], ended.cpu)

    def per_job(self, jobs: int) -> float:
        return (self._cpu[jobs] - self._cpu[1]) / jobs


def measure(*, full: bool = False) -> list[Figure]:
    """The cost of jobs that end at once."""
    calibration, ours, theirs = Calibration(), _Best(), _Best()
    through(1)  # compiles everything once
    empty_tests(1)
    runs: dict[int, Through] = {}
    for jobs, least in ((FEW, _ROUNDS), (MANY, 1)):
        for _ in _turns(least):
            calibration.take()
            for count in (1, jobs):
                runs[count] = through(count)
                ours.add(count, runs[count].ended)
                theirs.add(count, empty_tests(count))
    if full:
        runs[VERY_MANY] = through(VERY_MANY)
        ours.add(VERY_MANY, runs[VERY_MANY].ended)
    loop = (calibration.name, 1000 * calibration.seconds)
    test = 1000 * theirs.per_job(MANY)
    figures = [Figure("calibration", calibration.name, 1000 * calibration.seconds, "ms")]
    figures += [Figure("test", "CPU of pytest without us per test that passes", test, "ms")]
    figures += [
        Figure(f"cpu_{jobs}", f"CPU per job, {jobs:,} jobs", 1000 * ours.per_job(jobs), "ms", *loop, guarded=True)
        for jobs in sorted(runs.keys() - {1})
    ]
    for jobs in sorted(runs.keys() - {1, FEW}):
        figures += _of_many(jobs, runs[jobs], runs[FEW], 1000 * ours.per_job(jobs), 1000 * ours.per_job(FEW), test)
    return figures


def _turns(least: int) -> Iterator[None]:
    """As many as there is time for, and at least so many."""
    began = time.perf_counter()
    for turn in range(1, _ROUNDS + 1):
        yield
        if turn >= least and (time.perf_counter() - began) * (turn + 1) / turn > _ENOUGH_S:
            return


def _of_many(jobs: int, run: Through, few: Through, cpu: float, cpu_of_few: float, test: float) -> Iterator[Figure]:
    """How the cost of many jobs compares with that of few: it should not grow."""
    size = f"{jobs:,} jobs"
    written, written_of_few = run.ended.written / jobs / 1024, few.ended.written / FEW / 1024
    same = f"{FEW:,} jobs"
    above = f"CPU per job above that of a test, {size}"
    yield Figure(f"above_{jobs}", above, cpu - test, "ms", target=10.0 if jobs == MANY else None)
    growth = f"growth of CPU per job to {size}"
    yield Figure(f"growth_{jobs}", growth, cpu, "ms", same, cpu_of_few, target=1.2, guarded=True)
    # results.json is written every other second, so a busy machine writes it more often.
    what = f"bytes written per job, {size}"
    yield Figure(f"written_{jobs}", what, written, "KiB", same, written_of_few, guarded=True, slack=0.3)
    requests = run.beside_polls / jobs
    yield Figure(f"requests_{jobs}", f"requests per job beside polls, {size}", requests, guarded=True)
    yield Figure(f"memory_{jobs}", f"memory, {size}", run.ended.memory, "MiB", target=120.0 if jobs == MANY else None)


class Flight:
    """Follows a run from outside: until all jobs are there, for a while, and then lets them end."""

    def __init__(self, cloud: track.Cloud, jobs: int) -> None:
        self._cloud, self._jobs = cloud, jobs
        self.submitting = self.cpu_share = self.requests_per_s = self.released = 0.0

    def watch(self, pid: int) -> None:
        while len(jobs := self._cloud.books()["jobs"]) < self._jobs:
            time.sleep(0.5)
        self.submitting = (jobs[-1]["created"] - jobs[0]["created"]) / 1000
        time.sleep(2)  # until the last is on record
        start, cpu, requests = time.perf_counter(), track.cpu_of(pid), self._cloud.requests()
        time.sleep(_WINDOW_S)
        lasted = time.perf_counter() - start
        self.cpu_share = (track.cpu_of(pid) - cpu) / lasted
        self.requests_per_s = (self._cloud.requests() - requests) / lasted
        self._cloud.release()
        self.released = time.perf_counter()


def measure_flight(*, full: bool = False) -> list[Figure]:
    """Jobs that are in flight together and end at the same moment."""
    platforms = ("local", "modelarts") if full else ("local",)
    return [figure for platform in platforms for figure in _flight(platform, MANY)]


def _flight(platform: str, jobs: int) -> Iterator[Figure]:
    with track.scratch() as folder, track.local_cloud(folder) as cloud:
        track.write_suites(folder / "suites", jobs, 1.0, expected=_EXPECTED_S)
        cloud.configure(folder)
        cloud.hold()
        flight = Flight(cloud, jobs)
        ended = track.measured(track.ours(cloud, jobs, "suites", platform=platform), folder, watching=flight.watch)
        after = time.perf_counter() - flight.released
        assert len(cloud.books()["jobs"]) == jobs
    name, size = f"{platform}_{jobs}", f"{jobs:,} jobs, asked as {platform} is"
    most = 10.0 if jobs == MANY else None
    yield Figure(f"after_{name}", f"from the end of all to the prompt, {size}", after, "s", target=most)
    yield Figure(f"cpu_{name}", f"CPU per job in all, {size}", 1000 * ended.cpu / jobs, "ms")
    yield Figure(f"share_{name}", f"CPU while they run, {size}", 100 * flight.cpu_share, "%", target=3.0)
    yield Figure(f"rate_{name}", f"requests while they run, {size}", flight.requests_per_s, "/s")
    yield Figure(f"submitting_{name}", f"from the first submitted to the last, {size}", flight.submitting, "s")
    yield Figure(f"memory_{name}", f"memory, {size}", ended.memory, "MiB", target=120.0)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument(
        "--full",
        action="store_true",
        help=f"also {VERY_MANY:,} jobs, and {MANY:,} that are asked about as ModelArts is",
    )
    full = parser.parse_args().full
    print(track.machine(), flush=True)
    print(table(measure(full=full)), flush=True)
    print(table(measure_flight(full=full)), flush=True)


if __name__ == "__main__":
    main()
