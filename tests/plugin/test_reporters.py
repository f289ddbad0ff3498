"""The reporters inside real pytest runs, single and with xdist: late entrance, contents, hostile strings."""

from __future__ import annotations

import json
import platform
import re
from collections.abc import Callable
from html.parser import HTMLParser
from pathlib import Path
from typing import Any
from xml.etree import ElementTree as ET

import pytest
from junit_schema import properties, strictly
from report_page import page_data
from yard import WORKERS

from pytest_aisbench import __version__

pytestmark = pytest.mark.slow

pytest_plugins = ["pytester"]

HERE = Path(__file__).parent
TRAINS = """
import pytest

@pytest.mark.parametrize("kind", ["passed", "slow", "broken", "hostile"])
def test_trains(trial):
    trial.verdict.require()

def test_plain():
    pass
"""
PLAIN = "def test_plain():\n    pass\n"

Run = Callable[..., pytest.RunResult]


@pytest.fixture
def run(pytester: pytest.Pytester, monkeypatch: pytest.MonkeyPatch) -> Run:
    monkeypatch.setenv("PYTHONPATH", str(HERE.parents[1]))
    monkeypatch.setenv("REPORTS", str(pytester.path / "reports" / "run-1"))
    pytester.makeconftest((HERE / "reporting_conftest.py").read_text(encoding="utf-8"))

    def run(*args: str, source: str = TRAINS) -> pytest.RunResult:
        pytester.makepyfile(test_suite=source)
        return pytester.runpytest_subprocess("-p", "no:pytest_aisbench.plugin", "-W", "error", *args)

    return run


def amend(pytester: pytest.Pytester, *lines: str) -> None:
    """Change the world at the end of the conftest, when everything is imported and nothing has run."""
    path = pytester.path / "conftest.py"
    path.write_text("\n".join((path.read_text(encoding="utf-8"), *lines)), encoding="utf-8")


class _Tags(HTMLParser):
    def __init__(self) -> None:
        super().__init__()
        self.tags: list[tuple[str, dict[str, str | None]]] = []

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.tags.append((tag, dict(attrs)))


def tags(text: str) -> list[tuple[str, dict[str, str | None]]]:
    parser = _Tags()
    parser.feed(text)
    return parser.tags


def page(path: Path) -> dict[str, Any]:
    """What the page's own script reads, and the page around it."""
    text = path.read_text(encoding="utf-8")
    return {**page_data(path), "text": text}


def rows(found: dict[str, Any], name: str) -> list[dict[str, Any]]:
    return [row for node, rows in found["tests"].items() if name in node for row in rows]


def allure(folder: Path) -> dict[str, dict[str, Any]]:
    results = [json.loads(path.read_text(encoding="utf-8")) for path in folder.glob("*-result.json")]
    return {result["name"]: result for result in results}


@WORKERS
def test_one_run_writes_all_reports(run: Run, pytester: pytest.Pytester, workers: list[str]) -> None:
    result = run(*workers)

    result.assert_outcomes(passed=2, failed=2, errors=1)
    folder = pytester.path / "reports" / "run-1"
    assert {path.name for path in folder.iterdir()} == {"results.json", "report.html", "junit.xml", "allure-results"}

    check_html(folder)
    check_junit(folder / "junit.xml")
    check_allure(folder / "allure-results")
    results = json.loads((folder / "results.json").read_text(encoding="utf-8"))
    assert [case["verdict"] for case in results["cases"]] == ["BROKEN", "FAILED", "PASSED", "FAILED"]


