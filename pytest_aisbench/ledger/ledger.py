"""The crash-safe record of every run, trial and case: one SQLite file. Only the process that owns a run writes it."""

from __future__ import annotations

import json
import logging
import os
import threading
from collections.abc import Callable, Collection, Mapping
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any, NamedTuple

from pytest_aisbench.errors import Blame, LedgerError
from pytest_aisbench.ledger import history
from pytest_aisbench.ledger.database import Database
from pytest_aisbench.logs import get_logger, ignored
from pytest_aisbench.model import codec
from pytest_aisbench.model.clock import stamp
from pytest_aisbench.model.job import Job, Phase
from pytest_aisbench.model.messages import message
from pytest_aisbench.model.ports import Clock
from pytest_aisbench.model.results import RESULTS, RUNS, SCHEMA, CaseBrief, CaseEntry, Executor, PreviousRun, RunEntry
from pytest_aisbench.model.trial import Fault, Step, Trial
from pytest_aisbench.model.verdict import Ruling

_LOG = get_logger("fleet")

# Not REPLACE, which would silently delete another trial of the same name.
_SAVE = """
INSERT INTO trials (trial, run, case_id, number, name, step, job_id, updated, record, place, fingerprint, ran_s)
VALUES (?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?)
ON CONFLICT (trial) DO UPDATE SET
    run = excluded.run, case_id = excluded.case_id, number = excluded.number, name = excluded.name,
    step = excluded.step, job_id = excluded.job_id, updated = excluded.updated, record = excluded.record,
    place = excluded.place, fingerprint = excluded.fingerprint, ran_s = excluded.ran_s
"""
_SAVE_IF_UNCHANGED = f"{_SAVE} WHERE trials.record = ?"
_SAVE_IF_STILL_LEFT = f"""{_SAVE_IF_UNCHANGED} AND EXISTS (
    SELECT 1 FROM runs WHERE runs.run = ? AND owner = ? AND lease = ? AND (finished IS NULL) = ?)"""  # noqa: S608 - made of our own words
_SAVE_IF_OURS = f"{_SAVE} WHERE trials.run = excluded.run"
_SAVE_CASE = "INSERT OR REPLACE INTO cases VALUES (?, ?, ?, ?)"
MAY_RUN = "(t.step IN ('SUBMIT', 'WATCH') OR json_extract(t.record, '$.job.phase') IN ('PENDING', 'RUNNING'))"
_LEFT = f"""
SELECT t.record, r.owner, r.lease, r.finished IS NULL FROM trials t JOIN runs r USING (run)
WHERE t.case_id = ? AND t.place = ? AND t.run != ? AND ({MAY_RUN} OR t.updated =
    (SELECT max(updated) FROM trials WHERE case_id = ? AND place = ? AND run != ?))
ORDER BY t.updated DESC
"""  # noqa: S608 - made of our own words

_PREVIOUS_RUN = """
SELECT b.run, b.started FROM runs b JOIN runs r ON r.run = ? AND b.started < r.started
WHERE b.finished IS NOT NULL
    AND json_extract(b.settings, '$.platform') IS json_extract(r.settings, '$.platform')
    AND json_extract(b.settings, '$.region') IS json_extract(r.settings, '$.region')
    AND EXISTS (SELECT 1 FROM cases c WHERE c.run = b.run AND json_extract(c.record, '$.verdict') IS NOT NULL)
ORDER BY b.started DESC LIMIT 1
"""
_UPLOADS = """
SELECT tester, label, case_id, state, why FROM uploads u WHERE run = ? AND kind != ? AND NOT (kind = ? AND EXISTS (
    SELECT 1 FROM uploads n
    WHERE n.run = u.run AND n.kind = u.kind AND n.case_id = u.case_id AND n.attempt > u.attempt))
ORDER BY rowid
"""
_BRIEF = """
SELECT case_id, json_extract(record, '$.verdict'), json_extract(record, '$.metrics.throughput.value'),
    json_extract(record, '$.metrics.throughput.unit') FROM cases WHERE run = ? ORDER BY ordinal, case_id
"""


