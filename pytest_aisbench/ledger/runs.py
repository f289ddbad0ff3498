"""The runs of a ledger, newest first: which one is meant, and what became of each."""

from __future__ import annotations

import enum
import json
import secrets
import time
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, NamedTuple

from pytest_aisbench.errors import LedgerError, UsageFault
from pytest_aisbench.ledger.database import Database
from pytest_aisbench.ledger.ledger import MAY_RUN, Ledger, is_dead, is_held, record
from pytest_aisbench.model import codec
from pytest_aisbench.model.job import Request
from pytest_aisbench.model.trial import Trial

# -- A run's id, and the folder of its own among the reports.

LATEST = "latest"


def run_id(now: float) -> str:
    """Sorted by time, and never given twice."""
    return f"{time.strftime('%Y%m%d-%H%M%S', time.gmtime(now))}-{secrets.token_hex(3)}"


def make_folder(reports: Path, run: str) -> Path:
    """A folder that no run had before."""
    folder = reports / run
    try:
        folder.mkdir(parents=True)
    except OSError as error:
        raise _write_fault(folder, error) from None
    return folder


def point_latest(reports: Path, run: str) -> None:
    """Replaced at once: whoever follows `latest` meanwhile finds the one run or the other."""
    pointer = reports / f".{LATEST}-{run}"
    try:
        pointer.symlink_to(run, target_is_directory=True)
        pointer.replace(reports / LATEST)
    except OSError as error:
        raise _write_fault(reports / LATEST, error) from None


def request_name(case: str, number: int) -> str:
    """Of the request of a case's trial; most cases have one."""
    return f"{case}.trial-{number}" if number > 1 else case


def write_request(folder: Path, name: str, request: Request) -> Path:
    """What is sent, to be read by a person; it holds no secret."""
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


# -- Jobs as the ledger has them, for whoever asks from another shell: what runs, and whose it is.

_SELECT = "SELECT t.record, r.owner, r.lease, r.finished IS NOT NULL FROM trials t JOIN runs r USING (run)"
_NEWEST = "ORDER BY t.updated DESC"


class Holder(enum.Enum):
    """What is known of the run that has a trial."""

    ALIVE = "alive"
    ENDED = "ended"  # and left its job on purpose, or could not stop it
    DEAD = "dead"
    UNKNOWN = "unknown"  # its lease expired; whether its process lives, only its machine knows


@dataclass(frozen=True)
class HeldTrial:
    """A trial and its holder, as they were when the ledger was read."""

    trial: Trial
    owner: str
    holder: Holder
    record: str

    @property
    def in_flight(self) -> bool:
        """Its job may run: a private cloud, which has no place, ends with its run."""
        return self.trial.may_run and (bool(self.trial.platform_id) or self.holder is Holder.ALIVE)


class JobLedger(Ledger):
    """A ledger that exists already, read and amended from outside of a run."""

    def __init__(self, path: Path, *, new: bool = False) -> None:
        """`new`: it may be one that does not exist yet."""
        if not new and not path.is_file():
            raise UsageFault(f"there is no ledger {path}", advice="name it with --ledger FILE or --reports DIR")
        super().__init__(path)

    def in_flight(self, now: float) -> list[HeldTrial]:
        """Newest first."""
        rows = self.database.read(f"{_SELECT} WHERE {MAY_RUN} {_NEWEST}")
        return [held for held in (_held_trial(row, now) for row in rows) if held.in_flight]

    def latest(self, count: int, now: float) -> list[HeldTrial]:
        return [_held_trial(row, now) for row in self.database.read(f"{_SELECT} {_NEWEST} LIMIT ?", count)]

    def named(self, job: str, now: float) -> HeldTrial | None:
        """By the job's id, or by its name: a job whose submission had no answer has no other."""
        rows = self.database.read(f"{_SELECT} WHERE t.job_id = ? OR t.name = ? {_NEWEST} LIMIT 1", job, job)
        return _held_trial(rows[0], now) if rows else None

    def amend(self, held: HeldTrial, trial: Trial, now: float) -> HeldTrial | None:
        """Write the trial, unless somebody else wrote it since it was read: then None, and theirs stands."""
        written = self.swap_trial(trial, now, held.record)
        return replace(held, trial=trial, record=record(trial)) if written else None


def _held_trial(row: tuple[Any, ...], now: float) -> HeldTrial:
    written, owner, lease, ended = row
    if ended:
        holder = Holder.ENDED
    elif is_dead(owner):
        holder = Holder.DEAD
    else:
        holder = Holder.ALIVE if lease > now else Holder.UNKNOWN
    return HeldTrial(codec.load(Trial, json.loads(written)), owner, holder, written)


