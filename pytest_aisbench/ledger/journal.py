"""The second place for records: `journal.jsonl` in the run's folder, once the ledger takes them no more.

A disk that is full, or a ledger that was deleted, must not cost what the run knows of its jobs: which it made, and
which it stopped itself. The run reserves room for the journal while the disk still has some. The next run brings what
it reads there into the ledger, before it looks for jobs to take over.
"""

from __future__ import annotations

import json
import logging
import os
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from pytest_aisbench.errors import LedgerError
from pytest_aisbench.judge.exit_code import INTERNAL
from pytest_aisbench.ledger.lease import Liveness, liveness
from pytest_aisbench.ledger.ledger import Ledger
from pytest_aisbench.logs import get_logger, ignored
from pytest_aisbench.model import codec
from pytest_aisbench.model.trial import Trial

NAME = "journal.jsonl"
_RESERVE = ".journal"
_READ = "journal.read.jsonl"
_BYTES_PER_JOB = 16_384  # a trial is recorded about three times on its way to the end, with 3 to 5 kB each
_MOST_BYTES = 4_000_000
_LOG = get_logger("fleet")


class Journal:
    """Records of one run's trials, each on disk when `add` returns. Costs one small file while it is not needed."""

    def __init__(self, folder: Path, head: Mapping[str, Any], jobs: int) -> None:
        """`head`: the run, when it began, its settings and its owner; `jobs`: how many may be recorded."""
        self._folder = folder
        self._head = head
        self._file: int | None = None
        self.used = False
        with ignored(_LOG, OSError, "the room for a journal in %s", folder):
            self._file = os.open(folder / _RESERVE, os.O_RDWR | os.O_CREAT, 0o600)
            if hasattr(os, "posix_fallocate"):
                os.posix_fallocate(self._file, 0, min(jobs * _BYTES_PER_JOB, _MOST_BYTES))

    def add(self, trial: Trial, now: float) -> None:
        self._write({"trial": codec.dump(trial, whole=True), "at": now})

    def close(self, now: float) -> None:
        """End the journal, or give its room back if it was not needed."""
        if self.used:
            self._write({"ended": now})
        with ignored(_LOG, OSError, "the end of the journal in %s", self._folder):
            if self._file is not None:
                if self.used:
                    os.ftruncate(self._file, os.lseek(self._file, 0, os.SEEK_CUR))
                else:
                    (self._folder / _RESERVE).unlink(missing_ok=True)
                os.close(self._file)
                self._file = None

    def _write(self, line: Mapping[str, Any]) -> None:
        # If this fails too, the terminal still names the jobs that may run.
        with ignored(_LOG, OSError, "a line of %s", self._folder / NAME, level=logging.WARNING):
            if not self.used:
                self._open()
                self.used = True
                self._write({"run": self._head})
            if self._file is None:
                raise OSError("the journal is closed")
            text = json.dumps(line, ensure_ascii=True, separators=(",", ":"))
            os.write(self._file, f"{text}\n".encode())
            os.fsync(self._file)

    def _open(self) -> None:
        """Name the reserved file as the journal. Where the folder was removed, both are made anew."""
        reserved, target = self._folder / _RESERVE, self._folder / NAME
        if self._file is not None and reserved.exists():
            reserved.rename(target)
            return
        self._folder.mkdir(parents=True, exist_ok=True)
        self._file = os.open(target, os.O_RDWR | os.O_CREAT | os.O_TRUNC, 0o600)


def read_journals(reports: Path, ledger: Ledger) -> list[str]:
    """Bring the journals of earlier runs into the ledger; the runs whose records it now has. Lines that a kill cut in
    two are left out; a journal whose run still writes it is left for later."""
    runs = []
    folders = (folder for folder in reports.iterdir() if not folder.is_symlink())  # one is `latest`
    for file in sorted(folder / NAME for folder in folders if (folder / NAME).exists()):
        with ignored(_LOG, (OSError, LedgerError, ValueError, TypeError, KeyError), "%s", file, level=logging.WARNING):
            lines = _lines(file)
            head = lines[0]["run"] if lines and "run" in lines[0] else None
            if head is None or liveness(head["owner"]) is Liveness.ALIVE:
                continue
            _store(lines, head, ledger)
            runs.append(str(head["run"]))
            file.replace(file.with_name(_READ))
    return runs


def _lines(file: Path) -> list[Any]:
    lines = []
    for text in file.read_bytes().replace(b"\0", b"").decode(errors="replace").splitlines():
        with ignored(_LOG, ValueError, "a line of %s", file):
            lines.append(json.loads(text))
    return lines


def _store(lines: list[Any], head: Mapping[str, Any], ledger: Ledger) -> None:
    run = str(head["run"])
    with ledger.database.transaction():
        if not ledger.database.read("SELECT 1 FROM runs WHERE run = ?", run):
            ledger.begin(run, head["settings"], head["started"], head["owner"])
        for line in lines:
            if "trial" in line:
                ledger.save_trial(codec.load(Trial, line["trial"]), line["at"])
            elif "ended" in line:
                ledger.finish(run, INTERNAL, line["ended"])
