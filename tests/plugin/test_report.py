"""`aisbench report` and what it rests on: an old run told again from the ledger as the run itself told it."""

from __future__ import annotations

import json
import re
import shutil
from collections.abc import Iterator
from pathlib import Path
from typing import Any
from xml.etree import ElementTree as ET

import pytest
from report_page import page_data
from yard import TEST, THRESHOLDS, WORKLOAD, Ended, Yard

from pytest_aisbench.localcloud.faults import Fault
from pytest_aisbench.localcloud.server import LocalCloud

pytestmark = pytest.mark.slow

FAST = WORKLOAD + '[local]\nparameters = { seconds = "0.1", throughput = "12.5" }\n'
HARD = THRESHOLDS.replace("at_least = 1 ", "at_least = 1e9 ")
KILLS = TEST.replace("    trial.verdict", "    import os\n\n    os._exit(1)\n    trial.verdict")
SERVER = {"JENKINS_URL": "https://ci", "JOB_NAME": "gate", "BUILD_NUMBER": "7", "BUILD_URL": "https://u:t@ci/job/7/"}
PLAIN = """
import pytest

def test_plain():
    print("said <b>aloud</b>")

def test_wrong():
    assert 1 == 2

@pytest.mark.skip(reason="not today")
def test_later():
    pass

@pytest.mark.xfail(reason="known")
def test_known():
    raise RuntimeError
"""


@pytest.fixture(scope="module")
def told(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Yard]:
    """Two runs of the same suites, the first without xdist and the second with it, on one ledger."""
    with LocalCloud(engine="simulated", faults=[Fault(name="lost-1x2", job="lost")]) as cloud:
        card = tmp_path_factory.mktemp("cloud") / "card.json"
        card.write_text(json.dumps(cloud.card()))
        yard = Yard(tmp_path_factory.mktemp("yard"), card)
        yard.suite("well", workload=FAST)
        yard.suite("slow", workload=FAST, thresholds=HARD)
        yard.suite("lost", workload=FAST)
        (yard.folder / "suites" / "well" / "test_plain.py").write_text(PLAIN)
        assert run(yard, **SERVER).code == 1
        yard.suite("kills", workload=FAST, test=KILLS)
        assert run(yard, "-n", "2").code == 1
        yield yard


def run(yard: Yard, *arguments: str, **env: str) -> Ended:
    options = ("--nodes", "1", "--aisbench-max-trials", "2", "--aisbench-tester", "none")
    return yard.pytest("suites", *options, *arguments, env=env)


def runs(yard: Yard) -> list[Path]:
    """Oldest first; the ids of two runs that began in the same second do not tell."""
    folders = (path for path in (yard.folder / "reports").iterdir() if path.is_dir() and not path.is_symlink())
    return sorted(folders, key=lambda folder: str(json.loads((folder / "results.json").read_bytes())["started"]))


def allure(folder: Path) -> dict[str, dict[str, Any]]:
    """What results say, without what no two runs have in common."""
    found = {}
    for file in (folder / "allure-results").glob("*-result.json"):
        result = json.loads(file.read_bytes())
        name = result["name"]
        assert name not in found, f"{name} is told twice"
        for each in attachments(result):
            assert (folder / "allure-results" / each["source"]).is_file()
        found[name] = result
    return found


def attachments(result: dict[str, Any]) -> list[dict[str, str]]:
    return [one for part in (result, *result.get("steps", ())) for one in part.get("attachments", ())]


def shape(result: dict[str, Any]) -> dict[str, Any]:
    """Of a case: everything but times, ids and what history adds."""
    steps = [
        (step["name"].split(":")[0], step["status"], [(each["name"], each["status"]) for each in step["steps"]])
        for step in result["steps"]
    ]
    return {
        **{key: result.get(key) for key in ("fullName", "historyId", "testCaseId", "status", "labels", "description")},
        "parameters": [each["name"] for each in result["parameters"]],
        "message": result["statusDetails"].get("message", "")[:30],
        "steps": steps,
        "attachments": [(each["name"], each["type"]) for each in attachments(result) if "history" not in each["name"]],
    }


def suite_of(folder: Path) -> list[tuple[Any, ...]]:
    """What junit.xml says, but for the seconds of its suite."""
    suite = ET.parse(folder / "junit.xml").getroot()[0]
    counts = tuple(sorted((key, value) for key, value in suite.items() if key not in {"time", "timestamp"}))
    return [counts, *(tuple(ET.tostring(each, encoding="unicode").split("\n")) for each in suite)]