class LeftTrial(NamedTuple):
    """A trial that its run did not finish, and the process that may still hold it."""

    trial: Trial
    owner: str
    lease: float
    killed: bool  # its run has no end in the ledger
    record: str  # the trial as it was read


class Ledger:
    """A write is on disk when its call returns, but for those named `_soon`, which are within milliseconds.

    Soon is early enough for everything but an intent: a kill before that moment loses only what the next run finds out
    again, from the platform, the Store or the Tester.
    """

    def __init__(self, path: Path) -> None:
        self.path = path
        self.database = Database(path)

    def begin(
        self,
        run: str,
        settings: Mapping[str, Any],
        now: float,
        owner: str = "",
        lease: float = 0.0,
        *,
        executor: Executor | None = None,
    ) -> None:
        statement = "INSERT INTO runs (run, started, settings, owner, lease, executor) VALUES (?, ?, ?, ?, ?, ?)"
        self.database.write(statement, run, now, _text(settings), owner, lease, record(executor or Executor()))

    def renew(self, run: str, lease: float) -> None:
        """Extend the lease of a live run: no other run takes its jobs before `lease`."""
        self.database.write("UPDATE runs SET lease = ? WHERE run = ?", lease, run)

    def leases(self) -> dict[str, float]:
        """The lease of every run that has no end, by its own clock; a live run changes it every few seconds."""
        return dict(self.database.read("SELECT run, lease FROM runs WHERE finished IS NULL"))

    def finish(self, run: str, exit_code: int, now: float, own: Collection[str] = ()) -> set[str]:
        """End the run, unless another run has taken over one of its `own` trials: returns those.

        Once it has ended, no run takes its trials over any more.
        """
        with self.database.transaction():
            taken = set(own) - self._held_trials(run, own)
            if not taken:
                statement = "UPDATE runs SET finished = ?, exit_code = ?, lease = 0 WHERE run = ?"
                self.database.write(statement, now, exit_code, run)
        return taken

    def _held_trials(self, run: str, trials: Collection[str]) -> set[str]:
        if not trials:
            return set()
        rows = self.database.read("SELECT trial FROM trials WHERE run = ?", run)
        return {str(row[0]) for row in rows}

    def stopped_by(self, job_id: str) -> str:
        """Who used `aisbench stop` on the job of a live run; empty if no person did."""
        rows = self.database.read_committed("SELECT who FROM stops WHERE job_id = ?", job_id)
        return str(rows[0][0]) if rows else ""

    def left_trials(self, case_id: str, platform_id: str, run: str) -> list[LeftTrial]:
        """The case's trials of other runs on this platform: the newest one, and all whose job may run."""
        rows = self.database.read(_LEFT, case_id, platform_id, run, case_id, platform_id, run)
        return [
            LeftTrial(codec.load(Trial, json.loads(text)), owner, lease, bool(killed), text)
            for text, owner, lease, killed in rows
        ]

    def past_durations(self, case_id: str, platform_id: str, fingerprint: str, limit: int = 5) -> list[float]:
        """Seconds that the newest successful jobs with this fingerprint ran on this platform; newest first."""
        rows = self.database.read(
            "SELECT ran_s FROM trials WHERE case_id = ? AND place = ? AND fingerprint = ? AND ran_s IS NOT NULL"
            " ORDER BY updated DESC LIMIT ?",
            *(case_id, platform_id, fingerprint, limit),
        )
        return [float(row[0]) for row in rows]

    def end_orphans(self, now: float, is_held: Callable[[str, float, float], bool]) -> list[Trial]:
        """End the trials that ran on the private local clouds of killed runs: they become LOST and DONE.

        Trials of runs that still renew their lease stay. So do those of a run without an owner, which an old version
        wrote: their platform is unknown, and their jobs may run.
        """
        with self.database.transaction():
            rows = self.database.read(
                "SELECT t.record, r.owner, r.lease FROM runs r CROSS JOIN trials t USING (run) WHERE t.place = ''"
                " AND t.step IN ('SUBMIT', 'WATCH') AND r.finished IS NULL AND r.owner != '' ORDER BY t.trial"
            )
            left = [codec.load(Trial, json.loads(row[0])) for row in rows if not is_held(row[1], row[2], now)]
            buried = [_lost_trial(trial, now) for trial in left]
            for trial in buried:
                self.save_trial(trial, now)
        return buried

    def save_trial(self, trial: Trial, now: float) -> bool:
        """Save a trial, and its measurements as history; False if another run has taken it over meanwhile."""
        return bool(self.database.perform(lambda: self._save_trial(trial, now), _key(trial)))

    def save_trial_soon(self, trial: Trial, now: float, lost: Callable[[Trial], None]) -> None:
        """The same within milliseconds; `lost` is called if another run has taken the trial over."""

        def save() -> None:
            if not self._save_trial(trial, now):
                lost(trial)

        self.database.write_soon(_key(trial), save)

    def _save_trial(self, trial: Trial, now: float) -> bool:
        from pytest_aisbench.judge.values import trial_record  # late: most commands save no trial

        saved = bool(self.database.write(_SAVE_IF_OURS, *_row(trial, now)))
        if saved and (measured := trial_record(trial)):
            history.add_record(self.database, measured, trial.traits)
        return saved

    def swap_trial(self, trial: Trial, now: float, seen: str | LeftTrial) -> bool:
        """Save the trial only if its record is still the one that was read; its old measurements leave history.

        A trial that another run left must be left still: since it was read, its run has renewed no lease and not ended.
        """
        with self.database.transaction():
            if isinstance(seen, str):
                swapped = bool(self.database.write(_SAVE_IF_UNCHANGED, *_row(trial, now), seen))
            else:
                holder = seen.trial.run, seen.owner, seen.lease, seen.killed
                swapped = bool(self.database.write(_SAVE_IF_STILL_LEFT, *_row(trial, now), seen.record, *holder))
            if swapped:
                history.drop_record(self.database, trial.id)
        return swapped

    def save_case(self, run: str, ordinal: int, entry: CaseEntry) -> None:
        """Save a case's entry, in place of an earlier one of this run."""
        self.database.write(_SAVE_CASE, run, entry.id, ordinal, record(entry))

    def save_case_soon(self, run: str, ordinal: int, entry: CaseEntry) -> None:
        """The same within milliseconds."""
        self.database.write_soon(f"case {run} {entry.id}", partial(self.save_case, run, ordinal, entry))

    def sync(self) -> None:
        """Return once everything that was saved before is on disk."""
        self.database.sync()

    def trials(self, run: str) -> list[Trial]:
        rows = self.database.read("SELECT record FROM trials WHERE run = ? ORDER BY case_id, number", run)
        return [codec.load(Trial, json.loads(row[0])) for row in rows]

    def entry(self, run: str) -> RunEntry:
        """Everything that a reporter reads of a run."""
        cases = self.database.read("SELECT record FROM cases WHERE run = ? ORDER BY ordinal, case_id", run)
        loaded = tuple(codec.load(CaseEntry, json.loads(row[0])) for row in cases)
        return replace(self.head(run), cases=loaded, uploads=self.uploads(run))

    def head(self, run: str) -> RunEntry:
        """The run without its cases and uploads."""
        rows = self.database.read(
            "SELECT started, finished, exit_code, settings, executor FROM runs WHERE run = ?", run
        )
        if not rows:
            raise LedgerError(f"{self.path} has no run {run}")
        started, finished, exit_code, settings, executor = rows[0]
        return RunEntry(
            schema=SCHEMA,
            run=run,
            started=_stamp(started),
            finished=None if finished is None else _stamp(finished),
            exit_code=exit_code,
            settings=json.loads(settings),
            cases=(),
            uploads=(),
            before=self.previous(run),
            executor=codec.load(Executor, json.loads(executor)),
        )

    def previous(self, run: str) -> PreviousRun | None:
        """The last earlier run on the same platform that ended with a verdict."""
        for name, started in self.database.read(_PREVIOUS_RUN, run):
            cases = self.database.read(_BRIEF, name)
            briefs = (
                CaseBrief(case, Ruling(word) if word else None, value, unit or "") for case, word, value, unit in cases
            )
            return PreviousRun(name, _stamp(started), tuple(briefs))
        return None

    def uploads(self, run: str) -> tuple[Mapping[str, str], ...]:
        """The last result of each case and all attachments, in the order in which they entered the outbox."""
        rows = self.database.read(_UPLOADS, run, RUNS, RESULTS)
        return tuple(
            {"tester": f"{tester} ({label})" if label else tester, "case": case, "state": state, "why": why}
            for tester, label, case, state, why in rows
        )

    def close(self) -> None:
        self.database.close()


