"""Runs, jobs and tests in the ledger, as commands and reports look them up; and the folder of a run."""

from __future__ import annotations

import enum
import json
import time
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import Any, NamedTuple

from pytest_aisbench.errors import LedgerError, UsageFault
from pytest_aisbench.ledger.database import Database
from pytest_aisbench.ledger.lease import Liveness, is_held, liveness, runs_with_heartbeat
from pytest_aisbench.ledger.ledger import MAY_RUN, Ledger, read_trial, record
from pytest_aisbench.model import codec
from pytest_aisbench.model.job import Request
from pytest_aisbench.model.ports import Clock
from pytest_aisbench.model.results import Executor
from pytest_aisbench.model.trial import Trial

LATEST = "latest"
UNJUDGED = "not judged"
MOST_RUNS = 20  # in a history of tests
JOB_TIME = "job_time"
_FEW = 5  # runs that a message names
_SELECT = "SELECT t.record, r.owner, r.lease, r.finished IS NOT NULL FROM trials t JOIN runs r USING (run)"
_NEWEST = "ORDER BY t.updated DESC"
# Exactly as the index has it; otherwise SQLite would read the long records.
_VERDICT = "json_extract(record, '$.verdict')"
_COUNTS = f"SELECT {_VERDICT}, count(*) FROM cases WHERE run = ? GROUP BY {_VERDICT}"  # noqa: S608


@dataclass(frozen=True)
class RunSummary:
    """One line of a list of runs."""

    run: str
    started: float
    finished: float | None
    exit_code: int | None
    settings: Mapping[str, Any]
    verdicts: Mapping[str, int]  # how many cases have which; UNJUDGED for those without
    executor: Executor = Executor()


def newest_runs(database: Database, limit: int, skip: int = 0) -> list[RunSummary]:
    """The newest runs, after the first `skip` of them."""
    rows = database.read(
        "SELECT run, started, finished, exit_code, settings, executor FROM runs"
        " ORDER BY started DESC, run DESC LIMIT ? OFFSET ?",
        *(limit, skip),
    )
    return [
        RunSummary(
            *(run, started, finished, code, json.loads(settings), _verdicts(database, run)),
            executor=codec.load(Executor, json.loads(executor)),
        )
        for run, started, finished, code, settings, executor in rows
    ]


def executor_of(database: Database, run: str) -> Executor:
    """Who started the run, and from which commit."""
    rows = database.read("SELECT executor FROM runs WHERE run = ?", run)
    return codec.load(Executor, json.loads(rows[0][0])) if rows else Executor()


def _verdicts(database: Database, run: str) -> dict[str, int]:
    return {verdict or UNJUDGED: count for verdict, count in database.read(_COUNTS, run)}


def find_run(database: Database, text: str) -> str:
    """The id of the one run whose id is, or begins with, `text`; `latest` is the newest."""
    if text in {"", LATEST}:
        rows = database.read("SELECT run FROM runs ORDER BY started DESC, run DESC LIMIT 1")
    else:
        rows = database.read("SELECT run FROM runs WHERE substr(run, 1, ?) = ? ORDER BY run DESC", len(text), text)
    matches = [str(row[0]) for row in rows]
    if len(matches) == 1 or text in matches:
        return text if text in matches else matches[0]
    if matches:
        more = f" and {len(matches) - _FEW} more" if len(matches) > _FEW else ""
        raise UsageFault(f"{text!r} is the beginning of {', '.join(matches[:_FEW])}{more}", advice="write more of it")
    newest = [str(row[0]) for row in database.read("SELECT run FROM runs ORDER BY started DESC LIMIT ?", _FEW)]
    advice = f"the newest are {', '.join(newest)}" if newest else "there is none yet"
    raise UsageFault(f"the ledger has no run {text!r}", advice=advice)


def is_under_way(database: Database, run: str, now: float) -> bool:
    """True if a live process still works on the run."""
    rows = database.read("SELECT owner, lease FROM runs WHERE run = ? AND finished IS NULL", run)
    return any(is_held(owner, lease, now) for owner, lease in rows)


# The folder of a run.


def run_id(now: float) -> str:
    """A new id; ids sort by time."""
    import secrets

    return f"{time.strftime('%Y%m%d-%H%M%S', time.gmtime(now))}-{secrets.token_hex(3)}"


def make_folder(reports: Path, run: str) -> Path:
    """Create the folder of a run among the reports."""
    folder = reports / run
    try:
        folder.mkdir(parents=True)
    except OSError as error:
        raise _write_fault(folder, error) from None
    return folder


