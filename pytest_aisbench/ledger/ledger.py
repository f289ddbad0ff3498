"""The crash-safe record of every run, trial and case: one SQLite file. Only the process that owns a run writes it."""

from __future__ import annotations

import json
from collections.abc import Callable, Collection, Iterable, Mapping
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any, NamedTuple

from pytest_aisbench.errors import Blame, LedgerError
from pytest_aisbench.ledger import history
from pytest_aisbench.ledger.database import Database
from pytest_aisbench.model import codec
from pytest_aisbench.model.clock import stamp
from pytest_aisbench.model.job import Job, Phase
from pytest_aisbench.model.messages import message, plain
from pytest_aisbench.model.ports import HasFormerIds
from pytest_aisbench.model.results import RESULTS, RUNS, SCHEMA, CaseBrief, CaseEntry, Executor, PreviousRun, RunEntry
from pytest_aisbench.model.trial import Fault, Step, Trial
from pytest_aisbench.model.verdict import Ruling

# Not REPLACE, which would silently delete another trial of the same name.
_SAVE = """
INSERT INTO trials (trial, run, case_id, number, name, step, job_id, updated, record, place, fingerprint, ran_s, fence)
VALUES (?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?)
ON CONFLICT (trial) DO UPDATE SET
    run = excluded.run, case_id = excluded.case_id, number = excluded.number, name = excluded.name,
    step = excluded.step, job_id = excluded.job_id, updated = excluded.updated, record = excluded.record,
    place = excluded.place, fingerprint = excluded.fingerprint, ran_s = excluded.ran_s, fence = excluded.fence
"""
_SAVE_IF_UNCHANGED = f"{_SAVE} WHERE trials.record = ?"
_SAVE_IF_STILL_LEFT = f"""{_SAVE_IF_UNCHANGED} AND EXISTS (
    SELECT 1 FROM runs WHERE runs.run = ? AND owner = ? AND lease = ? AND (finished IS NULL) = ?)"""  # noqa: S608 - made of our own words
# The fence grows whenever another process takes the trial: from then on the former owner writes nothing.
_SAVE_IF_OURS = f"{_SAVE} WHERE trials.run = excluded.run AND trials.fence = excluded.fence"
_RENAME_PLATFORM = """
UPDATE trials SET place = ?, record = json_set(json_remove(record, '$.place'), '$.platform_id', ?) WHERE place = ?
"""
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
WHERE b.finished IS NOT NULL AND (b.exit_code = 0 OR NOT ?)
    AND json_extract(b.settings, '$.platform') IS json_extract(r.settings, '$.platform')
    AND json_extract(b.settings, '$.region') IS json_extract(r.settings, '$.region')
    AND EXISTS (SELECT 1 FROM cases c WHERE c.run = b.run AND json_extract(c.record, '$.verdict') IS NOT NULL)
ORDER BY b.started DESC LIMIT 1
"""
_EARLIER_CASES = """
SELECT case_id FROM cases c WHERE run = ?1 AND EXISTS (
    SELECT 1 FROM trials t JOIN runs b USING (run) JOIN runs r ON r.run = ?1
    WHERE t.case_id = c.case_id AND t.updated < r.started AND t.run != ?1
    AND json_extract(b.settings, '$.platform') IS json_extract(r.settings, '$.platform'))
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