def _key(trial: Trial) -> str:
    return f"trial {trial.id}"


def _row(trial: Trial, now: float) -> tuple[Any, ...]:
    ran_s = trial.job.ran_s if trial.job and trial.job.phase is Phase.SUCCEEDED else None
    return (
        *(trial.id, trial.run, trial.case.id, trial.number, trial.name, trial.step.name, trial.job_id),
        *(now, record(trial), trial.platform_id, trial.fingerprint, ran_s),
    )


def _lost_trial(trial: Trial, now: float) -> Trial:
    why = message("cloud ended", run=trial.run)
    job = trial.job or Job(trial.job_id or "", Phase.LOST, "")
    return trial.moved(Step.DONE, now, job=replace(job, phase=Phase.LOST), fault=Fault(Blame.PLATFORM, why))


def record(value: Any) -> str:
    """A value as the JSON that the ledger stores."""
    return _text(codec.dump(value, whole=True))


def _text(value: Any) -> str:
    """JSON in which half a character, of a garbled message or file name, is a question mark: SQLite takes no halves."""
    text = json.dumps(value, ensure_ascii=False, allow_nan=False, separators=(",", ":"))
    return text.encode("utf-8", "replace").decode("utf-8")


def _stamp(seconds: float) -> str:
    return stamp(seconds, "milliseconds")