def point_latest(reports: Path, run: str) -> None:
    """Point the link `latest` to the run, atomically."""
    pointer = reports / f".{LATEST}-{run}"
    try:
        pointer.symlink_to(run, target_is_directory=True)
        pointer.replace(reports / LATEST)
    except OSError as error:
        raise _write_fault(reports / LATEST, error) from None


def request_name(case: str, number: int) -> str:
    """The file name of a trial's request; most cases have one trial."""
    return f"{case}.trial-{number}" if number > 1 else case


def write_request(folder: Path, name: str, request: Request) -> Path:
    """Write the request of a trial for people to read; it holds no secret."""
    target = folder / "requests" / f"{name}.json"
    text = json.dumps(codec.dump(request), indent=2, ensure_ascii=False)
    try:
        target.parent.mkdir(exist_ok=True)
        target.write_text(text, encoding="utf-8")
    except OSError as error:
        raise _write_fault(target, error) from None
    return target


def _write_fault(path: Path, error: OSError) -> LedgerError:
    return LedgerError(f"{path} cannot be made: {error.strerror}", advice="name another --aisbench-reports")


# Jobs, for `aisbench jobs`, `logs` and `stop`.


class Holder(enum.Enum):
    """Whether the run that holds a trial is alive, as far as this machine knows."""

    ALIVE = "alive"
    ENDED = "ended"  # and left its job on purpose, or could not cancel it
    DEAD = "dead"
    UNKNOWN = "unknown"  # it shows no heartbeat; whether its process lives, only its machine knows


@dataclass(frozen=True)
class HeldTrial:
    """A trial and the run that holds it, as the ledger had them when it was read."""

    trial: Trial
    owner: str  # host and pid
    holder: Holder
    record: str
    seen: bool = True  # False if only the run's lease says whether it lives, by the clock of another machine

    @property
    def in_flight(self) -> bool:
        """True if its job may run. A private cloud, which has no platform_id, ends with its run."""
        return self.trial.may_run and (bool(self.trial.platform_id) or self.holder is Holder.ALIVE)


class JobLedger(Ledger):
    """A ledger that commands read and change from outside of a run."""

    def __init__(self, path: Path, *, new: bool = False) -> None:
        """With `new`, the file need not exist yet."""
        if not new and not path.is_file():
            raise UsageFault(f"there is no ledger {path}", advice="name it with --ledger FILE or --reports DIR")
        super().__init__(path)
        self._alive: dict[str, bool] = {}  # by run, for those that were watched for a heartbeat

    def in_flight(self, now: float) -> list[HeldTrial]:
        """The trials whose job may run, newest first."""
        rows = self.database.read(f"{_SELECT} WHERE {MAY_RUN} {_NEWEST}")
        return [held for held in (_held_trial(row, now) for row in rows) if held.in_flight]

    def latest(self, count: int, now: float) -> list[HeldTrial]:
        return [_held_trial(row, now) for row in self.database.read(f"{_SELECT} {_NEWEST} LIMIT ?", count)]

    def named(self, job: str, now: float) -> HeldTrial | None:
        """The trial of a job, by the job's id or name: a job whose submission had no answer has no id."""
        rows = self.database.read(f"{_SELECT} WHERE t.job_id = ? OR t.name = ? {_NEWEST} LIMIT 1", job, job)
        return _held_trial(rows[0], now) if rows else None

    def note_stop(self, job_id: str, who: str, now: float) -> None:
        """Remember who stops a job, for the run that holds it; without `who`, forget it."""
        self.database.write("DELETE FROM stops WHERE job_id = ?", job_id)
        if who:
            self.database.write("INSERT OR REPLACE INTO stops VALUES (?, ?, ?)", job_id, who, now)

    def amend(self, held: HeldTrial, trial: Trial, now: float) -> HeldTrial | None:
        """Save a changed trial; None if another process has changed it since it was read."""
        written = self.swap_trial(replace(trial, fence=held.trial.fence), now, held.record)
        return replace(held, trial=written, record=record(written)) if written else None

    def with_holders(self, trials: Iterable[HeldTrial], clock: Clock) -> list[HeldTrial]:
        """The trials with their holders, sure enough to stop a job: runs on machines that we cannot see are watched
        for a heartbeat, all at once."""
        held = list(trials)
        runs = {each.trial.run for each in held if not each.seen} - self._alive.keys()
        alive = runs_with_heartbeat(self, runs, clock)
        self._alive |= {run: run in alive for run in runs}
        holders = {run: Holder.ALIVE if lives else Holder.UNKNOWN for run, lives in self._alive.items()}
        return [each if each.seen else replace(each, holder=holders[each.trial.run], seen=True) for each in held]