@pytest.mark.slow
def test_an_old_run_is_told_again_as_it_was(told: Yard, tmp_path: Path) -> None:
    first, second = runs(told)
    for old in (first, second):
        target = tmp_path / old.name
        done = told.aisbench(
            "report", old.name, "--output", str(target), GITHUB_STEP_SUMMARY=str(tmp_path / "steps.md")
        )

        assert (done.returncode, done.stderr) == (0, "")
        assert {path.name for path in target.iterdir()} == {path.name for path in old.iterdir()}
        for name in ("results.json", "summary.md", "metrics.txt", "metrics.csv"):
            assert (target / name).read_bytes() == (old / name).read_bytes(), name
        assert suite_of(target) == suite_of(old)
        assert rows(target / "report.html") == rows(old / "report.html")
        assert len(rows(old / "report.html")) == len(allure(old))
        again, before = allure(target), allure(old)
        assert again.keys() == before.keys()
        for name, result in before.items():
            if "trains" in name:
                assert shape(again[name]) == shape(result)
            assert again[name]["status"] == result["status"]
    assert not (tmp_path / "steps.md").exists()  # a CI server's page is of the run, not of its retelling


def rows(page: Path) -> Any:
    """What the page's own script reads, but for xdist's line on the worker, and for a worker that was replaced."""
    tests = page_data(page)["tests"]
    for told in tests.values():
        for row in told:
            row["log"] = re.sub(
                r"\[gw\d\] linux -- Python [^\n]*\n+|No log output captured\.|^\n", "", row["log"]
            ).strip()
    return {name: [row for row in told if row["result"] != "Rerun"] for name, told in tests.items()}


def test_a_case_is_the_same_in_allure_with_xdist_and_without(told: Yard) -> None:
    single, parallel = (allure(folder) for folder in runs(told))

    for case, status in (("well", "passed"), ("slow", "failed"), ("lost", "broken")):
        name = f"test_trains[{case}-1x2]"
        assert single[name]["status"] == status
        assert shape(single[name]) == shape(parallel[name])
    assert [step["status"] for step in single["test_trains[lost-1x2]"]["steps"]] == ["broken", "broken"]
    trial = single["test_trains[slow-1x2]"]["steps"][0]
    assert [step["name"] for step in trial["steps"]] == [
        "wait",
        "stage",
        "submit",
        "queue",
        "train",
        "harvest",
        "judge",
    ]
    assert trial["steps"][-1]["status"] == "failed"
    times = [(step["start"], step["stop"]) for step in trial["steps"]]
    assert times == sorted(times)
    assert {"request", "worker-0.log"} <= {each["name"] for each in trial["attachments"]}
    assert single["test_plain"]["status"] == "passed"
    assert single["test_later"]["status"] == "skipped"


def test_a_test_whose_worker_crashed_has_its_result(told: Yard) -> None:
    crashed = allure(runs(told)[1])["test_trains[kills-1x2]"]

    assert crashed["status"] == "failed"
    assert "crashed" in crashed["statusDetails"]["message"]
    assert crashed["steps"][0]["name"].startswith("trial 1")
    assert {"name": "feature", "value": "kills"} in crashed["labels"]
    suite = ET.parse(runs(told)[1] / "junit.xml").getroot()[0]
    (case,) = (case for case in suite.iter("testcase") if "kills" in str(case.get("name")))
    assert case.find("failure") is not None


def test_the_results_know_the_runs_before(told: Yard) -> None:
    first, second = (folder / "allure-results" for folder in runs(told))

    assert not (first / "history").exists()
    history = json.loads((second / "history" / "history.json").read_bytes())
    slow = allure(runs(told)[1])["test_trains[slow-1x2]"]
    assert history[slow["historyId"]]["items"][0]["status"] == "failed"
    (trend,) = json.loads((second / "history" / "history-trend.json").read_bytes())
    assert trend["data"] == {"failed": 1, "broken": 1, "skipped": 0, "passed": 1, "unknown": 0, "total": 3}
    (file,) = second.glob("*-perf.json")
    metrics = {each["key"]: each for each in json.loads(file.read_bytes())}
    assert (metrics["well-1x2.throughput"]["value"], metrics["well-1x2.throughput"]["better"]) == (25.0, "higher")
    assert json.loads((second / "executor.json").read_bytes())["type"] == "local"


def test_a_wiped_workspace_is_told_from_the_ledger_alone(told: Yard, tmp_path: Path) -> None:
    old, _ = runs(told)
    ledger = tmp_path / "ledger.db"
    shutil.copy(told.folder / "reports" / "ledger.db", ledger)
    options = ["--ledger", str(ledger), "--reports", str(tmp_path / "reports")]

    done = told.aisbench("report", old.name[:-1], *options, "--lang", "zh")

    assert done.returncode == 0, done.stderr
    assert "log files are not here" in done.stderr
    new = tmp_path / "reports" / old.name
    assert (new / "results.json").read_bytes() == (old / "results.json").read_bytes()
    assert (new / "requests" / "slow-1x2.json").read_bytes() == (old / "requests" / "slow-1x2.json").read_bytes()
    ran = json.loads((new / "allure-results" / "executor.json").read_bytes())
    assert (ran["type"], ran["buildName"], ran["buildUrl"]) == ("jenkins", "gate #7", "https://ci/job/7/")
    assert "Jenkins <a href='https://ci/job/7/'>gate #7</a>" in (new / "report.html").read_text(encoding="utf-8")
    page = json.dumps(rows(new / "report.html"), ensure_ascii=False)
    assert "lang='zh" in page
    assert "FAILED 未通过</span>: 吞吐量 25 images/s，要求 &gt;= 1000000000 images/s（低 100.0%）：" in page
    assert "BROKEN 平台故障</span>: 平台丢失了作业：" in page
    listed = (tmp_path / "reports" / "index.html").read_text(encoding="utf-8")
    assert listed.count("<tr>") == 2  # its head, and the one run whose folder is here
    assert f'href="{old.name}/report.html"' in listed


