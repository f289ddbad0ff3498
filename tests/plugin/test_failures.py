"""What a person reads of cases that did not pass: short, each reason first, and where to read on."""

from __future__ import annotations

import re

import pytest
from yard import WORKERS, Ended, Yard

pytestmark = pytest.mark.slow

HEAD = """import argparse, os, pathlib, sys, time
parser = argparse.ArgumentParser()
parser.add_argument("--train_url")
out = pathlib.Path(parser.parse_known_args()[0].train_url)
rank, size = int(os.environ["RANK_ID"]), int(os.environ["RANK_SIZE"])
for step in range(1, 5):
    print(f"epoch: 1 step: {step}, loss is {6.0 / step:.3f}", flush=True)
speed, accuracy = 100.0, 0.9
"""
TAIL = """
if rank == 0:
    (out / "ranksize.json").write_text(str(size))
    (out / "accuracy.json").write_text(str(accuracy))
(out / f"throughput_{rank}.json").write_text(str(speed))
"""
SCRIPTS = {
    "crash": "if rank == 1:\n    raise RuntimeError('cannot open /cache/train.rec')\ntime.sleep(600)\n",
    "hang": "if rank != 2:\n    print('waiting for all ranks', flush=True)\ntime.sleep(600)\n",
    "nan": "speed = float('nan') if rank == 1 else speed\n",
    "silent": "if rank == 3:\n    sys.exit(0)\n",
    "noisy": "",  # exactly at its limit, which no noise leaves on one side
    "slow": "speed = 60.0 if rank == 3 else speed + rank / 10\n",
    "scaled": "speed = 100.0 if size == 2 else 60.0\n",
    "learnt": "accuracy = 0.41\n",
}
CLAIMS = (
    '[local."*"]\nthroughput = { reference = 400, lower = -0.05, unit = "images/s" }\naccuracy = { at_least = 0.759 }\n'
)
EASY = '[local."*"]\nthroughput = { at_least = 1 }\naccuracy = { at_least = 0.759 }\n'
THRESHOLDS = {
    "slow": CLAIMS,
    "learnt": CLAIMS,
    "noisy": CLAIMS.replace("-0.05", "0.0"),
    "scaled": EASY + 'scaling = { at_least = 0.9, base = "1x2" }\n',
}
TEST = """import pytest

pytestmark = pytest.mark.workload("{name}", nodes=[NODES])


def test_trains(trial):
    trial.verdict.require()
"""
TIMEOUT = ("--aisbench-run-timeout", "6s", "--aisbench-max-jobs", "4")


@pytest.fixture
def eight(yard: Yard) -> Yard:
    """A crash, a hang, NaN, a missing rank, noise, a slow card, a scaling and an accuracy that are too low."""
    for name, what in SCRIPTS.items():
        nodes = "1, 2" if name == "scaled" else "2"
        yard.suite(
            name, script=HEAD + what + TAIL, thresholds=THRESHOLDS.get(name, EASY), test=TEST.replace("NODES", nodes)
        )
    return yard


def block_of(ended: Ended, case: str) -> str:
    """What pytest prints of a failed test, below its name."""
    found = re.search(rf"^_+ test_trains\[{case}\] _+\n(.*?)^[_=-]{{10}}", ended.out, re.MULTILINE | re.DOTALL)
    assert found, ended.out
    return found[1]


@WORKERS
def test_eight_failures_are_short_and_no_reason_is_told_more_than_twice(eight: Yard, workers: list[str]) -> None:
    ended = eight.pytest("suites", *TIMEOUT, *workers)

    assert ended.code == 1, ended.out
    assert sorted(case for case, verdict in ended.verdicts.items() if verdict == "PASSED") == ["scaled-1x2"]
    lines = ended.out.splitlines()
    assert len(lines) <= 150, ended.out
    assert lines[-1] == "exit code 1: a verdict is FAILED, or a test failed"
    for case in ended.results["cases"]:
        if case["verdict"] != "PASSED":
            once = " ".join(ended.out.split())
            assert 1 <= once.count(case["reason"][:40]) <= 2, case["reason"]
            first = block_of(ended, case["id"]).splitlines()[1 if workers else 0]  # xdist names its worker first
            assert first.startswith(f"{case['verdict']}: {case['reason'][:40]}")
    assert "±" not in ended.out
    for case, rank in {"crash": 1, "hang": 2, "nan": 1, "silent": 3, "slow": 3}.items():
        block = block_of(ended, f"{case}-2x2")
        device = f"proc-rank-{rank}-device-{rank % 2}.txt"
        assert re.search(rf"^  rank {rank} +epoch: 1 step: \d, loss is", block, re.MULTILINE), block
        path = re.search(r"^  read on +(.*)$", block, re.MULTILINE)
        assert path
        assert path[1].endswith(device)
        assert (eight.folder / path[1]).is_file()
        assert "what to do" in block
    assert "raise RuntimeError('cannot open /cache/train.rec')" in block_of(ended, "crash-2x2")
    rows = {line.split()[0]: re.split(r"\s{2,}", line) for line in lines if re.match(r"\w+-\dx2  ", line)}
    assert rows["learnt-2x2"][1:] == ["FAILED", "400 images/s", ">= 380", "100.0%", "-", "0.41", ">= 0.759",
                                      "accuracy 46.0% below"]  # fmt: skip
    assert rows["scaled-2x2"][-4:] == ["0.6", "0.9", ">= 0.759", "scaling 33.3% below"]
    assert rows["noisy-2x2"][-1] == "throughput undecided"
    assert rows["slow-2x2"][-1] == "throughput 5.2% below"


def test_more_is_told_where_more_is_asked_for(eight: Yard) -> None:
    ended = eight.pytest("suites/slow", "suites/crash", "-v")

    block = block_of(ended, "slow-2x2")
    assert "(± " in block
    assert re.search(r"^  event +.*Training job completed", block, re.MULTILINE)
    assert block_of(ended, "crash-2x2").count("  log        ") == 10


def test_a_required_case_that_is_missing_ends_with_the_exit_code(yard: Yard) -> None:
    (yard.folder / "required.txt").write_text("toy-1x2\ntoy-4x2\n")
    yard.suite()
    ended = yard.pytest("suites", "--nodes", "1", "--aisbench-require", "required.txt")

    assert ended.code == 11
    assert ended.out.splitlines()[-1] == "exit code 11: required cases are missing"
    dry = yard.pytest("suites", "--aisbench-dry-run")
    assert dry.out.splitlines()[-1] == "exit code 5: nothing was judged"
    ended = yard.pytest("suites", "--nodes", "1")
    assert (ended.code, ended.out.count("exit code")) == (0, 0)


def test_a_case_that_a_test_expects_to_fail_is_told_although_no_test_failed(yard: Yard) -> None:
    expected = TEST.replace("def test", "@pytest.mark.xfail\ndef test").replace("NODES", "1")
    yard.suite(script=HEAD + "accuracy = 0.41\n" + TAIL, thresholds=EASY, test=expected)
    ended = yard.pytest("suites")

    assert ended.code == 1
    assert "toy-1x2 FAILED: accuracy 0.41, wanted >= 0.759 (46.0% below)" in ended.out.splitlines()
