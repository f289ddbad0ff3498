"""What was said is on disk."""

from __future__ import annotations

import sqlite3
import subprocess
import sys
from pathlib import Path

import pytest

from pytest_aisbench.domain.case import Case
from pytest_aisbench.domain.entry import case_entry
from pytest_aisbench.domain.verdict import Ruling, Verdict
from pytest_aisbench.errors import LedgerError
from pytest_aisbench.services.ledger import Ledger
from pytest_aisbench.services.schema import VERSION
from pytest_aisbench.services.submission import new_trial


def test_a_run_is_read_back_as_it_was_told(tmp_path: Path, case: Case) -> None:
    ledger = Ledger(tmp_path / "deep" / "ledger.db")
    ledger.begin("r", {"platform": "local"}, 1_700_000_000.0)
    trial = new_trial("r", case, 1.0)
    ledger.save_trial(trial, 1.0)
    ledger.save_case("r", 0, case_entry(case, (trial,), None))
    ledger.save_case("r", 0, case_entry(case, (trial,), Verdict(Ruling.PASSED, "all well")))
    ledger.finish("r", 0, 1_700_000_001.5)
    ledger.close()
    again = Ledger(tmp_path / "deep" / "ledger.db")
    assert again.trials("r") == [trial]
    entry = again.entry("r")
    assert (entry.started, entry.finished, entry.exit_code) == (
        "2023-11-14T22:13:20.000Z",
        "2023-11-14T22:13:21.500Z",
        0,
    )
    assert [(found.id, found.verdict, found.reason) for found in entry.cases] == [
        ("toy-2x2", Ruling.PASSED, "all well")
    ]
    again.close()


def test_what_was_saved_survives_a_kill(tmp_path: Path) -> None:
    script = """
import os, signal, sys
from pathlib import Path
from pytest_aisbench.services.ledger import Ledger
ledger = Ledger(Path(sys.argv[1]))
ledger.begin("r", {}, 1.0)
os.kill(os.getpid(), signal.SIGKILL)
"""
    file = tmp_path / "ledger.db"
    ended = subprocess.run([sys.executable, "-c", script, str(file)], check=False)
    assert ended.returncode == -9
    ledger = Ledger(file)
    assert ledger.entry("r").exit_code is None
    ledger.close()


def test_a_newer_ledger_is_not_touched(tmp_path: Path) -> None:
    file = tmp_path / "ledger.db"
    with sqlite3.connect(file) as db:
        db.execute("PRAGMA user_version = 99")
    db.close()
    with pytest.raises(LedgerError, match=rf"newer version \(99 > {VERSION}\); update"):
        Ledger(file)


@pytest.mark.parametrize("make", [Path.mkdir, lambda file: file.write_bytes(b"not a database" * 100)])
def test_what_is_no_ledger_is_one_line(tmp_path: Path, make: object) -> None:
    file = tmp_path / "ledger.db"
    make(file)  # type: ignore[operator]
    with pytest.raises(LedgerError, match=r"ledger\.db cannot be used"):
        Ledger(file)
