"""Jobs as the ledger has them, for whoever asks from another shell: what runs, and whose it is."""

from __future__ import annotations

import enum
import json
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from pytest_aisbench.domain import codec
from pytest_aisbench.domain.trial import Trial
from pytest_aisbench.errors import UsageFault
from pytest_aisbench.services.lease import is_dead
from pytest_aisbench.services.ledger import MAY_RUN, Ledger, record

_SELECT = "SELECT t.record, r.owner, r.lease, r.finished IS NOT NULL FROM trials t JOIN runs r USING (run)"
_NEWEST = "ORDER BY t.updated DESC"


class Holder(enum.Enum):
    """What is known of the run that has a trial."""

    ALIVE = "alive"
    ENDED = "ended"  # and left its job on purpose, or could not stop it
    DEAD = "dead"
    UNKNOWN = "unknown"  # its lease expired; whether its process lives, only its machine knows


@dataclass(frozen=True)
class Held:
    """A trial and its holder, as they were when the ledger was read."""

    trial: Trial
    owner: str
    holder: Holder
    record: str

    @property
    def in_flight(self) -> bool:
        """Its job may run: a private cloud, which has no place, ends with its run."""
        return self.trial.may_run and (bool(self.trial.place) or self.holder is Holder.ALIVE)


class JobLedger(Ledger):
    """A ledger that exists already, read and amended from outside of a run."""

    def __init__(self, path: Path, *, new: bool = False) -> None:
        """`new`: it may be one that does not exist yet."""
        if not new and not path.is_file():
            raise UsageFault(f"there is no ledger {path}", advice="name it with --ledger FILE or --reports DIR")
        super().__init__(path)

    def in_flight(self, now: float) -> list[Held]:
        """Newest first."""
        rows = self.database.read(f"{_SELECT} WHERE {MAY_RUN} {_NEWEST}")
        return [held for held in (_held(row, now) for row in rows) if held.in_flight]

    def latest(self, count: int, now: float) -> list[Held]:
        return [_held(row, now) for row in self.database.read(f"{_SELECT} {_NEWEST} LIMIT ?", count)]

    def named(self, job: str, now: float) -> Held | None:
        """By the job's id, or by its name: a job whose submission had no answer has no other."""
        rows = self.database.read(f"{_SELECT} WHERE t.job_id = ? OR t.name = ? {_NEWEST} LIMIT 1", job, job)
        return _held(rows[0], now) if rows else None

    def amend(self, held: Held, trial: Trial, now: float) -> Held | None:
        """Write the trial, unless somebody else wrote it since it was read: then None, and theirs stands."""
        written = self.swap_trial(trial, now, held.record)
        return replace(held, trial=trial, record=record(trial)) if written else None


def _held(row: tuple[Any, ...], now: float) -> Held:
    written, owner, lease, ended = row
    if ended:
        holder = Holder.ENDED
    elif is_dead(owner):
        holder = Holder.DEAD
    else:
        holder = Holder.ALIVE if lease > now else Holder.UNKNOWN
    return Held(codec.load(Trial, json.loads(written)), owner, holder, written)
