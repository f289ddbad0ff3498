"""Finding results of MLPerf's that somebody else's run left in a folder, and the suite that has the claims on them."""

from __future__ import annotations

import gzip
import hashlib
import zlib
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import TextIO

from pytest_aisbench.domain.log_readers import MLLOG
from pytest_aisbench.domain.metric import THROUGHPUT, Flaw
from pytest_aisbench.domain.mlperf import Result, result
from pytest_aisbench.errors import UsageFault
from pytest_aisbench.services.suite import folders

_SUFFIXES = frozenset({".txt", ".log", ".out"})  # checkpoints and data may stand beside them, and are large
_PACKED = ".gz"
_NAMED = "result"  # MLPerf's own name of a run is `result_0.txt`


def read(place: Path) -> list[Result]:
    """Every file that is a result, or is named as one: an empty `result_3.txt` is a run that failed."""
    if not place.exists():
        raise UsageFault(f"{place}: there is no such folder")
    files = [place] if place.is_file() else sorted(path for path in place.rglob("*") if _may_be_one(path))
    results: list[Result] = []
    runs: dict[bytes, str] = {}
    for file in files:
        name = file.name if file == place else file.relative_to(place).as_posix()
        found = _lines(file)
        if file == place or file.name.startswith(_NAMED) or any(found):
            run = hashlib.sha256("".join(found).encode("utf-8", "replace")).digest()
            same = runs.setdefault(run, name) if any(found) else name
            results.append(_copied(result(name, found), same))
    return results


def _may_be_one(path: Path) -> bool:
    name = path.name.lower().removesuffix(_PACKED)
    suffix = Path(name).suffix
    return (suffix in _SUFFIXES or (not suffix and name.startswith(_NAMED))) and path.is_file()


def _copied(found: Result, same: str) -> Result:
    """One run that counts twice would make a set of what is none."""
    if same == found.name:
        return found
    return replace(found, flaws=(*found.flaws, Flaw(THROUGHPUT, f"it is the same run as {same}")))


def _lines(file: Path) -> list[str]:
    """Only what may be an event, in its line."""
    opened: Callable[..., TextIO] = gzip.open if file.name.lower().endswith(_PACKED) else open
    try:
        with opened(file, "rt", encoding="utf-8", errors="replace") as log:
            return [line if MLLOG in line else "" for line in log]
    except (gzip.BadGzipFile, zlib.error, EOFError):
        raise UsageFault(f"{file} cannot be unpacked: it is not gzip, or not whole", advice="copy it again") from None
    except OSError as error:
        raise UsageFault(f"{file}: {error.strerror}") from None


def suite_of(workload: str, suites: Path) -> Path:
    """The folder of the suite that holds this workload."""
    if not suites.is_dir():
        raise UsageFault(f"there is no folder {suites}", advice="name it with --suites DIR")
    names = folders(suites)
    if workload not in names:
        known = ", ".join(sorted(filter(None, names))) or "none"
        raise UsageFault(f"no suite in {suites} holds a workload {workload!r}", advice=f"known: {known}")
    return names[workload]
