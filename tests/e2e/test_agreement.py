"""What the exit code says, JUnit, HTML, Allure, results.json, the ledger and the terminal say alike."""

from __future__ import annotations

import html
import json
import re
import sqlite3
from pathlib import Path
from xml.etree import ElementTree as ET

import pytest
from yard import SCRIPT, THRESHOLDS, Ended, Yard

HARD = THRESHOLDS.replace("at_least = 1 ", "at_least = 1e9 ")
# The gate that can find a case inconclusive is not built yet; its verdict must already travel everywhere.
UNDECIDED = """
import pytest
from pytest_aisbench import Ruling, Verdict
from pytest_aisbench.services import trial

judge = trial.judge


def doubt(thresholds, measured, flaws, shape, **more):
    verdict = judge(thresholds, measured, flaws, shape, **more)
    if any(threshold.at_least == 7 for threshold in thresholds):
        return Verdict(Ruling.INCONCLUSIVE, "the noise is larger than the margin", verdict.findings)
    return verdict


trial.judge = doubt
"""
# Somebody else, with the same keys, stops the job in the middle: not the workload's fault.
MEDDLER = """

def pytest_sessionstart(session):
    import threading
    import pytest_aisbench.adapters.local  # here, and not in two threads at once
    if not hasattr(session.config, "workerinput"):
        threading.Thread(target=meddle, args=(session.config.getoption("aisbench_cloud"),), daemon=True).start()


def meddle(card):
    import pathlib, time
    from pytest_aisbench import Settings
    from pytest_aisbench.adapters.local import Local
    platform = Local(Settings(cloud=pathlib.Path(card)))
    wanted = {"offset": 0, "limit": 50, "filters": [{"key": "phase", "operator": "in", "value": ["Running"]}]}
    while True:
        try:
            found = platform.session.call("POST", "/v2/{project_id}/training-job-searches", wanted)
            for job in found["items"]:
                if job["metadata"]["name"].startswith("broken-"):
                    platform.cancel(job["metadata"]["id"])
        except Exception:
            pass
        time.sleep(0.1)
"""
CASES = {
    "passed": {},
    "failed": {"thresholds": HARD},
    "broken": {"script": "import time\ntime.sleep(600)\n"},
    "inconclusive": {"thresholds": THRESHOLDS.replace("at_least = 1 ", "at_least = 7 ")},
}
EXIT = {"passed": 0, "failed": 1, "broken": 12, "inconclusive": 13}


def run(yard: Yard, kinds: list[str], workers: list[str]) -> Ended:
    for kind in kinds:
        yard.suite(kind, **CASES[kind])
    (yard.folder / "conftest.py").write_text(UNDECIDED + (MEDDLER if "broken" in kinds else ""))
    return yard.pytest("suites", "--nodes", "1", *workers)


def junit(folder: Path) -> dict[str, str]:
    words = {}
    for case in ET.parse(folder / "junit.xml").iter("testcase"):
        properties = {each.get("name"): each.get("value") for each in case.iter("property")}
        outcome = "error" if case.find("error") is not None else "failure" if case.find("failure") is not None else "ok"
        expected = {"PASSED": "ok", "FAILED": "failure", "INCONCLUSIVE": "failure", "BROKEN": "error"}
        verdict = str(properties["aisbench.verdict"])
        assert expected[verdict] == outcome
        words[str(properties["aisbench.case"])] = verdict
    return words


def page(folder: Path) -> dict[str, str]:
    """The rows of pytest-html, which keeps its data as JSON in an attribute."""
    text = (folder / "report.html").read_text(encoding="utf-8")
    blob = re.search(r'data-jsonblob="([^"]*)"', text)
    assert blob
    data = json.loads(html.unescape(blob[1]))
    words = {}
    for name, tests in data["tests"].items():
        cells = re.sub(r"<!--.*?-->|<[^>]+>", " ", " ".join(tests[-1]["resultsTableRow"])).split()
        case = re.search(r"\[(.+)\]", name)
        assert case
        words[case[1]] = next(word for word in cells if word in {kind.upper() for kind in CASES})
        expected = {"PASSED": "Passed", "FAILED": "Failed", "INCONCLUSIVE": "Failed", "BROKEN": "Error"}
        assert tests[-1]["result"] == expected[words[case[1]]]
    return words


