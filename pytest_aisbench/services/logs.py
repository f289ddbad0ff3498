"""The logs of a job in the run's folder: as far as it has come while it runs, and whole when it has ended."""

from __future__ import annotations

import os
import re
from pathlib import Path

from pytest_aisbench.domain.job import LogPart
from pytest_aisbench.domain.messages import plain
from pytest_aisbench.domain.ports import Store
from pytest_aisbench.domain.stage import StoreUrl
from pytest_aisbench.domain.trial import Trial
from pytest_aisbench.logs import get_logger, log_ignored

_LOG = get_logger("fleet")
_TAIL = 65536  # bytes of a log, which may have a gigabyte
_LONGEST = 300  # characters of a line that is quoted
_DIGITS = re.compile(r"(\d+)", re.ASCII)
_V1 = re.compile(r"job\w+-job-.+-(\d+)\.log\Z", re.ASCII)
_V2 = re.compile(r"modelarts-job-[0-9a-f]{8}(?:-[0-9a-f]{4}){3}-[0-9a-f]{12}-(.+)\Z", re.ASCII)


def home(trial: Trial) -> str:
    """The folder of a trial's logs, relative to the run's."""
    return f"logs/{trial.case.id}/{trial.number}"


def follow(folder: Path, trial: Trial, node: int, part: LogPart) -> None:
    """Add what a node said since it was last asked."""
    if part.text:
        file = folder / home(trial) / f"worker-{node}.log"
        file.parent.mkdir(parents=True, exist_ok=True)
        with file.open("a", encoding="utf-8", errors="replace", newline="") as log:
            log.write(part.text)


def bring(store: Store, logs: StoreUrl, folder: Path, job_id: str) -> list[str]:
    """The job's logs in `folder`, whole, under names that do not repeat the job's: `worker-0.log`."""
    names = store.download(logs, str(folder))
    shorts = {name: _short(name, job_id) for name in names}
    if len(set(shorts.values())) < len(names) or {short for name, short in shorts.items() if short != name} & set(
        names
    ):
        return sorted(names, key=_order)
    for name, short in shorts.items():
        (folder / name).replace(folder / short)
    return sorted(shorts.values(), key=_order)


def found(folder: Path) -> list[str]:
    """What came home while the job ran: of use where the whole did not."""
    return sorted((path.name for path in folder.glob("worker-*.log")), key=_order)


def last_lines(trial: Trial, folder: Path, count: int) -> tuple[str, list[str]]:
    """What the script itself wrote last, on the node that the platform blames; and the name of that log."""
    reason = trial.job.reason if trial.job else ""
    for name in sorted(trial.logs, key=lambda log: (Path(log).stem not in reason, "worker" not in log)):
        try:
            with (folder / name).open("rb") as log:
                log.seek(max(0, log.seek(0, os.SEEK_END) - _TAIL))
                lines = log.read().decode("utf-8", "replace").splitlines()
        except OSError as error:
            log_ignored(_LOG, error, "the last lines of %s", name)
            continue
        spoken = [line.rstrip() for line in lines if line.strip() and "service log]" not in line.lower()]
        if spoken:
            return name, [plain(line[:_LONGEST]) for line in spoken[-count:]]
    return "", []


def _order(name: str) -> tuple[bool, list[str | int]]:
    """What a node said before what each of its ranks did, and the second before the tenth."""
    parts = _DIGITS.split(name)  # words and digits take turns, so that like is compared to like
    return "worker" not in name, [int(part) if at % 2 else part for at, part in enumerate(parts)]


def _short(name: str, job_id: str) -> str:
    """V2 puts the job's id before the task; V1 its names of resource and job before the number of the node."""
    if numbered := _V1.match(name):
        return f"worker-{numbered[1]}.log"
    known = _V2.match(name)
    return known[1] if known else name.rpartition(f"{job_id}-")[2]
