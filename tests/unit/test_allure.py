"""What Allure is told: pure functions of entries."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

from pytest_aisbench.cli.report import without_network
from pytest_aisbench.engine.run import executor
from pytest_aisbench.errors import PlatformError
from pytest_aisbench.ledger.runs import PastRun, RecordedTest
from pytest_aisbench.model.results import SCHEMA, CaseEntry, RunEntry
from pytest_aisbench.model.verdict import Ruling
from pytest_aisbench.report import allure, ci
from pytest_aisbench.report.host_plugins import ReportedTest
from pytest_aisbench.report.page_case import CaseContext, case_details
from pytest_aisbench.testing import HOSTILE, case_entry

NODE = "suites/toy/test_toy.py::test_trains[toy-1x2]"


def run(*cases: CaseEntry, **changes: Any) -> RunEntry:
    settings = {"platform": "local", "nodes": [2]}
    entry = RunEntry(SCHEMA, "run-1", "2023-11-14T22:13:20.000Z", "2023-11-14T22:14:20.000Z", 0, settings, cases)
    return replace(entry, **changes)


def story(outcome: str = "failed", when: str = "call", text: str = "") -> ReportedTest:
    return ReportedTest(NODE, "toy-1x2", outcome, when, text, 10.0, 11.0, "u", is_over=True)


@pytest.mark.parametrize(
    ("outcome", "when", "verdict", "status"),
    [
        ("passed", "call", Ruling.PASSED, "passed"),
        ("failed", "call", Ruling.FAILED, "failed"),
        ("failed", "setup", Ruling.BROKEN, "broken"),
        ("failed", "call", Ruling.INCONCLUSIVE, "failed"),
        ("failed", "call", None, "failed"),
        ("failed", "setup", None, "broken"),
        ("skipped", "setup", None, "skipped"),
        ("passed", "call", Ruling.FAILED, "passed"),  # another test of the same case failed
    ],
)
def test_a_status_says_who_is_to_blame(outcome: str, when: str, verdict: Ruling | None, status: str) -> None:
    assert story(outcome, when).status(case_entry(verdict)) == status


def test_a_test_that_was_interrupted_has_not_passed() -> None:
    assert ReportedTest(NODE, start=1.0, stop=2.0).status(None) == "skipped"


@pytest.mark.parametrize(
    ("verdict", "category"),
    [
        (Ruling.FAILED, "Workload (FAILED)"),
        (Ruling.BROKEN, "Platform (BROKEN)"),
        (Ruling.INCONCLUSIVE, "Noise (INCONCLUSIVE)"),
    ],
)
def test_a_category_tells_workload_platform_and_noise_apart(verdict: Ruling, category: str) -> None:
    import re

    case = case_entry(verdict, HOSTILE)
    result = allure.amended_result(allure.new_result(story()), story(), case, run(case))

    matching = [
        each["name"]
        for each in allure.CATEGORIES
        if result["status"] in each["matchedStatuses"]
        and re.fullmatch(str(each["messageRegex"]), result["statusDetails"]["message"])
    ]
    assert matching == [category]


def test_every_trial_is_a_step_and_the_last_has_the_verdict() -> None:
    case = case_entry(Ruling.FAILED)
    (trial,) = case.trials
    lost = replace(trial, phase="LOST", times={"stage": 1.0, "done": 2.0})
    case = replace(case, trials=(lost, replace(trial, trial=2, times={"stage": 3.0, "judge": 4.0, "done": 5.0})))

    result = allure.amended_result({}, story(), case, run(case))

    assert [(step["name"].split(":")[0], step["status"]) for step in result["steps"]] == [
        ("trial 1", "broken"),
        ("trial 2", "failed"),
    ]
    assert (result["start"], result["stop"]) == (1000, 5000)


def test_told_twice_is_told_once() -> None:
    case = case_entry(Ruling.FAILED)
    once = allure.amended_result(allure.new_result(story()), story(), case, run(case))

    assert allure.amended_result(once, story(), case, run(case)) == once


@pytest.mark.parametrize(
    ("url", "shown"),
    [
        ("https://console.example/job?id=1", True),
        ("http://127.0.0.1:1/jobs", True),
        ("javascript:alert(1)", False),
        ("data:text/html,x", False),
        ("https://me:secret@console.example/", False),
        ("", False),
        ("https://[", False),
        ("https://console.example/'onclick='x", False),
        ("https://console.example/a b", False),
    ],
)
def test_only_an_address_of_the_web_becomes_a_link_in_any_report(url: str, shown: bool) -> None:
    case = case_entry(Ruling.FAILED)
    case = replace(case, trials=(replace(case.trials[0], console=url, job_id="7"),))

    assert allure.links_of(case, run(case)) == ([("console", url)] if shown else [])
    assert ("[console](<" in ci.markdown_summary(run(case))) is shown
    assert ("Console: <a" in case_details(case, CaseContext(str))) is shown


def test_the_tester_is_linked_unless_it_ended_with_the_run() -> None:
    case = case_entry(Ruling.PASSED)
    told = {"case": case.id, "state": "delivered", "why": ""}
    uploads = (
        {**told, "tester": "https://tester.example"},
        {**told, "tester": "http://127.0.0.1:1 (private local cloud)"},
    )

    assert allure.links_of(case, run(case, uploads=uploads)) == [("Tester", "https://tester.example")]


def test_a_crashed_test_is_named_as_allure_pytest_names_it() -> None:
    result = allure.new_result(
        ReportedTest("suites/toy/test_toy.py::TestToy::test_trains[x-1x2]", text="E  boom", stop=1.0, start=1.0)
    )

    assert result["fullName"] == "suites.toy.test_toy.TestToy#test_trains"
    assert result["name"] == "test_trains[x-1x2]"
    assert result["titlePath"] == ["suites", "toy", "test_toy.py", "TestToy"]


@pytest.mark.parametrize(
    ("variables", "wanted"),
    [
        (
            {"JENKINS_URL": "x", "BUILD_NUMBER": "7", "BUILD_URL": "https://u:token@ci/job/7/?t=1", "JOB_NAME": "gate"},
            {"name": "Jenkins", "type": "jenkins", "buildName": "gate #7", "buildOrder": 7, "buildUrl": "https://ci/job/7/"},
        ),
        (
            {"GITLAB_CI": "1", "CI_PIPELINE_IID": "3", "CI_JOB_URL": "https://git/-/jobs/9", "CI_PROJECT_PATH": "a/b"},
            {"name": "GitLab", "type": "gitlab", "buildName": "a/b #3", "buildOrder": 3, "buildUrl": "https://git/-/jobs/9"},
        ),
        (
            {
                "GITHUB_ACTIONS": "true", "GITHUB_SERVER_URL": "https://github.com", "GITHUB_REPOSITORY": "a/b",
                "GITHUB_RUN_ID": "5", "GITHUB_RUN_NUMBER": "2", "GITHUB_WORKFLOW": "gate", "GITHUB_TOKEN": "secret",
            },
            {
                "name": "GitHub", "type": "github", "buildName": "gate #2", "buildOrder": 2,
                "buildUrl": "https://github.com/a/b/actions/runs/5",
            },
        ),
        ({"JENKINS_URL": "x"}, {"name": "Jenkins", "type": "jenkins", "buildName": "run-1"}),
        (
            {"GITLAB_CI": "1", "CI_JOB_URL": "javascript:alert(1)", "CI_PROJECT_PATH": "a/b"},
            {"name": "GitLab", "type": "gitlab", "buildName": "a/b"},
        ),
        ({}, {"name": "local", "type": "local", "buildName": "run-1"}),
    ],
)  # fmt: skip
def test_the_executor_is_the_ci_server_whose_variables_are_set(
    variables: dict[str, str], wanted: dict[str, Any]
) -> None:
    assert allure.executor(executor(variables), "run-1") == {**wanted, "reportName": "aisbench run-1"}


def test_the_environment_is_plain_ascii_whatever_a_setting_holds() -> None:
    told = allure.environment(run(settings={"platform": f"{HOSTILE}\nrun=other", "nodes": [1, 2]}))

    told.encode("ascii")
    lines = told.splitlines()
    assert "nodes=1,2" in lines
    assert [line for line in lines if line.startswith("run=")] == ["run=run-1"]


def test_histories_of_both_allures_find_a_case_by_the_same_name() -> None:
    tests = [RecordedTest(NODE, "toy-1x2", "broken", 5.0, 7.5)]
    past = [PastRun("run-2", 20.0, tests, {"toy-1x2.throughput": 25.0}), PastRun("run-1", 10.0, tests, {})]
    case = case_entry(Ruling.PASSED)
    result = allure.amended_result({}, story("passed"), case, run(case))

    known = allure.history(past)[result["historyId"]]
    assert known["statistic"]["broken"] == 2
    assert [item["uid"] for item in known["items"]] == ["run-2", "run-1"]
    assert known["items"][0]["time"] == {"start": 5000, "stop": 7500, "duration": 2500}
    assert [point["buildOrder"] for point in allure.trend(past)] == [2, 1]
    first, _ = allure.history_lines(past).splitlines()
    assert '"uuid": "run-1"' in first  # the oldest first


def test_the_page_is_left_alone_by_strangers() -> None:
    tag = (
        '<script async src="https://www.googletagmanager.com/gtag/js?id=G-1"></script>\n<script>\n'
        "function gtag(){dataLayer.push(arguments);}\ngtag('config', 'G-1', {});\n</script>"
    )
    page = "<html><head><title>x</title></head><body><a href='https://allurereport.org'>a</a>{}</body></html>"

    clean = without_network(page.format(tag))
    assert "gtag" not in clean
    assert "Content-Security-Policy" in clean
    with pytest.raises(PlatformError, match=r"https://cdn\.example/x\.js"):
        without_network(page.format("<script src='https://cdn.example/x.js'></script>"))
    with pytest.raises(PlatformError, match="googletagmanager"):
        without_network(page.format("<script>load('googletagmanager')</script>"))
