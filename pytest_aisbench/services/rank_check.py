"""Looking at a rank's environment and its rank table before it trains: a line now, instead of a hang."""

from __future__ import annotations

import os
import time
from collections.abc import Callable, Mapping
from pathlib import Path

from pytest_aisbench.domain import rank_environment
from pytest_aisbench.domain.ranktable import Order, RankTable
from pytest_aisbench.domain.ranktable_reading import read
from pytest_aisbench.domain.ranktable_rules import checked
from pytest_aisbench.errors import WorkloadError

_FILE = "jobstart_hccl.json"  # what ModelArts calls it in the folder that RANK_TABLE_FILE names
_PATIENCE_S = 1800.0  # HCCL's own: a platform may fill the table in after it started the script
_PAUSE_S = 1.0
_FIRST = ("MINDSPORE_HCCL_CONFIG_PATH", "RANK_TABLE_FILE")  # MindSpore 0.x looks in this order


def before_training(
    environment: Mapping[str, str] | None = None,
    *,
    wait_s: float = _PATIENCE_S,
    pause: Callable[[float], None] = time.sleep,
) -> RankTable | None:
    """Call it first in a training script, or in what starts it: raises WorkloadError where this rank cannot train.

    The table is None where there is one rank and no table. Waits while the platform has not completed the table.
    """
    told = os.environ if environment is None else environment
    file = table_file(told)
    if file is None:
        faults = rank_environment.alone(told, None)
        if told.get("RANK_SIZE", "1") != "1":
            faults.append(f"RANK_SIZE is {told['RANK_SIZE'][:40]}, and neither {' nor '.join(_FIRST)} is set")
        _require(faults)
        return None
    text = _completed(file, wait_s, pause)
    table, problems = read(text, Order.PODS)
    found = [*problems, *(checked(table) if table else [])]
    faults = [f"{file}: {problem.text}" for problem in found if not problem.warning]
    if table is not None and not faults:
        faults = rank_environment.alone(told, table)
    _require(faults)
    return table


def table_file(environment: Mapping[str, str]) -> Path | None:
    for name in _FIRST:
        if environment.get(name):
            path = Path(environment[name])
            return path / _FILE if path.is_dir() else path
    return None


def _completed(file: Path, wait_s: float, pause: Callable[[float], None]) -> str:
    waited = 0.0
    while True:
        try:
            text = file.read_text(encoding="utf-8", errors="replace")
        except OSError as error:
            raise WorkloadError(f"the rank table {file} cannot be read: {error.strerror}") from None
        if '"initializing"' not in text or waited >= wait_s:
            return text
        pause(_PAUSE_S)
        waited += _PAUSE_S


def _require(faults: list[str]) -> None:
    if faults:
        raise WorkloadError(f"this rank cannot train: {faults[0]}", trail="; ".join(faults[1:4]))