def _held_trial(row: tuple[Any, ...], now: float) -> HeldTrial:
    written, owner, lease, ended = row
    state = liveness(owner)
    if ended:
        holder = Holder.ENDED
    elif state is not Liveness.UNKNOWN:
        holder = Holder.ALIVE if state is Liveness.ALIVE else Holder.DEAD
    else:
        holder = Holder.ALIVE if lease > now else Holder.UNKNOWN
    seen = bool(ended) or state is not Liveness.UNKNOWN
    return HeldTrial(read_trial(written), owner.partition(" ")[0], holder, written, seen)


# Tests.


class RecordedTest(NamedTuple):
    """One test of a run, with its reports as pytest serializes them."""

    nodeid: str
    case: str  # the id of its case; empty for a test without a workload
    status: str  # passed, failed, broken or skipped
    started: float
    stopped: float
    reports: Sequence[Mapping[str, Any]] = ()


class PastRun(NamedTuple):
    """An earlier run: the tests of its cases, without their reports."""

    run: str
    started: float
    tests: Sequence[RecordedTest]
    metrics: Mapping[str, float]  # by `<case>.<metric>`; empty if not asked for


class RecordedTests:
    """Stores the tests of one run, so that `aisbench report` can show an old run; a rerun test replaces its record."""

    def __init__(self, database: Database, run: str) -> None:
        self._database, self._run = database, run
        self._ordinals: dict[str, int] = {}

    def add(self, tests: Iterable[RecordedTest]) -> None:
        """Store them within milliseconds."""
        for test in tests:
            self._ordinals.setdefault(test.nodeid, len(self._ordinals))
            self._database.write_soon(f"test {self._run} {test.nodeid}", partial(self._add, test))

    def _add(self, test: RecordedTest) -> None:
        # Plugins put all kinds of things into reports: what JSON does not know becomes text.
        reports = json.dumps(test.reports, separators=(",", ":"), default=str)
        row = (self._run, test.nodeid, self._ordinals[test.nodeid], *test[1:5], reports)
        self._database.write("INSERT OR REPLACE INTO tests VALUES (?, ?, ?, ?, ?, ?, ?, ?)", *row)


def read_tests(database: Database, run: str) -> list[RecordedTest]:
    """The tests of a run, in the order in which they ended."""
    rows = database.read(
        "SELECT nodeid, case_id, status, started, stopped, record FROM tests WHERE run = ? ORDER BY ordinal", run
    )
    return [
        RecordedTest(nodeid, case, status, started, stopped, json.loads(reports))
        for nodeid, case, status, started, stopped, reports in rows
    ]


def past_runs(database: Database, run: str, *, measured: bool = False) -> list[PastRun]:
    """The newest runs before this one that tested a case; newest first."""
    rows = database.read(
        "SELECT run, started FROM runs r WHERE started < (SELECT started FROM runs WHERE run = ?)"
        " AND EXISTS (SELECT 1 FROM tests t WHERE t.run = r.run AND t.case_id > '')"
        " ORDER BY started DESC, run DESC LIMIT ?",
        *(run, MOST_RUNS),
    )
    return [
        PastRun(name, started, _tests_of(database, name), _metrics(database, name) if measured else {})
        for name, started in rows
    ]


def _tests_of(database: Database, run: str) -> list[RecordedTest]:
    rows = database.read(
        "SELECT nodeid, case_id, status, started, stopped FROM tests WHERE run = ? AND case_id > '' ORDER BY nodeid",
        run,
    )
    return [RecordedTest(*row) for row in rows]


def _metrics(database: Database, run: str) -> dict[str, float]:
    """The metrics of a run's cases, and how long their jobs ran."""
    rows = database.read(
        "SELECT case_id, json_extract(record, '$.metrics'), json_extract(record, '$.card_hours'),"
        " json_extract(record, '$.nodes'), json_extract(record, '$.devices_per_node') FROM cases WHERE run = ?",
        run,
    )
    by_name: dict[str, float] = {}
    for case, metrics, hours, nodes, devices in rows:
        values = {f"{case}.{name}": metric["value"] for name, metric in json.loads(metrics).items()}
        by_name |= {key: value for key, value in values.items() if value is not None}
        by_name[f"{case}.{JOB_TIME}"] = job_time(hours, nodes, devices)
    return by_name


def job_time(card_hours: float, nodes: int, devices: int) -> float:
    """How many seconds the jobs of a case ran, all trials together."""
    return round(card_hours * 3600 / (nodes * devices), 3)
