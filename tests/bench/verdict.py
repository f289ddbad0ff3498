"""From the end of a job, as the server's books have it, to the verdict on record: 1, 32 and 256 jobs at once.

    python tests/bench/verdict.py [--quick]

The limit is the interval in which the platform is asked about its jobs: on average no end is heard of before half of
it is over. Then logs and results come home and are judged. Jobs that end together queue for the cores, which client and
server share.
"""

from __future__ import annotations

import argparse
import statistics
import tempfile
from collections.abc import Iterator, Sequence
from pathlib import Path

import track
from figures import Figure, table

from pytest_aisbench.ledger.ledger import Ledger
from pytest_aisbench.platforms.local import Local

SECONDS = 3.0


def lags(jobs: int) -> tuple[list[float], list[float]]:
    """Seconds from each job's end until it was heard of, and until it was judged."""
    with tempfile.TemporaryDirectory() as scratch, track.local_cloud(Path(scratch)) as cloud:
        folder = Path(scratch)
        track.write_suites(folder / "suites", jobs, SECONDS, expected=SECONDS)
        track.measured(track.ours(cloud, jobs, "suites"), folder)
        ended = {job["id"]: job["ended"] / 1000 for job in cloud.books()["jobs"]}
        ledger = Ledger(folder / "reports" / "ledger.db")
        trials = ledger.trials((folder / "reports" / "latest").resolve().name)
        ledger.close()
    assert len(trials) == len(ended) == jobs
    ends = [(trial.times, ended[trial.job_id or ""]) for trial in trials]
    return [times["harvest"] - end for times, end in ends], [times["done"] - end for times, end in ends]


def measure(counts: Sequence[int] = (1, 32, 256)) -> list[Figure]:
    return [figure for jobs in counts for figure in _figures(jobs)]


def _figures(jobs: int) -> Iterator[Figure]:
    # One job tells little: it is run again.
    runs = [lags(jobs) for _ in range(5 if jobs == 1 else 1)]
    size = f"{jobs} job" if jobs == 1 else f"{jobs} jobs"
    for part, what in enumerate(("heard of", "judged")):
        ordered = sorted(1000 * lag for run in runs for lag in run[part])
        values = {"median": statistics.median(ordered), "95th percentile": ordered[len(ordered) * 95 // 100]}
        for which, value in values.items():
            name = f"{what}_{which}_{jobs}".replace(" ", "_")
            yield Figure(name, f"{size}: {what}, {which}", value, "ms", "asked every", 1000 * Local.poll_s)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--quick", action="store_true", help="1 and 32 jobs")
    counts = (1, 32) if parser.parse_args().quick else (1, 32, 256)
    print(track.machine(), flush=True)
    print(table(measure(counts)))


if __name__ == "__main__":
    main()
