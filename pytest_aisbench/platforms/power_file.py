"""Reads samples of power from a file that another tool writes during the run: a line of CSV or JSON each."""

from __future__ import annotations

import json
import math
from collections.abc import Iterator
from datetime import datetime
from pathlib import Path
from typing import TYPE_CHECKING, Any

from pytest_aisbench.errors import UsageFault
from pytest_aisbench.model.job import Sample

if TYPE_CHECKING:
    from pytest_aisbench.config.settings import Settings

COLUMNS = ("time", "node", "watts", "job")  # the last may be left out


class PowerFile:
    """A PowerSource: `--aisbench-power FILE`."""

    def __init__(self, settings: Settings) -> None:
        assert settings.power
        self._path: Path = settings.power

    def samples(self, job_id: str, start: float, end: float) -> Iterator[Sample]:
        """Raises UsageFault for the first bad line, since other lines may be wrong too. Leaves out a last line that is
        still being written."""
        columns: tuple[str, ...] = COLUMNS
        first = True
        try:
            with self._path.open(encoding="utf-8") as file:
                for number, line in enumerate(file, start=1):
                    text = line.strip()
                    if not text or text.startswith("#") or not line.endswith("\n"):
                        continue
                    header = _header(text) if first else None
                    first = False
                    if header:
                        columns = header
                        continue
                    try:
                        sample, job = _sample(text, columns)
                    except (ValueError, TypeError, KeyError, OverflowError) as error:
                        raise UsageFault(f"{self._path.name}:{number}: {_explain(error)}") from None
                    if start <= sample.at <= end and job in {"", job_id}:
                        yield sample
        except (OSError, UnicodeDecodeError) as error:
            raise UsageFault(f"{self._path.name} cannot be read: {getattr(error, 'strerror', None) or error}") from None

    def close(self) -> None:
        pass


def _header(text: str) -> tuple[str, ...] | None:
    names = tuple(name.strip().lower() for name in text.split(","))
    return names if set(names) <= set(COLUMNS) and set(COLUMNS[:3]) <= set(names) else None


def _sample(text: str, columns: tuple[str, ...]) -> tuple[Sample, str]:
    row: dict[str, Any]
    if text.startswith("{"):
        row = json.loads(text)
    else:
        cells = [cell.strip() for cell in text.split(",")]
        if not 3 <= len(cells) <= len(columns):
            raise ValueError(f"{text[:40]!r} is not {','.join(columns[:3])}")
        row = dict(zip(columns, cells, strict=False))
    missing = [name for name in COLUMNS[:3] if row.get(name) in {None, ""}]
    if missing:
        raise ValueError(f"{missing[0]} is missing")
    watts = _number(row["watts"])
    if watts is None or watts < 0:
        raise ValueError(f"{row['watts']!r} are no watts")
    return Sample(_timestamp(row["time"]), str(row["node"]), watts), str(row.get("job") or "")


def _timestamp(value: Any) -> float:
    """Seconds since the epoch, or a date of ISO 8601 with its zone."""
    seconds = _number(value)
    if seconds is not None:
        return seconds
    moment = datetime.fromisoformat(str(value).replace("Z", "+00:00"))
    if moment.tzinfo is None:
        raise ValueError(f"{value!r} has no zone: end it with Z or +08:00")
    return moment.timestamp()


def _number(value: Any) -> float | None:
    if isinstance(value, bool):
        return None
    try:
        number = float(value)
    except ValueError:
        return None
    return number if math.isfinite(number) else None


def _explain(error: Exception) -> str:
    return str(error) if isinstance(error, ValueError) else f"it is not a sample ({error})"
