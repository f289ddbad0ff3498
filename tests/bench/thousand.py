"""1, 100 and 1,000 jobs in flight at once from one pytest process: what they cost it.

    python tests/bench/thousand.py [--quick]

Jobs of a local cloud that simulates them and shows them as running until all have been in flight for a while; then they
end at the same moment, the worst there is. Asked as the local cloud is, every 0.1 to 0.6 s; and 1,000 also as
ModelArts is, every 5 to 30 s: the same adapter, with the same cloud as its endpoint. CPU and memory are those of the
pytest process; requests are counted by the server.
"""

from __future__ import annotations

import argparse
import itertools
import tempfile
import time
from pathlib import Path

import track

_EXPECTED_S = 60.0  # what the suites say: far from its end a job is asked about less often
_WINDOW_S = 10.0


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


def measure(platform: str, jobs: int) -> list[str]:
    with tempfile.TemporaryDirectory() as scratch, track.local_cloud(Path(scratch)) as cloud:
        folder = Path(scratch)
        track.write_suites(folder / "suites", jobs, 1.0, expected=_EXPECTED_S)
        cloud.configure(folder)
        cloud.hold()
        flight = Flight(cloud, jobs)
        ended = track.measured(track.ours(cloud, jobs, "suites", platform=platform), folder, watching=flight.watch)
        after = time.perf_counter() - flight.released
        assert len(cloud.books()["jobs"]) == jobs
    per_second = [f"{100 * flight.cpu_share:.1f}", f"{flight.requests_per_s:.1f}"]
    rest = [f"{after:.1f}", f"{ended.cpu:.1f}", f"{1000 * ended.cpu / jobs:.0f}", f"{ended.memory:.0f}"]
    return [platform, f"{jobs:,}", f"{flight.submitting:.1f}", *per_second, *rest]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--quick", action="store_true", help="1, 50 and 200 jobs")
    counts = (1, 50, 200) if parser.parse_args().quick else (1, 100, 1000)
    print(track.machine(), flush=True)
    flying = ["CPU % in flight", "requests/s in flight"]
    whole = ["from the end of all to the prompt, s", "CPU s in all", "CPU ms per job", "MiB"]
    runs = [*(("local", jobs) for jobs in counts), ("modelarts", counts[-1])]
    track.table(["platform", "jobs", "submitted in s", *flying, *whole], itertools.starmap(measure, runs))


if __name__ == "__main__":
    main()
