"""What the ledger knows against what truly happened: the books of the local cloud."""

from __future__ import annotations

import json
import re
import sqlite3
from collections import Counter
from collections.abc import Collection, Iterator
from contextlib import closing
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NamedTuple

import chaos_suite

RAN_TO_THE_END = {"Completed", "Failed"}
FINAL = {*RAN_TO_THE_END, "Terminated", "Abnormal"}


LOST, DOUBLED, ORPHANED, GREEN, OTHER = COUNTED = ("lost", "doubled", "orphaned", "wrongly green", "otherwise wrong")


class Problem(NamedTuple):
    kind: str  # one of COUNTED
    text: str

    def __str__(self) -> str:
        return f"{self.kind}: {self.text}"


class Row(NamedTuple):
    """A trial in the ledger."""

    trial: str
    run: str
    case: str
    name: str
    step: str
    job_id: str | None
    record: str

    @property
    def taken_over(self) -> bool:
        return not self.trial.startswith(f"{self.run}/")

    @property
    def stopped(self) -> bool:
        """Its job was of no more use to its run."""
        return "stopping" in json.loads(self.record)["times"]


@dataclass(frozen=True)
class Record:
    """The ledger, read as it lies there; what a killed run left in its journal is left to the next run."""

    rows: list[Row]
    killed: set[str]  # runs that never ended
    integrity: str

    @classmethod
    def read(cls, file: Path) -> Record:
        if not file.exists():
            return cls([], set(), "ok")
        with closing(sqlite3.connect(f"{file.as_uri()}?mode=ro", uri=True, timeout=30)) as db:
            try:
                (integrity,) = db.execute("PRAGMA integrity_check").fetchone()
                rows = db.execute("SELECT trial, run, case_id, name, step, job_id, record FROM trials").fetchall()
                killed = {row[0] for row in db.execute("SELECT run FROM runs WHERE finished IS NULL")}
            except sqlite3.OperationalError as error:
                if "no such table" not in str(error):
                    raise
                return cls([], set(), "ok")  # killed before it had made the tables
        return cls([Row(*row) for row in rows], killed, str(integrity))


def of_jobs(record: Record, jobs: list[dict[str, Any]], died: Collection[str]) -> Iterator[Problem]:
    """All that is wrong once a run has come to its end and no other is at work.

    `died`: names of jobs that may have run on a cloud that was killed, and ended with it.
    """
    trials = {row.name: row for row in record.rows}
    names = Counter(job["name"] for job in jobs)
    paid: Counter[tuple[str, str]] = Counter()
    for job in jobs:
        name, phase, row = job["name"], job["phase"], trials.get(job["name"])
        if names[name] > 1:
            yield Problem(DOUBLED, f"{names[name]} jobs are called {name}")
        if phase not in FINAL:
            yield Problem(ORPHANED, f"job {name} is {phase}")
        if row is None:
            yield Problem(ORPHANED, f"job {name} is not in the ledger")
            continue
        if row.job_id != job["id"]:
            yield Problem(LOST, f"job {name} is {job['id']}, and {row.job_id} in the ledger")
        if phase in FINAL - RAN_TO_THE_END and not row.stopped:
            yield Problem(LOST, f"job {name} is {phase}, though nobody asked for that")
        paid[row.case, row.run] += phase in RAN_TO_THE_END and not row.stopped
    for row in record.rows:
        if not names[row.name] and row.name not in died:
            yield Problem(LOST, f"trial {row.trial}, at {row.step}, has no job")
        if row.run in record.killed and (row.step in {"SUBMIT", "WATCH"} or not row.stopped):
            yield Problem(ORPHANED, f"trial {row.trial}, at {row.step}, was left behind by the killed run {row.run}")
    # A run that ended has judged its cases, and the next begins anew. A death is no reason for another job.
    for (case, run), count in paid.items():
        if count > 1:
            yield Problem(DOUBLED, f"{count} jobs of {case} ran to the end in run {run}")