def check_html(folder: Path) -> None:
    found = page(folder / "report.html")
    assert found["title"] == "aisbench run-1"
    assert "4 cases: <span class='verdict passed'>1 PASSED</span>" in found["text"]
    header = found["text"].split('id="results-table-head"')[1].split("</thead>")[0]
    assert [name for name in ("Verdict", "Throughput", "Accuracy", "Wanted") if f">{name}</th>" in header] == [
        "Verdict", "Throughput", "Accuracy", "Wanted",
    ]  # fmt: skip

    (passed,) = rows(found, "[passed]")
    assert len(passed["resultsTableRow"]) == header.count("<th")
    assert ">PASSED<" in passed["resultsTableRow"][2]
    assert passed["resultsTableRow"][3].endswith("1600 images/s</td>")
    assert passed["resultsTableRow"][5].endswith("0.76</td>")
    assert passed["resultsTableRow"][6].endswith("&gt;= 1520 images/s; &gt;= 0.75</td>")
    content = passed["details"]
    for part in ("<svg ", "SUCCEEDED / Completed", "10 min 00 s", "2023-11-14 22:13:20", "took its time", "job-1"):
        assert part in content
    assert ("a", {"href": "logs/passed-2x8/1/worker%200.log"}) in tags(content)

    (slow,) = rows(found, "[slow]")
    assert slow["result"] == "Failed"
    assert slow["throughput"] < passed["throughput"]  # the page compares strings
    (broken,) = rows(found, "[broken]")
    assert broken["result"] == "Error"
    assert ">BROKEN<" in broken["resultsTableRow"][2]
    assert broken["resultsTableRow"][3].endswith(">-</td>")
    assert "platform is to blame" in broken["details"]
    (plain,) = rows(found, "test_plain")
    assert plain["resultsTableRow"][2].endswith("<span class='verdict passed'>Passed</span></td>")
    assert plain["resultsTableRow"][3:7] == [f"<td class=col-{name}></td>" for name in PLAIN_COLUMNS]

    (hostile,) = rows(found, "[hostile]")
    shown = [hostile["details"], *hostile["resultsTableRow"], hostile["log"]]
    assert not [tag for text in shown for tag, _ in tags(text) if tag in {"script", "img", "b"}]
    assert "&lt;script&gt;" in hostile["details"]
    for row in (passed, slow, broken, hostile):
        assert len(json.dumps(row)) < 50_000


PLAIN_COLUMNS = ("throughput", "reference_share", "accuracy", "wanted")


def check_junit(path: Path) -> None:
    suite = strictly(path)
    assert {name: suite.get(name) for name in ("tests", "failures", "errors")} == {
        "tests": "5", "failures": "2", "errors": "1",
    }  # fmt: skip
    assert properties(suite) == {
        "aisbench.run": "run-1",
        "aisbench.schema": "aisbench-results/1",
        "aisbench.started": "2024-01-01T00:00:00Z",
        "aisbench.finished": "2024-01-01T02:00:00Z",
        "aisbench.platform": "local",
        "aisbench.nodes": "1,2,4",
        "aisbench.version": __version__,
        "aisbench.python": platform.python_version(),
        "aisbench.pytest": pytest.__version__,
        "aisbench.exit_code": "1",
        "aisbench.exit": "a verdict is FAILED, or a test failed",
    }
    cases = {case.get("name"): properties(case) for case in suite.iter("testcase")}
    assert cases["test_trains[passed]"]["aisbench.throughput"] == "1600.0"
    assert cases["test_trains[passed]"]["aisbench.throughput.wanted"] == ">= 1520 images/s"
    verdicts = {name: case.get("aisbench.verdict") for name, case in cases.items()}
    assert verdicts == {
        "test_trains[passed]": "PASSED",
        "test_trains[slow]": "FAILED",
        "test_trains[broken]": "BROKEN",
        "test_trains[hostile]": "FAILED",
        "test_plain": None,
    }
    assert "<script>" in (cases["test_trains[hostile]"]["aisbench.reason"] or "")


