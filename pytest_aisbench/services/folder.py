"""A run's id, and the folder of its own among the reports."""

from __future__ import annotations

import json
import secrets
import time
from pathlib import Path

from pytest_aisbench.domain import codec
from pytest_aisbench.domain.job import Request
from pytest_aisbench.errors import LedgerError

LATEST = "latest"


def run_id(now: float) -> str:
    """Sorted by time, and never given twice."""
    return f"{time.strftime('%Y%m%d-%H%M%S', time.gmtime(now))}-{secrets.token_hex(3)}"


def make(reports: Path, run: str) -> Path:
    """A folder that no run had before."""
    folder = reports / run
    try:
        folder.mkdir(parents=True)
    except OSError as error:
        raise _fault(folder, error) from None
    return folder


def point_latest(reports: Path, run: str) -> None:
    """Replaced at once: whoever follows `latest` meanwhile finds the one run or the other."""
    pointer = reports / f".{LATEST}-{run}"
    try:
        pointer.symlink_to(run, target_is_directory=True)
        pointer.replace(reports / LATEST)
    except OSError as error:
        raise _fault(reports / LATEST, error) from None


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
        raise _fault(target, error) from None
    return target


def _fault(path: Path, error: OSError) -> LedgerError:
    return LedgerError(f"{path} cannot be made: {error.strerror}", advice="name another --aisbench-reports")