def of_uploads(ledger: Path, tester: Path) -> Iterator[Problem]:
    """Every verdict in the ledger is in the Tester's database, once, and no other."""
    with closing(sqlite3.connect(f"{ledger.as_uri()}?mode=ro", uri=True, timeout=30)) as db:
        verdicts = db.execute("SELECT run, case_id, json_extract(record, '$.verdict') FROM cases").fetchall()
    with closing(sqlite3.connect(f"{tester.as_uri()}?mode=ro", uri=True, timeout=30)) as db:
        rows = db.execute("SELECT runs.name, results.name, verdict FROM results JOIN runs ON runs.id = run").fetchall()
    judged = {(run, case): verdict for run, case, verdict in verdicts if verdict}
    stored = Counter((run, case) for run, case, _ in rows)
    for (run, case), count in stored.items():
        if count > 1:
            yield Problem(DOUBLED, f"the Tester has {count} results of {case} in run {run}")
    for run, case, verdict in rows:
        if verdict != judged.get((run, case)):
            kind = GREEN if verdict == "PASSED" else OTHER
            yield Problem(kind, f"the Tester has {verdict} for {case} in {run}, the ledger {judged.get((run, case))}")
    for run, case in judged.keys() - stored.keys():
        yield Problem(LOST, f"the Tester has no result of {case} in run {run}")


def of_reports(folder: Path) -> Iterator[Problem]:
    """Whatever was killed, what lies there can be read."""
    for file in folder.glob("*/results.json"):
        try:
            json.loads(file.read_bytes(), parse_constant=_refuse)
        except ValueError as error:
            yield Problem(OTHER, f"{file}: {error}")


def _refuse(word: str) -> None:
    raise ValueError(f"{word} is not JSON")


def essence(results: Any) -> dict[str, Any]:
    """What does not depend on the time of day, the names given to jobs, or how many runs there were before."""
    cases = {}
    for case in results["cases"]:
        # A job that died with its cloud gets another trial, whose number is in the names of its logs.
        counted = [trial for trial in case["trials"] if trial["phase"] != "LOST"]
        trials = [
            {key: value for key, value in trial.items() if key not in _OF_THIS_TIME}
            | {"trial": number, "logs": [_NUMBER.sub(rf"\1/{number}/", log) for log in trial["logs"]]}
            for number, trial in enumerate(counted, 1)
        ]
        findings = [{**finding, "text": _NOISE.sub("", finding["text"])} for finding in case["findings"]]
        kept = {key: value for key, value in case.items() if key not in {"card_hours", "trials"}}
        reason = _NUMBER.sub(r"\1/N/", _ID.sub("ID", _NOISE.sub("", case["reason"] or "")))
        cases[case["id"]] = {**kept, "reason": reason, "findings": findings, "trials": trials}
    return cases


_ID = re.compile(r"[0-9a-f]{8}(-[0-9a-f]{4}){3}-[0-9a-f]{12}")  # of a job, which the last line of its log may name
_NUMBER = re.compile(r"\b(logs/[^/]+)/\d+/")  # of a trial
_OF_THIS_TIME = {"job_id", "queued_s", "ran_s", "stage", "usage"}
_NOISE = re.compile(r"; noise unknown: [^;]*|: the interval [^()]*\([^()]*\)")  # it tells how long the history is


def of_results(results: Any, undisturbed: dict[str, Any], *, cloud_died: bool = False) -> Iterator[Problem]:
    """`cloud_died`: a log that only the cloud had may have died with it."""
    by_case = essence(results)
    for case in (by_case.keys() & undisturbed.keys()) if cloud_died else ():
        for trial, whole in zip(by_case[case]["trials"], undisturbed[case]["trials"], strict=False):
            trial["logs"] = trial["logs"] or whole["logs"]
    if len(by_case) != chaos_suite.CASES:
        yield Problem(LOST, f"{len(by_case)} cases in results.json")
    for case in sorted(by_case.keys() & undisturbed.keys()):
        for key, value in undisturbed[case].items():
            if by_case[case].get(key) != value:
                kind = GREEN if key == "verdict" and by_case[case].get(key) == "PASSED" else OTHER
                yield Problem(kind, f"{case}: {key} is {by_case[case].get(key)!r}, and undisturbed {value!r}")