def check_allure(folder: Path) -> None:
    found = allure(folder)
    statuses = {name: result["status"] for name, result in found.items()}
    assert statuses == {
        "test_trains[passed]": "passed",
        "test_trains[slow]": "failed",
        "test_trains[broken]": "broken",
        "test_trains[hostile]": "failed",
        "test_plain": "passed",
    }
    passed, broken = found["test_trains[passed]"], found["test_trains[broken]"]
    ms = 1_700_000_000_000
    (trial,) = passed["steps"]
    assert trial["name"] == "trial 1: job job-1 Completed"
    assert [(step["name"], step["start"] - ms, step["stop"] - ms) for step in trial["steps"]] == [
        ("stage", 0, 5_000),
        ("submit", 5_000, 10_000),
        ("queue", 10_000, 610_000),
        ("train", 610_000, 7_200_000),
        ("harvest", 7_200_000, 7_201_000),
        ("judge", 7_201_000, 7_202_000),
    ]
    for each in (passed, trial):
        assert (each["start"] - ms, each["stop"] - ms) == (0, 7_202_000)
    assert [step["status"] for step in broken["steps"][0]["steps"]] == ["passed", "broken"]
    labels = [(label["name"], label["value"]) for label in passed["labels"]]
    for label in (("parentSuite", "aisbench"), ("suite", "passed"), ("feature", "passed"), ("platform", "local")):
        assert labels.count(label) == 1
    assert len([name for name, _ in labels if name == "suite"]) == 1
    assert {"name": "owner", "value": "platform"} in broken["labels"]
    parameters = {each["name"]: each["value"] for each in passed["parameters"]}
    assert parameters["throughput"] == "1600 images/s"
    assert parameters["nodes"] == "2"
    assert all(each["excluded"] for each in passed["parameters"])  # or its history would break
    kinds = [one["type"] for one in passed["attachments"]]
    assert {"image/svg+xml", "text/plain", "application/json"} == set(kinds)
    assert not [
        one for result in found.values() for one in attachments(result) if not (folder / one["source"]).is_file()
    ]
    for result in found.values():
        for one in attachments(result):
            body = (folder / one["source"]).read_bytes()
            if one["type"] == "image/svg+xml":
                ET.fromstring(body)
            elif one["type"] == "application/json":
                json.loads(body)

    categories = json.loads((folder / "categories.json").read_text())
    for name, category in (("slow", "Workload (FAILED)"), ("broken", "Platform (BROKEN)")):
        assert matching(categories, found[f"test_trains[{name}]"]) == [category]
    lines = (folder / "environment.properties").read_text(encoding="ascii").splitlines()
    assert {"run=run-1", "platform=local", "nodes=1,2,4"} <= set(lines)


def attachments(result: dict[str, Any]) -> list[dict[str, str]]:
    return [one for part in (result, *result.get("steps", ())) for one in part.get("attachments", ())]


def matching(categories: list[dict[str, Any]], result: dict[str, Any]) -> list[str]:
    return [
        category["name"]
        for category in categories
        if result["status"] in category["matchedStatuses"]
        and re.fullmatch(category["messageRegex"], result["statusDetails"]["message"])
    ]


@WORKERS
def test_reports_the_user_asked_for_stay_where_they_are(
    run: Run, pytester: pytest.Pytester, workers: list[str]
) -> None:
    result = run(*workers, "--html=mine/page.html", "--junitxml=mine/x.xml", "--alluredir=mine/allure")

    result.assert_outcomes(passed=2, failed=2, errors=1)
    assert {path.name for path in (pytester.path / "reports" / "run-1").iterdir()} == {"results.json"}
    mine = pytester.path / "mine"
    found = page(mine / "page.html")
    assert found["title"] == "page.html"
    (passed,) = rows(found, "[passed]")
    assert ">PASSED<" in passed["resultsTableRow"][2]
    assert passed["resultsTableRow"][3].endswith("1600 images/s</td>")
    href = "../reports/run-1/logs/passed-2x8/1/worker%200.log"
    assert ("a", {"href": href}) in tags(passed["details"])
    check_junit(mine / "x.xml")
    check_allure(mine / "allure")


def test_a_run_without_a_workload_writes_nothing(run: Run, pytester: pytest.Pytester) -> None:
    run(source=PLAIN).assert_outcomes(passed=1)

    assert not (pytester.path / "reports").exists()


def test_a_module_that_cannot_be_collected_is_in_every_report(run: Run, pytester: pytest.Pytester) -> None:
    pytester.makepyfile(test_torn="import nothing_of_this_name")

    run("--continue-on-collection-errors", "-k", "passed or torn").assert_outcomes(passed=1, errors=1, deselected=4)

    folder = pytester.path / "reports" / "run-1"
    (torn,) = rows(page(folder / "report.html"), "test_torn")
    assert torn["result"] == "Error"
    assert ET.parse(folder / "junit.xml").getroot()[0].get("errors") == "1"


