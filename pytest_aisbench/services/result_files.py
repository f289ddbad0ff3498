"""Finding results of MLPerf's that somebody else's run left in a folder, and the suite that has the claims on them."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

from pytest_aisbench import places
from pytest_aisbench.domain.log_readers import MLLOG
from pytest_aisbench.domain.mlperf import Result, result
from pytest_aisbench.errors import UsageFault
from pytest_aisbench.services.suite import WORKLOAD_FILE

_SUFFIXES = frozenset({".txt", ".log", ".out"})  # checkpoints and data may stand beside them, and are large


def read(place: Path) -> list[Result]:
    """Every file that is a result, or is named as one: an empty `result_3.txt` is a run that failed."""
    if not place.exists():
        raise UsageFault(f"{place}: there is no such folder")
    files = [place] if place.is_file() else sorted(path for path in place.rglob("*") if path.suffix in _SUFFIXES)
    results = []
    for file in files:
        if not file.is_file():
            continue
        name = file.name if file == place else file.relative_to(place).as_posix()
        try:
            found = list(_lines(file))
        except OSError as error:
            raise UsageFault(f"{file}: {error.strerror}") from None
        if file == place or file.name.startswith("result") or any(found):
            results.append(result(name, found))
    return results


def _lines(file: Path) -> Iterator[str]:
    """Only what may be an event, in its line."""
    with file.open(encoding="utf-8", errors="replace") as log:
        for line in log:
            yield line if MLLOG in line else ""


def suite_of(workload: str, suites: Path) -> Path:
    """The folder of the suite that holds this workload."""
    if not suites.is_dir():
        raise UsageFault(f"there is no folder {suites}", advice="name it with --suites DIR")
    names: dict[str, Path] = {}
    for file in sorted(suites.glob(f"**/{WORKLOAD_FILE}")):
        names.setdefault(str(places.read(file).data.get("name", "")), file.parent)
    if workload not in names:
        known = ", ".join(sorted(filter(None, names))) or "none"
        raise UsageFault(f"no suite in {suites} holds a workload {workload!r}", advice=f"known: {known}")
    return names[workload]
