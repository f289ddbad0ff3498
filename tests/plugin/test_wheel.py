"""A run by the vendor's `modelarts` wheel, and one where it is not installed."""

from __future__ import annotations

import json
import sys

import pytest
from by_wheel import STANDIN
from yard import Yard

pytestmark = pytest.mark.slow

WHEEL = ("--nodes", "1", "--aisbench-modelarts-client", "wheel")
V1 = """
import argparse, os
import moxing as mox
parser = argparse.ArgumentParser()
parser.add_argument("--train_url")
out = parser.parse_known_args()[0].train_url.rstrip("/")
rank, size = os.environ["RANK_ID"], os.environ["RANK_SIZE"]
for name, text in ((f"throughput_{rank}", "12.5"), ("ranksize", size), ("accuracy", "0.9")):
    mox.file.write(f"{out}/{name}.json", text)
"""


@pytest.mark.parametrize("version", ["V1", "V2"])
def test_a_suite_runs_by_the_wheel(yard: Yard, version: str) -> None:
    yard.suite(**({"script": V1} if version == "V1" else {}))
    ended = yard.pytest("suites", *WHEEL, "--aisbench-modelarts-version", version, env={"PYTHONPATH": str(STANDIN)})
    assert ended.code == 0, ended.out
    assert ended.verdicts == {"toy-1x2": "PASSED"}
    assert "stand-in" not in ended.out
    assert "create training job" not in ended.out
    (file,) = (ended.reports / "requests").glob("*.json")
    if version == "V1":
        assert json.loads(file.read_text())["body"]["config"]["spec_id"] == "modelarts.local.2", "the wheel takes names"


def test_without_the_wheel_one_line_says_how_to_get_it(yard: Yard) -> None:
    yard.suite()
    ended = yard.pytest("suites", *WHEEL)
    (line,) = [line for line in ended.out.splitlines() if line.startswith("ERROR")]
    assert ended.code == 4, ended.out
    assert line == (
        f"ERROR: the modelarts wheel is not installed in {sys.executable}; download it as "
        "https://support.huaweicloud.com/sdkreference-modelarts/modelarts_04_0004.html says and "
        "`pip install modelarts-*.whl`, or choose --aisbench-modelarts-client sdk"
    )
