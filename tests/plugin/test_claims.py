"""Claims on the log, failures that are expected, and power by a source of one's own, all in one run."""

from __future__ import annotations

import json
import re
import time
from pathlib import Path

import pytest
from yard import SCRIPT, Yard

HOW_TO = Path(__file__).parents[2] / "docs" / "how-to.md"
TALKATIVE = (
    "import time\nbegan = time.time()\ntime.sleep(0.5)\n"
    + SCRIPT
    + """
if rank == 0:
    for step, speed in enumerate((10, 50, 50, 50, 50)):
        print(f"Iter #{step}: {speed} img/sec per CPU")
    print("MindSpore version: 1.3.0")
    print("eval epoch: 1, accuracy: 0.4, elapsed: 0.1 s")
    print("eval epoch: 2, accuracy: 0.8, elapsed: 0.2 s")
    print(
        f"train done starttime:{began} endtime:{time.time()} stepsize:1 batchsize:4 epochsize:2 alldatasum:8 "
        "single_throughput_rate:9"
    )
"""
)
CLAIMS = """[local."*"]
throughput = { at_least = 1000, expected_failure = { reason = "the old driver", until = DAY } }
accuracy = { at_least = 0.5 }
steady_throughput = { at_least = 90 }
time_to_accuracy = { at_most = 60 }
"""
MISSED = "throughput 25 images/s, wanted >= 1000 images/s (97.5% below)"


def recipe(heading: str) -> str:
    """The Python that a recipe has the reader paste."""
    text = HOW_TO.read_text(encoding="utf-8").partition(f"## {heading}\n")[2].partition("\n## ")[0]
    found = re.search(r"```python\n(.*?)```", text, re.DOTALL)
    assert found
    return found[1]


@pytest.mark.slow
def test_a_run_that_claims_what_its_log_tells_expects_a_failure_and_measures_power(yard: Yard) -> None:
    (yard.folder / "conftest.py").write_text(recipe("Measure power"))
    yard.suite("known", script=TALKATIVE, thresholds=CLAIMS.replace("DAY", "2999-01-31"))
    late = yard.suite("late", script=TALKATIVE, thresholds=CLAIMS.replace("DAY", "2020-01-31"))
    ended = yard.pytest("suites", "--nodes", "1")
    assert ended.code == 1, ended.out
    assert ended.verdicts == {"known-1x2": "PASSED", "late-1x2": "FAILED"}

    # Before the run, in the summary, and in the page.
    early = f"{late}/thresholds.toml:2: throughput was expected to fail until 2020-01-31 (the old driver): it counts"
    unbroken = " ".join(ended.out.split())
    assert early in unbroken
    excuse = "missed, as expected until 2999-01-31: the old driver"
    assert excuse in unbroken
    page = (ended.reports / "report.html").read_text(encoding="utf-8")
    assert excuse in page

    known, other = ended.results["cases"]
    outcomes = {finding["metric"]: (finding["outcome"], finding["measured"]) for finding in known["findings"]}
    assert outcomes == {
        "throughput": ("waived", 25.0),
        "accuracy": ("met", 0.9),
        "steady_throughput": ("met", 100.0),
        "time_to_accuracy": ("met", 0.2),
    }
    assert known["reason"].startswith(MISSED)
    assert excuse in known["reason"]
    assert MISSED in other["reason"]
    assert "the expected failure expired on 2020-01-31: the old driver" in other["reason"]

    told = json.loads((ended.reports / "fields.json").read_text(encoding="utf-8"))["cases"]["known-1x2"]
    assert told["average_power"]["value"] == pytest.approx(2150.0)
    assert told["energy_consumption"]["value"] == pytest.approx(2150.0 * told["proc_time"]["value"])
    assert told["average_power"]["source"].startswith("bmc, over the training")
    assert told["efficientcy"]["value"] == pytest.approx(25 / 2150)
    assert (told["time_to_accuracy"]["value"], told["target_accuracy"]["value"]) == (0.2, 0.5)
    assert told["dataload_time"]["null_reason"] == "no source tells when the data were loaded"


@pytest.mark.slow
def test_power_from_a_file_is_in_what_the_tester_is_sent(yard: Yard) -> None:
    now = int(time.time())
    samples = "".join(f"{now + tick / 10},0,{300 if tick % 2 else 500}\n" for tick in range(-100, 6000))
    (yard.folder / "power.csv").write_text(f"time,node,watts\n{samples}")
    yard.suite(script=TALKATIVE)
    ended = yard.pytest(
        "suites", "--nodes", "1", "--aisbench-power", "power.csv", "--aisbench-tester", f"file://{yard.folder}/tester"
    )
    assert ended.code == 0, ended.out
    (body,) = [json.loads(file.read_bytes()) for file in (yard.folder / "tester").rglob("results/*.json")]
    power = body["measured"]["average_power"]
    assert power["source"].startswith("file, over the training")
    assert power["value"] == pytest.approx(400, abs=50)
    assert float(body["train_result_info"]["energy_consumption"]) == pytest.approx(
        power["value"] * body["measured"]["proc_time"]["value"]
    )
    (yard.folder / "power.csv").unlink()
    without = yard.pytest("suites", "--nodes", "1", "--aisbench-power", "power.csv")
    assert without.code == 0, without.out
    told = "note: toy-1x2: power unknown: file: power.csv cannot be read: No such file or directory"
    assert told in " ".join(without.out.split())
