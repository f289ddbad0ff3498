"""What a command and a run pay before they do anything: the start of Python, pytest, the vendor's packages, and ours.

    python tests/bench/startup.py [ROUNDS]

In turns, the best of all rounds. A run is one of one job of no length, with all reports; beside it stands pytest
without us, with one empty test and the same kinds of reports, and the import of what the vendor's clients need.
"""

from __future__ import annotations

import collections
import sys
import tempfile
from pathlib import Path

import track
from figures import Figure, table

from pytest_aisbench.ledger.ledger import Ledger

_ROUNDS = 7
_VENDOR = "import obs, huaweicloudsdkcore.http.http_client, huaweicloudsdkcore.signer.signer"
_OURS_S = 0.25  # what may be ours of a start-up


def measure(rounds: int = _ROUNDS) -> list[Figure]:
    taken: dict[str, list[track.Ended]] = collections.defaultdict(list)
    with tempfile.TemporaryDirectory() as scratch, track.local_cloud(Path(scratch)) as cloud:
        folder = Path(scratch)
        track.write_suites(folder / "suites", 1, 0.0)
        track.write_empty_tests(folder / "empty", 1)
        empty = folder / "nothing"
        Ledger(empty / "reports" / "ledger.db").close()
        commands = {
            "python": ([sys.executable, "-c", "pass"], folder),
            "vendor": ([sys.executable, "-c", _VENDOR], folder),
            "jobs": ([sys.executable, "-m", "pytest_aisbench", "jobs"], empty),
            "pytest": (track.theirs(folder, "empty"), folder),
            "run": (track.ours(cloud, 1, "suites"), folder),
        }
        for _ in range(rounds + 1):
            for name, (command, place) in commands.items():
                taken[name].append(track.measured(command, place))
    wall = {name: min(ended.wall for ended in runs[1:]) for name, runs in taken.items()}
    cpu = {name: min(ended.cpu for ended in runs[1:]) for name, runs in taken.items()}
    alone = wall["pytest"] + wall["vendor"] - wall["python"]
    alone_cpu = cpu["pytest"] + cpu["vendor"] - cpu["python"]
    peer, allowed = "pytest and the vendor's imports alone", f"pytest, the vendor's imports and {_OURS_S} s"
    return [
        Figure("run", "a run of one job of no length", wall["run"], "s", allowed, alone + _OURS_S, target=1.0),
        Figure("run_cpu", "CPU of a run of one job", 1000 * cpu["run"], "ms", peer, 1000 * alone_cpu, guarded=True),
        Figure(
            "jobs",
            "`aisbench jobs` on an empty ledger",
            1000 * wall["jobs"],
            "ms",
            "`python -c pass`",
            1000 * wall["python"],
            target=120.0,
            target_of_value=True,
        ),
        Figure(
            "jobs_cpu",
            "CPU of `aisbench jobs`",
            1000 * cpu["jobs"],
            "ms",
            "`python -c pass`",
            1000 * cpu["python"],
            guarded=True,
        ),
    ]


if __name__ == "__main__":
    print(table(measure(*map(int, sys.argv[1:]))))
