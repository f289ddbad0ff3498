"""kill -9, of whoever sends and of the Tester itself, at every point of an upload: nothing is lost or doubled."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path

import pytest
import tester_victims
import upload_victims
from open_tester import Serving, case, parcel, serving
from upload_victims import RUN
from waiting import PATIENCE

from pytest_aisbench.errors import Unreachable
from pytest_aisbench.ledger.ledger import Ledger
from pytest_aisbench.ledger.outbox import Outbox
from pytest_aisbench.model.clock import SystemClock
from pytest_aisbench.model.results import UploadState
from pytest_aisbench.tester.uploader import flush

pytestmark = pytest.mark.slow


def stored(tester: Serving, token: str, testid: str) -> list[str]:
    answer = tester.get(f"/api/v1/tests/{testid}/results", Authorization=f"Bearer {token}")
    return [body["case"]["id"] for body in answer.json["results"]]


def shown(tester: Serving, project: str) -> list[tuple[str, int, int]]:
    rows = tester.get(f"/p/{project}?format=json").json["rows"]
    return [(run["name"], run["cases"], run["passed"]) for run in rows]


@pytest.mark.parametrize("point", tester_victims.POINTS)
def test_a_tester_that_is_killed_has_all_of_a_result_or_nothing(tester: Serving, point: str) -> None:
    project, sent = point.replace(" ", "-"), parcel("run-1", case())
    token, there = tester.token(project), point == "after commit"
    with serving(tester.db, program=(sys.executable, tester_victims.__file__, point)) as victim:
        with pytest.raises(Unreachable):
            victim.send(token, sent)
        assert victim.process.wait(PATIENCE) == -signal.SIGKILL
    assert stored(tester, token, "run-1") == (["resnet50-2x8"] if there else [])
    tester.send(token, sent)  # as the outbox of the run does
    assert stored(tester, token, "run-1") == ["resnet50-2x8"]
    assert [row["status"] for row in tester.audited(project)] == ([201, 200] if there else [201])
    assert shown(tester, project) == [("run-1", 1, 1)]


@pytest.fixture(scope="module")
def on_sqlite(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Serving]:
    """What a run does is the same for every database."""
    with serving(f"{tmp_path_factory.mktemp('tester')}/tester.db") as running:
        yield running


@pytest.mark.parametrize("point", upload_victims.POINTS)
def test_a_run_that_is_killed_loses_nothing_and_doubles_nothing(on_sqlite: Serving, tmp_path: Path, point: str) -> None:
    tester = on_sqlite
    project, file = f"run-{point.replace(' ', '-')}", tmp_path / "ledger.db"
    token = tester.token(project)
    command = [sys.executable, upload_victims.__file__, str(file), tester.url, point]
    environment = {**os.environ, "TESTER_TOKEN": token}
    died = subprocess.run(command, capture_output=True, text=True, check=False, timeout=PATIENCE, env=environment)
    assert died.returncode == -signal.SIGKILL, died.stderr
    before = ["toy-1x1"] if upload_victims.POINTS.index(point) >= upload_victims.POINTS.index("stored") else []
    assert point == "sent" or stored(tester, token, RUN) == before  # `sent`: the Tester may be at it
    with closing(Ledger(file)) as ledger:
        outbox = Outbox(ledger.database)
        flush(outbox, lambda _: tester.way(token), SystemClock(), patience_s=30)
        assert [each.state for each in outbox.of(RUN)] == [UploadState.DELIVERED] * 2
    assert stored(tester, token, RUN) == ["toy-1x1"]
    assert shown(tester, project) == [(RUN, 1, 1)]
    (run,) = tester.get(f"/p/{project}?format=json").json["rows"]
    assert run["exit_code"] == (0 if point in upload_victims.ENDED else None)