UNJUDGED = "not judged"
_FEW = 5  # runs that a message names
# Written as the index has it, or the long records would be read.
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


def newest_runs(database: Database, limit: int, skip: int = 0) -> list[RunSummary]:
    """After the first `skip` of them."""
    rows = database.read(
        "SELECT run, started, finished, exit_code, settings FROM runs ORDER BY started DESC, run DESC LIMIT ? OFFSET ?",
        *(limit, skip),
    )
    return [
        RunSummary(run, started, finished, code, json.loads(settings), _verdicts(database, run))
        for run, started, finished, code, settings in rows
    ]


def _verdicts(database: Database, run: str) -> dict[str, int]:
    return {verdict or UNJUDGED: count for verdict, count in database.read(_COUNTS, run)}


def find_run(database: Database, text: str) -> str:
    """The id of the one run whose id is, or begins with, `text`; `latest` is the newest."""
    if text in {"", LATEST}:
        rows = database.read("SELECT run FROM runs ORDER BY started DESC, run DESC LIMIT 1")
    else:
        rows = database.read("SELECT run FROM runs WHERE substr(run, 1, ?) = ? ORDER BY run DESC", len(text), text)
    found = [str(row[0]) for row in rows]
    if len(found) == 1 or text in found:
        return text if text in found else found[0]
    if found:
        more = f" and {len(found) - _FEW} more" if len(found) > _FEW else ""
        raise UsageFault(f"{text!r} is the beginning of {', '.join(found[:_FEW])}{more}", advice="write more of it")
    known = [str(row[0]) for row in database.read("SELECT run FROM runs ORDER BY started DESC LIMIT ?", _FEW)]
    advice = f"the newest are {', '.join(known)}" if known else "there is none yet"
    raise UsageFault(f"the ledger has no run {text!r}", advice=advice)


def is_under_way(database: Database, run: str, now: float) -> bool:
    """Somebody is still at work on it, and writes its reports."""
    rows = database.read("SELECT owner, lease FROM runs WHERE run = ? AND finished IS NULL", run)
    return any(is_held(owner, lease, now) for owner, lease in rows)


# -- What pytest said of each test of a run: with it an old run is told again as it was told.

MOST_RUNS = 20  # that a history shows


class RecordedTest(NamedTuple):
    """One test. Its reports are as pytest serializes them for another process."""

    nodeid: str
    case: str  # the id of its case; empty for a test of nothing of ours
    status: str  # passed, failed, broken or skipped
    started: float
    stopped: float
    reports: Sequence[Mapping[str, Any]] = ()


class PastRun(NamedTuple):
    """An earlier run: the tests of its cases, without their reports."""

    run: str
    started: float
    tests: Sequence[RecordedTest]
    metrics: Mapping[str, float]  # by `<case>.<metric>`; empty where nobody asked


class RecordedTests:
    """Of one run. A test that is told again, because another worker judged it, has only the last word."""

    def __init__(self, database: Database, run: str) -> None:
        self._database, self._run = database, run
        self._ordinals: dict[str, int] = {}

    def add(self, tests: Iterable[RecordedTest]) -> None:
        with self._database.transaction():
            for test in tests:
                ordinal = self._ordinals.setdefault(test.nodeid, len(self._ordinals))
                # Plugins hang all kinds of things on a report: what JSON does not know is kept as a text.
                said = json.dumps(test.reports, separators=(",", ":"), default=str)
                row = (self._run, test.nodeid, ordinal, *test[1:5], said)
                self._database.write("INSERT OR REPLACE INTO tests VALUES (?, ?, ?, ?, ?, ?, ?, ?)", *row)


def read_tests(database: Database, run: str) -> list[RecordedTest]:
    """In the order in which they ended."""
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
    """As the run itself told them."""
    rows = database.read(
        "SELECT case_id, json_extract(record, '$.metrics'), json_extract(record, '$.card_hours'),"
        " json_extract(record, '$.nodes'), json_extract(record, '$.devices_per_node') FROM cases WHERE run = ?",
        run,
    )
    found: dict[str, float] = {}
    for case, metrics, hours, nodes, devices in rows:
        told = {f"{case}.{name}": metric["value"] for name, metric in json.loads(metrics).items()}
        found |= {key: value for key, value in told.items() if value is not None}
        found[f"{case}.{JOB_TIME}"] = job_time(hours, nodes, devices)
    return found


JOB_TIME = "job_time"


def job_time(card_hours: float, nodes: int, devices: int) -> float:
    """How many seconds the jobs of a case ran, all trials together."""
    return round(card_hours * 3600 / (nodes * devices), 3)