class Heartbeat(NamedTuple):
    """What a live run changes every few seconds; a run of an older version changes only its lease."""

    beat: int
    lease: float


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
        self._instead: Callable[[Trial, float], None] | None = None

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
        """Show that the run lives: its heartbeat moves. `lease` is until when it expects to, by its own clock."""
        self.database.write("UPDATE runs SET lease = ?, beat = beat + 1 WHERE run = ?", lease, run)

    def heartbeats(self, runs: Iterable[str]) -> dict[str, Heartbeat]:
        """The heartbeats of those runs that have not ended."""
        wanted = list(runs)
        marks = ", ".join("?" * len(wanted))
        rows = self.database.read_committed(
            f"SELECT run, beat, lease FROM runs WHERE finished IS NULL AND run IN ({marks})",  # noqa: S608
            *wanted,
        )
        return {run: Heartbeat(beat, lease) for run, beat, lease in rows}

    def holds(self, trial: Trial) -> bool:
        """True unless another process has taken the trial since: asked before each request that changes its job."""
        rows = self.database.read_committed("SELECT run, fence FROM trials WHERE trial = ?", trial.id)
        return not rows or rows[0] == (trial.run, trial.fence)

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

    def rename_platform(self, platform: object) -> None:
        """Let the trials of a platform that an older version knew by another platform_id have the present one."""
        former = platform.former_platform_ids if isinstance(platform, HasFormerIds) else ()
        for old in former:
            # No lock where there is nothing to rename: nearly always.
            if self.database.read("SELECT 1 FROM trials WHERE place = ? LIMIT 1", old):
                new = platform.platform_id  # type: ignore[attr-defined]
                self.database.write(_RENAME_PLATFORM, new, new, old)

    def left_trials(self, case_id: str, platform_id: str, run: str) -> list[LeftTrial]:
        """The case's trials of other runs on this platform: the newest one, and all whose job may run."""
        rows = self.database.read(_LEFT, case_id, platform_id, run, case_id, platform_id, run)
        return [LeftTrial(read_trial(text), owner, lease, bool(killed), text) for text, owner, lease, killed in rows]

    def past_durations(self, case_id: str, platform_id: str, fingerprint: str, limit: int = 5) -> list[float]:
        """Seconds that the newest successful jobs with this fingerprint ran on this platform; newest first."""
        rows = self.database.read(
            "SELECT ran_s FROM trials WHERE case_id = ? AND place = ? AND fingerprint = ? AND ran_s IS NOT NULL"
            " ORDER BY updated DESC LIMIT ?",
            *(case_id, platform_id, fingerprint, limit),
        )
        return [float(row[0]) for row in rows]

    def end_orphans(self, now: float, is_dead: Callable[[str, float, float], bool]) -> list[Trial]:
        """End the trials that ran on the private local clouds of killed runs: they become LOST and DONE.

        Trials of runs that may live stay: `is_dead` gets the owner of a run, its lease, and the time. So do those of a
        run without an owner, which an old version wrote: their platform is unknown, and their jobs may run.
        """
        with self.database.transaction():
            rows = self.database.read(
                "SELECT t.record, r.owner, r.lease FROM runs r CROSS JOIN trials t USING (run) WHERE t.place = ''"
                " AND t.step IN ('SUBMIT', 'WATCH') AND r.finished IS NULL AND r.owner != '' ORDER BY t.trial"
            )
            left = [(text, read_trial(text)) for text, owner, lease in rows if is_dead(owner, lease, now)]
            buried = [self.swap_trial(_lost_trial(trial, now), now, text) for text, trial in left]
        return [trial for trial in buried if trial]

    def save_trial(self, trial: Trial, now: float) -> bool:
        """Save a trial, and its measurements as history; False if another run has taken it over meanwhile."""
        if self._instead:
            self._instead(trial, now)
            return True
        return bool(self.database.perform(lambda: self._save_trial(trial, now), _key(trial)))

    def save_trial_soon(self, trial: Trial, now: float, lost: Callable[[Trial], None]) -> None:
        """The same within milliseconds; `lost` is called if another run has taken the trial over."""
        if self._instead:
            self._instead(trial, now)
            return

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

    def swap_trial(self, trial: Trial, now: float, seen: str | LeftTrial) -> Trial | None:
        """Take the trial: save it, behind a new fence, only if its record is still the one that was read.

        Returns it as it was saved. Its former owner can no longer write it, and its old measurements leave history. A
        trial that another run left must be left still: since it was read, its run has renewed no lease and not ended.
        """
        taken = replace(trial, fence=trial.fence + 1)
        with self.database.transaction():
            if isinstance(seen, str):
                swapped = self.database.write(_SAVE_IF_UNCHANGED, *_row(taken, now), seen)
            else:
                holder = seen.trial.run, seen.owner, seen.lease, seen.killed
                swapped = self.database.write(_SAVE_IF_STILL_LEFT, *_row(taken, now), seen.record, *holder)
            if swapped:
                history.drop_record(self.database, trial.id)
        return taken if swapped else None

    def save_elsewhere(self, save: Callable[[Trial, float], None]) -> None:
        """From now on give trials to `save`: the file is lost, or takes no more."""
        self._instead = save

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
        return [read_trial(row[0]) for row in rows]

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
            green=self.previous(run, green=True),
            executor=codec.load(Executor, json.loads(executor)),
        )

    def previous(self, run: str, *, green: bool = False) -> PreviousRun | None:
        """The last earlier run on the same platform that ended with a verdict; with `green`, with exit code 0."""
        for name, started in self.database.read(_PREVIOUS_RUN, run, green):
            cases = self.database.read(_BRIEF, name)
            briefs = (
                CaseBrief(case, Ruling(word) if word else None, value, unit or "") for case, word, value, unit in cases
            )
            earlier = frozenset(case for (case,) in self.database.read(_EARLIER_CASES, run))
            return PreviousRun(name, _stamp(started), tuple(briefs), earlier)
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
        *(now, record(trial), trial.platform_id, trial.fingerprint, ran_s, trial.fence),
    )


def _lost_trial(trial: Trial, now: float) -> Trial:
    why = message("cloud ended", run=trial.run)
    job = trial.job or Job(trial.job_id or "", Phase.LOST, "")
    return trial.moved(Step.DONE, now, job=replace(job, phase=Phase.LOST), fault=Fault(Blame.PLATFORM, why))


def read_trial(text: str) -> Trial:
    """A trial from the record that the ledger has of it."""
    try:
        return codec.load(Trial, json.loads(text))
    except (ValueError, TypeError, LookupError, AttributeError) as error:
        why = f"a trial's record in the ledger cannot be read ({type(error).__name__}: {plain(str(error), 120)})"
        where = f"; it begins with {plain(str(text), 80)!r}"
        raise LedgerError(why + where, advice="move the ledger away and keep it, it may name jobs that run") from None


def record(value: Any) -> str:
    """A value as the JSON that the ledger stores."""
    return _text(codec.dump(value, whole=True))


def _text(value: Any) -> str:
    """JSON in which half a character, of a garbled message or file name, is a question mark: SQLite takes no halves."""
    text = json.dumps(value, ensure_ascii=False, allow_nan=False, separators=(",", ":"))
    return text.encode("utf-8", "replace").decode("utf-8")


def _stamp(seconds: float) -> str:
    return stamp(seconds, "milliseconds")