def allure(folder: Path) -> dict[str, str]:
    words = {}
    for file in (folder / "allure-results").glob("*-result.json"):
        result = json.loads(file.read_text(encoding="utf-8"))
        labels = {label["name"]: label["value"] for label in result["labels"]}
        case = re.search(r"\[(.+)\]", result["name"]) or re.search(r"(\S+-\d+x\d+)", json.dumps(result))
        assert case
        verdict = labels["verdict"]
        expected = {"PASSED": "passed", "FAILED": "failed", "INCONCLUSIVE": "failed", "BROKEN": "broken"}
        assert result["status"] == expected[verdict]
        words[case[1]] = verdict
    return words


@pytest.mark.parametrize("workers", [[], ["-n", "2"]], ids=["single", "xdist"])
def test_everything_written_agrees(yard: Yard, workers: list[str]) -> None:
    ended = run(yard, list(CASES), workers)
    wanted = {f"{kind}-1x2": kind.upper() for kind in CASES}
    assert ended.code == 1, ended.out  # the first that applies: something FAILED
    assert ended.results["exit_code"] == 1
    assert ended.verdicts == wanted
    assert junit(ended.reports) == wanted
    assert page(ended.reports) == wanted
    assert allure(ended.reports) == wanted
    for case, verdict in wanted.items():
        assert re.search(rf"^{case} +{verdict}", ended.out, re.MULTILINE)
    with sqlite3.connect(yard.folder / "reports" / "ledger.db") as ledger:
        (exit_code,) = ledger.execute("SELECT exit_code FROM runs").fetchone()
        records = [json.loads(row[0]) for row in ledger.execute("SELECT record FROM cases")]
    ledger.close()
    assert exit_code == 1
    assert {record["id"]: record["verdict"] for record in records} == wanted


@pytest.mark.parametrize("kind", CASES)
def test_each_verdict_has_its_exit_code(yard: Yard, kind: str) -> None:
    ended = run(yard, [kind], [])
    assert ended.code == EXIT[kind], ended.out
    assert ended.results["exit_code"] == EXIT[kind]


def test_single_and_xdist_write_the_same_results(yard: Yard) -> None:
    def essence(ended: Ended) -> list[object]:
        """What does not depend on the time of day or the names given to jobs."""
        cases = json.loads(json.dumps(ended.results["cases"]))
        for case in cases:
            case["card_hours"] = 0
            for trial in case["trials"]:
                for key in ("job_id", "queued_s", "ran_s", "logs", "stage"):
                    trial[key] = bool(trial[key])
        return sorted(cases, key=lambda case: str(case["id"]))

    single = run(yard, ["passed", "failed"], [])
    first = essence(single)
    assert first == essence(run(yard, ["passed", "failed"], ["-n", "2"]))


def test_results_json_is_as_the_design_says(yard: Yard) -> None:
    yard.suite(script=SCRIPT)
    results = yard.pytest("suites", "--nodes", "2").results
    assert results["schema"] == "aisbench-results/1"
    assert list(results) == ["schema", "run", "started", "finished", "exit_code", "settings", "cases", "uploads"]
    assert results["settings"]["platform"] == "local"
    assert results["settings"]["nodes"] == [2]
    (case,) = results["cases"]
    assert {key: case[key] for key in ("id", "workload", "nodes", "devices_per_node", "mode", "verdict")} == {
        "id": "toy-2x2",
        "workload": "toy",
        "nodes": 2,
        "devices_per_node": 2,
        "mode": "cluster",
        "verdict": "PASSED",
    }
    assert case["metrics"] == {
        "throughput": {"value": 50.0, "unit": "images/s"},
        "accuracy": {"value": 0.9, "unit": ""},
    }
    assert case["findings"][0] == {
        "metric": "throughput",
        "outcome": "met",
        "measured": 50.0,
        "wanted": ">= 1 images/s",
        "text": "throughput 50 images/s, wanted >= 1 images/s",
    }
    (trial,) = case["trials"]
    assert list(trial) == [
        *("trial", "job_id", "platform_phase", "phase", "queued_s", "ran_s", "throughput_by_rank"),
        *("throughput_by_server", "accuracy_by_server", "stragglers", "logs", "stage"),
    ]
    assert (trial["trial"], trial["platform_phase"], trial["phase"]) == (1, "Completed", "SUCCEEDED")
    assert trial["throughput_by_rank"] == [12.5] * 4
    assert trial["throughput_by_server"] == [25.0, 25.0]
    assert trial["accuracy_by_server"] == [0.9]
    assert trial["stragglers"] == []
    assert trial["stage"].startswith("obs://")
    assert trial["ran_s"] > 0
    for log in trial["logs"]:
        assert (yard.folder / "reports/latest" / log).is_file()
    request = json.loads((yard.folder / "reports/latest/requests/toy-2x2.json").read_text())
    assert request["body"]["spec"]["resource"]["node_count"] == 2
