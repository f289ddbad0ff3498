"""Where a trial runs and what it runs, by name: what history must share to be compared."""

from __future__ import annotations

import os
import re
import socket
from collections.abc import Mapping
from pathlib import Path

from pytest_aisbench.domain.case import Case
from pytest_aisbench.domain.trial import Trial
from pytest_aisbench.domain.versions import versions
from pytest_aisbench.judge.comparison import traits_of
from pytest_aisbench.logs import get_logger, log_ignored
from pytest_aisbench.services.takeover import Fingerprints

_LOG = get_logger("fleet")
_HOST = re.compile(r"https?://(?:[^/\s@]*@)?([^/\s]+)")
_HERE = re.compile(r"(?:127\.[\d.]+|localhost|\[::1\])(?::\d+)?\Z")
_HEAD = 1 << 17  # characters of a log: whoever tells versions tells them first
_LOGS = 16  # of so many nodes


class Traits:
    """Of the cases of one platform."""

    def __init__(self, platform: str, place: str, fingerprints: Fingerprints) -> None:
        self._platform = platform
        self._where = where(place)
        self._fingerprints = fingerprints

    def of(self, case: Case) -> Mapping[str, str]:
        code, data = self._fingerprints.digests(case.workload)
        return traits_of(case, platform=self._platform, place=self._where, code=code, data=data)


def where(place: str) -> str:
    """The address of a platform; of one on this machine, whose ports and buckets mean nothing, the machine."""
    found = _HOST.search(place)
    address = found[1] if found else place
    return address if address and not _HERE.match(address) else f"{socket.gethostname()}, {os.cpu_count()} cores"


def told(trial: Trial, folder: Path) -> Mapping[str, str]:
    """What its logs, once they are home, tell of the software that trained; a log that cannot be read tells nothing."""
    heads = []
    for name in [log for log in sorted(trial.logs) if "worker" in log][:_LOGS]:
        try:
            with (folder / name).open(encoding="utf-8", errors="replace") as log:
                heads.append(log.read(_HEAD))
        except OSError as error:
            log_ignored(_LOG, error, "the versions that %s tells", name)
    return versions("\n".join(heads))
