"""The simulation itself: a seed replays exactly, and a planted bug is found and its schedule made short."""

from __future__ import annotations

import re
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
BUG = "create again without find"


def simulate(*arguments: str) -> tuple[int, str]:
    command = [sys.executable, "-m", "tests.sim", *arguments]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, timeout=300, check=False)
    return done.returncode, done.stdout + done.stderr


@pytest.mark.slow(seconds=20)
def test_a_planted_bug_is_found_made_short_and_replayed_to_the_last_line() -> None:
    code, text = simulate("--seeds", "1000", "--jobs", "1", "--bug", BUG, "--until-failure", "--shrink")
    assert code == 1, text
    found = re.search(r"--seed (\d+) --only '([^']*)'", text)
    assert found, text
    seed, only = found.groups()
    assert len(only.split(",")) <= 5, text
    replay = ("--seed", seed, "--only", only, "--bug", BUG)
    first, again = simulate(*replay), simulate(*replay)
    assert first == again
    assert first[0] == 1
    assert "VIOLATED" in first[1]
    code, text = simulate("--seed", seed, "--only", only)  # without the bug
    assert code == 0, text


@pytest.mark.slow(seconds=10)
def test_seeds_pass_and_say_what_they_met() -> None:
    code, text = simulate("--seeds", "20", "--jobs", "1", "--table")
    assert code == 0, text
    assert re.search(r"20 seeds .* faults met.* 0 failed", text)
    assert "| killed at a request |" in text
