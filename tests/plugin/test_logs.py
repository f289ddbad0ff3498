"""What a job says: at home while it runs, and in the message when it fails."""

from __future__ import annotations

import json
import re
from pathlib import Path

import pytest
from waiting import wait_until
from yard import SCRIPT, Gate, Yard

from pytest_aisbench.engine import collect

pytestmark = pytest.mark.slow

FAILS = "print('about to fail', flush=True)\nraise SystemExit('no such layer: conv7')\n"


def test_logs_of_every_node_come_home_while_the_job_runs(yard: Yard) -> None:
    gate = Gate()
    words = "import os\nprint('words of rank', os.environ['RANK_ID'], flush=True)\n"
    yard.suite(script=words + gate.wait + SCRIPT)
    with yard.start(nodes=2) as run:
        home = yard.folder / "reports" / "latest" / "logs" / "toy-2x2" / "1"

        def said(node: int, text: str) -> bool:
            file = home / f"worker-{node}.log"
            return file.exists() and text in file.read_text(encoding="utf-8")

        wait_until(lambda: said(0, "words of rank 0") and said(1, "words of rank 3"))
        gate.open()
        out, _ = run.communicate()
        assert run.returncode == 0, out
    for node in (0, 1):
        text = (home / f"worker-{node}.log").read_text(encoding="utf-8")
        assert text.count(f"words of rank {2 * node}\n") == 1, text  # the whole log took the place of the first part
        assert f"rank {2 * node} of 4" in text


def test_a_failure_tells_the_end_of_the_story(yard: Yard) -> None:
    yard.suite(script=FAILS)
    ended = yard.pytest("suites", "--nodes", "1")
    assert ended.code == 1
    assert re.search(r"^FAILED: .*no such layer: conv7", ended.out, re.MULTILINE)
    assert re.search(r"^  rank \d +about to fail$", ended.out, re.MULTILINE)
    assert "no such layer: conv7" in (ended.reports / "report.html").read_text(encoding="utf-8")


def test_the_same_by_v1(yard: Yard, card: Path) -> None:
    yard.suite(script=FAILS)
    ended = yard.pytest("suites", "--nodes", "1", "--aisbench-modelarts-version", "V1")
    assert ended.code == 1, ended.out
    assert re.search(r"^FAILED: .*no such layer: conv7", ended.out, re.MULTILINE)
    (case,) = json.loads((ended.reports / "results.json").read_text())["cases"]
    assert case["trials"][0]["logs"] == [
        f"logs/toy-1x2/1/{name}" for name in ("worker-0.log", "proc-rank-0-device-0.txt", "proc-rank-1-device-1.txt")
    ]


def test_the_second_node_comes_before_the_tenth(tmp_path: Path) -> None:
    for node in (10, 2, 0):
        (tmp_path / f"worker-{node}.log").touch()

    assert collect.downloaded_logs(tmp_path) == ["worker-0.log", "worker-2.log", "worker-10.log"]
