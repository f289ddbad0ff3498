"""A run that is killed while it uploads: the next flush delivers what is left, and nothing twice."""

from __future__ import annotations

import json
import signal
import sys
import urllib.request
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path
from typing import Any

import pytest
import upload_victims
from commands import AISBENCH, run
from upload_victims import ENDED, POINTS, RUN, TOKEN

from pytest_aisbench.ledger.ledger import Ledger
from pytest_aisbench.localcloud import tester as service
from pytest_aisbench.localcloud.http import Listener

pytestmark = pytest.mark.slow


@pytest.fixture
def tester(tmp_path: Path) -> Iterator[str]:
    listener = Listener(service.Tester(tmp_path / "tester", TOKEN))
    listener.start()
    (tmp_path / "aisbench.toml").write_text(f'[tester]\nurl = "{listener.url}"\ntoken = "{TOKEN}"\n')
    yield listener.url
    listener.stop()


def stored(tester: str, kind: str = "results") -> list[dict[str, Any]]:
    with urllib.request.urlopen(f"{tester}/api/v1/tests/{RUN}/{kind}", timeout=10) as answer:
        found: list[dict[str, Any]] = json.load(answer)[kind]
        return found


@pytest.mark.parametrize("point", POINTS)
def test_a_kill_at_any_step_loses_nothing_and_doubles_nothing(tmp_path: Path, tester: str, point: str) -> None:
    file = tmp_path / "ledger.db"
    done = run(sys.executable, upload_victims.__file__, file, tester, point)
    assert done.returncode == -signal.SIGKILL, done.stderr
    for first in (True, False):
        flushed = run(*AISBENCH, "flush", "--ledger", file, folder=tmp_path)
        assert flushed.returncode == 0, flushed.stderr + flushed.stdout
        assert (flushed.stdout == "nothing is spooled\n") is not first
    (found,) = stored(tester)
    assert (found["run_id"], found["attempt"], found["case"]["verdict"]) == (f"{RUN}.toy-1x1", 1, "PASSED")
    (end,) = stored(tester, "runs")
    assert (end["run_id"], end["attempt"], end["exit_code"]) == (RUN, 1, 0 if point in ENDED else None)
    with closing(Ledger(file)) as ledger:
        assert [upload["state"] for upload in ledger.entry(RUN).uploads] == ["delivered"]