@pytest.mark.parametrize("host", ["html", "junitxml", "allure_pytest"])
def test_a_host_that_is_not_there_costs_its_report_only(run: Run, pytester: pytest.Pytester, host: str) -> None:
    result = run("-p", f"no:{host}", "-k", "passed")

    result.assert_outcomes(passed=1, warnings=1, deselected=4)
    result.stdout.fnmatch_lines([f"*is not written: the pytest plugin '{host}' is not loaded*"])
    missing = {"html": "report.html", "junitxml": "junit.xml", "allure_pytest": "allure-results"}[host]
    everything = {"results.json", "report.html", "junit.xml", "allure-results"}
    assert {path.name for path in (pytester.path / "reports" / "run-1").iterdir()} == everything - {missing}


def test_a_host_of_another_make_is_a_warning(run: Run, pytester: pytest.Pytester) -> None:
    amend(
        pytester,
        "import pytest_html.basereport, allure_commons.reporter, _pytest.junitxml",
        "del pytest_html.basereport.BaseReport.pytest_sessionstart",
        "theirs = allure_commons.reporter.AllureReporter.get_test",
        "def get_test(self, uuid):",
        "    return theirs(self, uuid) if uuid else self.no_such_thing",
        "allure_commons.reporter.AllureReporter.get_test = get_test",
        "del _pytest.junitxml.LogXML.add_global_property",
    )

    result = run("-k", "passed")

    result.assert_outcomes(passed=1, warnings=3, deselected=4)
    result.stdout.fnmatch_lines_random(
        [
            "*aisbench: no report.html: AttributeError*",
            "*aisbench: no suite properties in junit.xml: AttributeError*",
            "*aisbench: a result of allure-pytest's is not found: AttributeError*",
        ]
    )


def test_a_test_that_fails_after_its_verdict_is_not_shown_as_passed(run: Run, pytester: pytest.Pytester) -> None:
    source = TRAINS.replace("    trial.verdict.require()", "    assert trial.number == 2")
    amend(
        pytester,
        "from dataclasses import replace",
        "now = replace(ENTRIES['passed-2x8'], verdict=Ruling.FAILED, reason='its test failed in call')",
        "ENTRIES['passed-2x8'] = now",
    )

    run("-k", "passed", source=source).assert_outcomes(failed=1, deselected=4)

    folder = pytester.path / "reports" / "run-1"
    (row,) = rows(page(folder / "report.html"), "[passed]")
    assert ">FAILED<" in row["resultsTableRow"][2]
    assert "its test failed in call" in row["details"]
    case = next(ET.parse(folder / "junit.xml").getroot().iter("testcase"))
    assert properties(case)["aisbench.verdict"] == "FAILED"
    assert properties(case)["aisbench.reason"] == "its test failed in call"


def test_a_test_that_fails_in_its_teardown_has_the_last_word(run: Run, pytester: pytest.Pytester) -> None:
    """A host may not show what was decided before: the controller tells the case again."""
    amend(
        pytester,
        "from dataclasses import replace",
        "@pytest.fixture(autouse=True)",
        "def fails_late(kind, trial):",
        "    yield",
        "    late = replace(ENTRIES['passed-2x8'], verdict=Ruling.FAILED, reason='its test failed in teardown')",
        "    ENTRIES['passed-2x8'] = late",
        "    raise RuntimeError",
    )

    run("-k", "passed").assert_outcomes(passed=1, errors=1, deselected=4)

    folder = pytester.path / "reports" / "run-1"
    call, _ = rows(page(folder / "report.html"), "[passed]")
    assert ">FAILED<" in call["resultsTableRow"][2]
    assert "its test failed in teardown" in call["details"]
    case = next(ET.parse(folder / "junit.xml").getroot().iter("testcase"))
    assert properties(case)["aisbench.verdict"] == "FAILED"


def test_a_test_that_was_interrupted_has_a_name_and_has_not_passed(run: Run, pytester: pytest.Pytester) -> None:
    source = TRAINS.replace("    trial.verdict.require()", "    raise KeyboardInterrupt")

    assert run("-k", "passed", source=source).ret == pytest.ExitCode.INTERRUPTED

    (case,) = strictly(pytester.path / "reports" / "run-1" / "junit.xml").iter("testcase")
    assert case.get("name") == "test_trains[passed]"
    skipped = case.find("skipped")
    assert skipped is not None
    assert skipped.get("message") == "the run ended before this test did"
