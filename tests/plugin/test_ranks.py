"""A script that numbers its ranks wrongly ends a job at once, with a line that says how to number them."""

from __future__ import annotations

import shutil
from pathlib import Path

import pytest
from yard import Yard

pytestmark = pytest.mark.slow

SUITES = Path(__file__).parents[2] / "suites"
# As the guide's script does: the number of the card, on every node.
MISTAKEN = """
import os, runpy
os.environ["RANK_ID"] = os.environ["DEVICE_ID"]
runpy.run_path(os.path.join(os.path.dirname(os.path.abspath(__file__)), "miniature.py"), run_name="__main__")
"""


def test_ranks_repeated_on_both_nodes_end_a_job_and_do_not_hang(yard: Yard) -> None:
    place = yard.suite(script=MISTAKEN)
    for folder in (SUITES / "perceptron", SUITES / "miniature"):
        for file in folder.glob("*.py"):
            shutil.copy(file, place / "code")
    ended = yard.pytest("suites", "--nodes", "2", "--aisbench-run-timeout", "50s")
    assert ended.code == 1, ended.out
    assert ended.verdicts == {"toy-2x2": "FAILED"}
    logs = "".join(log.read_text() for log in ended.reports.glob("logs/toy-2x2/1/worker-1.log"))
    assert "and the rank table has 2 to 3 on this server" in logs
    assert "RANK_ID = number of the node × cards per node + card" in logs
    assert ended.results["cases"][0]["trials"][0]["platform_phase"] == "Failed", "it ended by itself"
