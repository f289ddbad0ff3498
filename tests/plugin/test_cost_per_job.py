"""What a job costs, where all machines say the same: requests, commits of the ledger, bytes written; and that it is
flat.

How much CPU it takes depends on the machine: `python -m tests.bench` measures that.
"""

from __future__ import annotations

import json
import sys
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import NamedTuple

import jobs
import pytest
import track

ONE, FEW, MANY = 1, 20, 60
# The most that one more job may cost. Lower them when the cost falls; think twice before you raise one.
REQUESTS = {
    "modelarts create": 1,
    "modelarts metrics": 1,
    "obs head-object": 1,
    "obs put-object": 2,
    "obs get-bucket": 1,
    "obs get-object": 4,
    "tester post-results": 1,
}
COMMITS = 6.0  # what shares a commit depends on how quick the disk is
WRITTEN_KIB = 280.0  # given to write(): files and the terminal; a checkpoint of the ledger more or less is 50
KEPT_KIB = 70.0  # below reports/, after the run
REWRITES = 0.5  # of results.json, which holds all cases: every 1.5 s, and not for every case
# How many times as much one more job may cost after FEW jobs as before.
GROWTH = {"requests": 1.1, "commits": 1.5, "written": 1.5, "kept": 1.1}
# SQLite has no hook for commits that Python shows: a statement outside of a transaction commits by itself.
COUNTING = """import atexit
import json
import os
import pathlib
import sqlite3
import sys

connect = sqlite3.connect
commits, rewrites = [], []
WRITES = {"INSERT", "UPDATE", "DELETE", "REPLACE", "CREATE", "ALTER", "DROP"}


def counting(*arguments, **options):
    db = connect(*arguments, **options)

    def trace(statement):
        word = statement.split(None, 1)[0].upper()
        if word in {"COMMIT", "END"} or word in WRITES and not db.in_transaction:
            commits.append(word)

    db.set_trace_callback(trace)
    return db


def hear(event, details):
    if event == "os.rename" and os.path.basename(details[1]) == "results.json":
        rewrites.append(details[1])


sqlite3.connect = counting
sys.addaudithook(hear)
atexit.register(lambda: pathlib.Path("counts").write_text(json.dumps([len(commits), len(rewrites)])))
"""


@dataclass(frozen=True)
class Cost:
    """Of a run, or of one job more."""

    requests: Mapping[str, float]  # by kind, beside polls
    commits: float
    rewrites: float
    written: float  # KiB
    kept: float  # KiB

    def per_job(self, less: Cost, jobs_more: int) -> Cost:
        """What each of so many jobs more cost."""
        return Cost(
            {kind: (each - less.requests.get(kind, 0)) / jobs_more for kind, each in self.requests.items()},
            (self.commits - less.commits) / jobs_more,
            (self.rewrites - less.rewrites) / jobs_more,
            (self.written - less.written) / jobs_more,
            (self.kept - less.kept) / jobs_more,
        )


class Slopes(NamedTuple):
    """The cost of one more job: up to FEW jobs, and from there to MANY."""

    few: Cost
    many: Cost


def _cost(folder: Path, count: int) -> Cost:
    with track.local_cloud(folder) as cloud:
        track.write_suites(folder / "suites", count, 0.0)
        (folder / "suites" / "conftest.py").write_text(COUNTING)
        # No module is compiled to disk: whether that is still to be done is no matter of jobs.
        ended = track.measured(track.ours(cloud, count, "suites"), folder, settings={"PYTHONDONTWRITEBYTECODE": "1"})
        asked = {kind: times for kind, times in cloud.requests_by_kind().items() if kind not in jobs.POLLS}
        assert len(cloud.books()["jobs"]) == count
    kept = sum(path.lstat().st_size for path in (folder / "reports").rglob("*") if path.is_file())
    commits, rewrites = json.loads((folder / "counts").read_text())
    return Cost(asked, commits, rewrites, ended.written / 1024, kept / 1024)


@pytest.fixture(scope="module")
def slopes(tmp_path_factory: pytest.TempPathFactory) -> Slopes:
    one, few, many = (_cost(tmp_path_factory.mktemp("run"), count) for count in (ONE, FEW, MANY))
    return Slopes(few.per_job(one, FEW - ONE), many.per_job(few, MANY - FEW))


@pytest.mark.slow
def test_a_job_costs_no_more_than_agreed(slopes: Slopes) -> None:
    job = slopes.many
    assert {kind: each for kind, each in job.requests.items() if each > REQUESTS.get(kind, 0)} == {}
    assert 0 < job.commits <= COMMITS
    assert job.rewrites <= REWRITES
    assert 0 < job.kept <= KEPT_KIB
    assert job.written <= WRITTEN_KIB
    assert job.written > 0 or sys.platform != "linux"  # only Linux says how much a process has written


@pytest.mark.slow
def test_a_job_among_many_costs_what_it_costs_among_few(slopes: Slopes) -> None:
    few, many = ({**vars(each), "requests": sum(each.requests.values())} for each in slopes)
    grown = {what: (few[what], many[what]) for what, most in GROWTH.items() if many[what] > most * few[what]}
    assert grown == {}
