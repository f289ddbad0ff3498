"""What the ledger knows against what truly happened: the books of the local cloud."""

from __future__ import annotations

import json
import re
import sqlite3
from collections import Counter
from collections.abc import Iterator
from contextlib import closing
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NamedTuple

import chaos_suite

RAN_TO_THE_END = {"Completed", "Failed"}
FINAL = {*RAN_TO_THE_END, "Terminated", "Abnormal"}


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


def of_jobs(record: Record, jobs: list[dict[str, Any]]) -> Iterator[str]:
    """All that is wrong once a run has come to its end and nobody else is at work."""
    trials = {row.name: row for row in record.rows}
    names = Counter(job["name"] for job in jobs)
    paid: Counter[tuple[str, str]] = Counter()
    for job in jobs:
        name, phase, row = job["name"], job["phase"], trials.get(job["name"])
        if names[name] > 1:
            yield f"{names[name]} jobs are called {name}"
        if phase not in FINAL:
            yield f"job {name} is {phase}"
        if row is None:
            yield f"job {name} is not in the ledger"
            continue
        if row.job_id != job["id"]:
            yield f"job {name} is {job['id']}, and {row.job_id} in the ledger"
        if phase in FINAL - RAN_TO_THE_END and not row.stopped:
            yield f"job {name} is {phase}, though nobody asked for that"
        paid[row.case, row.run] += phase in RAN_TO_THE_END and not row.stopped
    for row in record.rows:
        if not names[row.name]:
            yield f"trial {row.trial}, at {row.step}, has no job"
        if row.run in record.killed and (row.step in {"SUBMIT", "WATCH"} or not row.stopped):
            yield f"trial {row.trial}, at {row.step}, was left behind by the killed run {row.run}"
    # A run that ended has judged its cases, and the next begins anew. A death is no reason for another job.
    for (case, run), count in paid.items():
        if count > 1:
            yield f"{count} jobs of {case} ran to the end in run {run}"


def of_reports(folder: Path) -> Iterator[str]:
    """Whatever was killed, what lies there can be read."""
    for file in folder.glob("*/results.json"):
        try:
            json.loads(file.read_bytes(), parse_constant=_refuse)
        except ValueError as error:
            yield f"{file}: {error}"


def _refuse(word: str) -> None:
    raise ValueError(f"{word} is not JSON")


def essence(results: Any) -> dict[str, Any]:
    """What does not depend on the time of day, the names given to jobs, or how many runs there were before."""
    cases = {}
    for case in results["cases"]:
        trials = [{key: value for key, value in trial.items() if key not in _OF_THIS_TIME} for trial in case["trials"]]
        findings = [{**finding, "text": _NOISE.sub("", finding["text"])} for finding in case["findings"]]
        kept = {key: value for key, value in case.items() if key not in {"card_hours", "trials"}}
        reason = _NOISE.sub("", case["reason"] or "")
        cases[case["id"]] = {**kept, "reason": reason, "findings": findings, "trials": trials}
    return cases


_OF_THIS_TIME = {"job_id", "queued_s", "ran_s", "stage", "usage"}
_NOISE = re.compile(r"; noise unknown: [^;]*|: the interval [^()]*\([^()]*\)")  # it tells how long the history is


def of_results(results: Any, undisturbed: dict[str, Any]) -> Iterator[str]:
    by_case = essence(results)
    if len(by_case) != chaos_suite.CASES:
        yield f"{len(by_case)} cases in results.json"
    for case in sorted(by_case.keys() & undisturbed.keys()):
        for key, value in undisturbed[case].items():
            if by_case[case].get(key) != value:
                yield f"{case}: {key} is {by_case[case].get(key)!r}, and undisturbed {value!r}"
