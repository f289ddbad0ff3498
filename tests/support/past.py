"""A history for a case that has been measured once: as if so many runs had gone before."""

from __future__ import annotations

import math
from collections.abc import Sequence
from contextlib import closing
from dataclasses import replace
from pathlib import Path

from pytest_aisbench.ledger import history
from pytest_aisbench.ledger.history import History
from pytest_aisbench.ledger.ledger import Ledger
from pytest_aisbench.model.verdict import Ruling


def remember(file: Path, case_id: str, speeds: Sequence[float], ruling: Ruling = Ruling.PASSED) -> None:
    """Trials like the newest of the case, with these speeds, oldest first, in the place of all that it has."""
    with closing(Ledger(file)) as ledger:
        past, database = History(ledger.database), ledger.database
        newest = past.newest(case_id)
        assert newest is not None
        traits = past.traits(newest.key)
        with database.transaction():
            database.write("DELETE FROM measures WHERE case_id = ?", case_id)
            for number, speed in enumerate(speeds):
                run, at = f"run-{number:04}", newest.at - len(speeds) + number
                made = replace(newest, trial=f"{run}/{case_id}/1", run=run, at=at, throughput=speed, ruling=ruling)
                history.add_record(database, made, traits)


def spread(mean: float, deviation: float, count: int) -> list[float]:
    """Values whose mean is this, and whose standard deviation is too, give or take a share of 1 / count.

    They lie as noise does, few of them far away: two values alone would be two speeds of a machine.
    """
    sizes = (math.sqrt(0.1), math.sqrt(0.4), math.sqrt(2.5))  # squares of 1 in the mean
    return [mean + deviation * (1 if number % 2 else -1) * sizes[number // 2 % 3] for number in range(count)]
