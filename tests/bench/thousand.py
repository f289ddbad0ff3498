"""1, 100 and 1,000 jobs in flight at once from one pytest process: what they cost it while they run.

    python tests/bench/thousand.py [--quick]

Jobs of a local cloud that pretends them, each as long as it takes until all are in flight and have been looked at for
a while. Asked as the local cloud is, every 0.1 to 0.6 s, and as ModelArts is, every 5 to 30 s: the same adapter, with
the same cloud as its endpoint. CPU is that of the pytest process; requests are counted by the server.
"""

from __future__ import annotations

import argparse
import tempfile
import time
from pathlib import Path
from typing import NamedTuple

import track


class Run(NamedTuple):
    """Seconds of jobs, and of the time in which all are in flight and watched."""

    platform: str
    jobs: int
    seconds: float
    window: float


class Flight:
    """Follows a run from outside."""

    def __init__(self, cloud: track.Cloud, run: Run) -> None:
        self._cloud, self._run = cloud, run
        self.cpu_share = self.requests_per_s = self.submitting = 0.0

    def watch(self, pid: int) -> None:
        while len(jobs := self._cloud.books()["jobs"]) < self._run.jobs:
            time.sleep(0.5)
        self.submitting = (jobs[-1]["created"] - jobs[0]["created"]) / 1000
        time.sleep(1)  # until the last is on record
        start, cpu, requests = time.perf_counter(), track.cpu_of(pid), self._cloud.requests()
        time.sleep(self._run.window)
        lasted, used, asked = time.perf_counter() - start, track.cpu_of(pid) - cpu, self._cloud.requests() - requests
        ended = sum(job["phase"] != "Running" for job in self._cloud.books()["jobs"])
        assert not ended, f"{ended} jobs are not in flight any more: make them longer"
        self.cpu_share, self.requests_per_s = used / lasted, asked / lasted


def measure(run: Run) -> list[str]:
    with tempfile.TemporaryDirectory() as scratch, track.local_cloud(Path(scratch)) as cloud:
        folder = Path(scratch)
        track.write_suites(folder / "suites", run.jobs, run.seconds, expected=True)
        cloud.configure(folder)
        command = track.ours(cloud, run.jobs, "suites", platform=run.platform)
        flight = Flight(cloud, run)
        ended = track.measured(command, folder, watching=flight.watch)
        assert len(cloud.books()["jobs"]) == run.jobs
    return [
        run.platform,
        f"{run.jobs:,}",
        f"{flight.submitting:.1f}",
        f"{100 * flight.cpu_share:.1f}",
        f"{flight.requests_per_s:.1f}",
        f"{ended.memory:.0f}",
        f"{ended.cpu:.1f}",
        f"{ended.wall:.1f}",
        f"{ended.wall - run.seconds:.1f}",
    ]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--quick", action="store_true", help="1, 50 and 200 jobs")
    quick = parser.parse_args().quick
    lengths = {1: 8.0, 50: 10.0, 200: 15.0} if quick else {1: 10.0, 100: 15.0, 1000: 45.0}
    print(f"{track.machine()}", flush=True)
    rows = []
    for jobs, seconds in lengths.items():
        for platform in ("local", "modelarts"):
            run = Run(platform, jobs, seconds, window=5.0 if platform == "local" else 6.0)
            rows.append(measure(run))
            print("·", *rows[-1], flush=True)
    head = ["platform", "jobs", "submitted in s", "CPU % in flight", "requests/s in flight", "MiB", "CPU s", "wall s"]
    track.table([*head, "wall s without the jobs' own"], rows)


if __name__ == "__main__":
    main()