LEASE_S = 12.0


class Lease:
    """Renews a run's lease on its jobs in a thread of its own: the Fleet's threads may be busy for long."""

    def __init__(self, ledger: Ledger, run: str, clock: Clock) -> None:
        self._ledger = ledger
        self._run = run
        self._clock = clock
        self._end = threading.Event()
        self._thread = threading.Thread(target=self._renew, name="aisbench-lease", daemon=True)
        self._thread.start()

    def close(self) -> None:
        self._end.set()
        self._thread.join()

    def _renew(self) -> None:
        while not self._end.wait(LEASE_S / 4):
            # A full disk may have room in a moment, and a run without a lease loses its jobs. If the error lasts, the
            # Fleet meets and reports it.
            with ignored(_LOG, LedgerError, "one renewal of the lease on our jobs", level=logging.WARNING):
                self._ledger.renew(self._run, self._clock.now() + LEASE_S)


def this_process() -> str:
    return f"{_host()}:{os.getpid()}"


def _host() -> str:
    import socket

    return socket.gethostname()


def is_held(other: str, lease: float, now: float) -> bool:
    """True if an unfinished run may still be alive: its lease has not expired, and its process is not known dead."""
    return lease > now and not is_dead(other)


def is_dead(other: str) -> bool:
    """True for a process of this machine that has ended. Nothing is known of processes of other machines."""
    host, _, pid = other.rpartition(":")
    if host != _host() or not pid.isdigit():
        return False
    try:
        os.kill(int(pid), 0)
    except ProcessLookupError:
        return True
    except PermissionError:
        return False
    return False