def test_the_list_of_runs_has_the_newest_first(told: Yard) -> None:
    first, second = runs(told)
    page = (told.folder / "reports" / "index.html").read_text(encoding="utf-8")

    assert page.index(second.name) < page.index(first.name)
    assert "1 PASSED" in page
    for run in (first, second):  # the run that wrote the list last is on it with all that it left
        for name in ("report.html", "results.json", "junit.xml"):
            assert f'href="{run.name}/{name}"' in page
    assert told.aisbench("report", "--index").stdout.strip() == str(told.folder / "reports" / "index.html")


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (["nonsense"], "the ledger has no run 'nonsense'; the newest are "),
        (["20"], "is the beginning of "),
        (["--ledger", "none.db"], "there is no ledger "),
        (["--lang", "fr"], "--lang"),
        (["--allure", "--index"], "not allowed with"),
    ],
)
def test_what_cannot_be_told_is_one_line(told: Yard, arguments: list[str], said: str) -> None:
    done = told.aisbench("report", *arguments)

    assert done.returncode == 4
    assert said in done.stderr.splitlines()[-1]


def test_allure_without_node_is_one_line(told: Yard, tmp_path: Path) -> None:
    done = told.aisbench("report", "--allure", PATH=str(tmp_path))

    assert done.returncode == 4
    assert done.stderr == (
        "aisbench report: the page of Allure is made by Node.js, which is not installed here; install Node.js 20 or"
        " newer (https://nodejs.org); all other reports need none\n"
    )


def test_a_run_that_is_under_way_is_left_alone(told: Yard, tmp_path: Path) -> None:
    from pytest_aisbench.ledger.lease import this_process
    from pytest_aisbench.ledger.ledger import Ledger

    ledger = Ledger(tmp_path / "ledger.db")
    ledger.begin("20990101-000000-abcdef", {"platform": "local"}, 4e9, this_process(), 5e9)
    ledger.close()

    done = told.aisbench("report", "--reports", str(tmp_path))

    assert done.returncode == 4
    assert "is still under way" in done.stderr
    assert not (tmp_path / "20990101-000000-abcdef").exists()


def test_the_runs_of_shards_become_one_report_as_one_run_would_have_written(
    told: Yard, tmp_path_factory: pytest.TempPathFactory
) -> None:
    folder = tmp_path_factory.mktemp("shards")
    yard = Yard(folder, told.card)
    for name, thresholds in (("well", THRESHOLDS), ("slow", HARD), ("lost", THRESHOLDS)):
        yard.suite(name, workload=FAST, thresholds=thresholds)
    options = ("--nodes", "1", "--aisbench-max-trials", "1", "--aisbench-tester", "none")
    whole = yard.pytest("suites", *options, "--aisbench-reports", "whole")
    for name, suites in (("one", ["suites/well"]), ("two", ["suites/slow", "suites/lost"])):
        yard.pytest(*suites, *options, "--aisbench-reports", name)

    done = yard.aisbench("report", "one", "two/latest", "--output", "merged")

    assert done.returncode == whole.code == 1, done.stderr
    assert "exit code 1: a verdict is FAILED" in done.stdout
    alone, merged = (json.loads((folder / name / "results.json").read_bytes()) for name in ("whole/latest", "merged"))
    assert merged["exit_code"] == alone["exit_code"]
    assert {each["id"]: each["verdict"] for each in merged["cases"]} == {
        each["id"]: each["verdict"] for each in alone["cases"]
    }
    assert rows(folder / "merged" / "report.html").keys() == rows(folder / "whole/latest/report.html").keys()
    assert {path.name for path in (folder / "merged").iterdir()} == {
        path.name for path in (folder / "whole/latest").iterdir()
    }
    logs = [log for case in merged["cases"] for trial in case["trials"] for log in trial["logs"]]
    assert logs
    assert all((folder / "merged" / log).is_file() for log in logs)
    twice = yard.aisbench("report", "one", "one")
    assert (twice.returncode, "a run is named twice" in twice.stderr) == (4, True)
