"""Each fixture alone in a suite of a user's own; asking twice never submits twice."""

from __future__ import annotations

import json
import re
from pathlib import Path

import pytest
from yard import SCRIPT, WORKERS, WORKLOAD, Yard, submitted

MARK = 'import pytest\nfrom pytest_aisbench import Phase\n\npytestmark = pytest.mark.workload("{name}", nodes=[1])\n\n'
BODIES = {
    "modelarts_session": """
def test_it(modelarts_session):
    assert modelarts_session.call("GET", "/v2/{project_id}/training-job-flavors")["flavors"]
    assert "***" in repr(modelarts_session) or "secret" not in repr(modelarts_session).lower()
""",
    "obs": """
def test_it(obs, tmp_path):
    from pytest_aisbench import StoreUrl, Upload
    url = StoreUrl.parse("obs://aisbench/of-a-test/hello.txt")
    obs.write(url, b"hello")
    assert obs.read(url) == obs.read("obs://aisbench/of-a-test/hello.txt") == b"hello"
    ours = obs.root / "of-a-test/"
    (tmp_path / "file").write_bytes(b"file")
    obs.upload([Upload(str(tmp_path / "file"), f"{ours}file", 4)])
    assert [str(head.url) for head in obs.objects(str(ours))] == [f"{ours}file"]
    assert (obs.head(f"{ours}file").size, obs.download(str(ours), str(tmp_path / "all"))) == (4, ["file"])
    obs.delete(str(ours))
    assert obs.head(f"{ours}file") is None
    obs.check(str(obs.root))
    assert str(obs.root) in repr(obs)
""",
    "case": """
def test_it(case):
    assert (case.id, case.shape.world, case.workload.entry) == ("toy-1x2", 2, "train.py")
""",
    "stage": """
def test_it(stage, obs):
    assert obs.head(stage.code / "train.py")
    assert list(obs.objects(stage.outputs)) == []
""",
    "job": """
def test_it(job):
    assert job.phase is Phase.SUCCEEDED
    assert job.platform_phase == "Completed"
""",
    "trial": """
def test_it(trial):
    trial.verdict.require()
    assert [m.rank for m in trial.measurements if m.metric == "throughput"] == [0, 1]
    assert (trial.throughput, trial.accuracy) == (trial.metrics["throughput"], trial.metrics["accuracy"]) == (25, 0.9)
""",
}


@pytest.mark.slow
@WORKERS
@pytest.mark.parametrize("fixture", BODIES)
def test_a_fixture_works_alone(yard: Yard, card: Path, fixture: str, workers: list[str]) -> None:
    yard.suite(test=MARK + BODIES[fixture])
    before = submitted(card)
    ended = yard.pytest("suites", *workers)
    assert ended.code == 0, ended.out
    assert "1 passed" in ended.out
    assert submitted(card) == before + (fixture in {"job", "trial"})


@WORKERS
def test_many_tests_of_one_case_share_one_job(yard: Yard, card: Path, workers: list[str]) -> None:
    bodies = [BODIES[name].replace("test_it", f"test_{name}") for name in ("stage", "job", "trial")]
    again = BODIES["trial"].replace("test_it", "test_again")
    yard.suite(test=MARK + "".join(bodies).replace("assert list(obs.objects(stage.outputs)) == []", "pass") + again)
    before = submitted(card)
    ended = yard.pytest("suites", *workers)
    assert ended.code == 0, ended.out
    assert "4 passed" in ended.out
    assert submitted(card) == before + 1
    assert ended.verdicts == {"toy-1x2": "PASSED"}


@pytest.mark.slow
def test_a_private_cloud_serves_workers_too(yard: Yard) -> None:
    yard.suite(test=MARK + BODIES["obs"] + BODIES["trial"].replace("test_it", "test_trains"))
    ended = yard.pytest("suites", "-n", "2", cloud=False)
    assert ended.code == 0, ended.out
    assert "2 passed" in ended.out


def test_a_test_that_forgets_its_verdict_is_not_green(yard: Yard) -> None:
    yard.suite(
        test=MARK + "def test_forgets(trial):\n    pass\n",
        thresholds='[local."*"]\nthroughput = { at_least = 1e9 }\naccuracy = { at_least = 0.5 }\n',
    )
    ended = yard.pytest("suites")
    assert ended.code == 1
    assert "FAILED: throughput 25 images/s, wanted >= 1000000000 images/s" in ended.out


def test_a_case_whose_test_fails_has_not_passed(yard: Yard) -> None:
    yard.suite(test=MARK + "def test_more(trial):\n    trial.verdict.require()\n    assert trial.number == 2\n")
    ended = yard.pytest("suites")
    assert ended.code == 1
    assert ended.verdicts == {"toy-1x2": "FAILED"}
    reason = ended.results["cases"][0]["reason"]
    assert reason.startswith("its test failed in call: ")
    assert "assert 1 == 2" in reason


LOSS = """import pathlib, sys
print("epoch: 1 step: 5, loss is 2.5\\nepoch: 2 step: 5, loss is 1.5", flush=True)
"""
WRITES_LOSS = "    write('loss', '0.25')\n"


@pytest.mark.parametrize(
    ("script", "workload", "loss"),
    [(LOSS + SCRIPT, WORKLOAD, 1.5), (LOSS + SCRIPT + WRITES_LOSS, WORKLOAD + '[metrics.loss]\nunit = ""\n', 0.25)],
    ids=["by its log", "by its script"],
)
def test_a_test_reads_metrics_by_their_names(yard: Yard, script: str, workload: str, loss: float) -> None:
    body = f'def test_it(trial):\n    assert trial.metrics["loss"] == {loss}\n    trial.metrics["acuracy"]\n'
    yard.suite(script=script, workload=workload, test=MARK + body)
    ended = yard.pytest("suites")
    assert "the metric 'acuracy' was not measured; did you mean 'accuracy'?" in ended.out


@WORKERS
def test_an_error_in_a_test_is_the_tests_fault_and_not_the_workloads(yard: Yard, workers: list[str]) -> None:
    yard.suite(test=MARK + "def test_more(trial):\n    trial.verdict.require()\n    assert trail.number == 1\n")
    ended = yard.pytest("suites", *workers)
    assert (ended.code, ended.verdicts) == (1, {"toy-1x2": "INCONCLUSIVE"}), ended.out
    (case,) = ended.results["cases"]
    error = "NameError: name 'trail' is not defined"
    assert case["reason"].startswith("its test ended by an error in call, so that what it checks is not known: ")
    assert error in case["reason"]
    assert {finding["outcome"] for finding in case["findings"]} == {"met"}, "the workload did what it should"
    terminal = " ".join(ended.out.split())
    assert "the test itself is wrong: correct it, then run it again" in terminal
    assert "the workload is to blame" not in terminal
    junit = (ended.reports / "junit.xml").read_text()
    assert 'name="aisbench.verdict" value="INCONCLUSIVE"' in junit
    assert 'failures="1"' in junit
    (result,) = [json.loads(file.read_text()) for file in (ended.reports / "allure-results").glob("*-result.json")]
    assert (result["status"], error in result["statusDetails"]["message"]) == ("failed", True)
    assert {"name": "owner", "value": "test"} in result["labels"]
    assert "aisbench: exit code 1" in (ended.reports / "summary.md").read_text()


def test_an_error_in_a_test_hides_no_verdict_that_is_not_passed(yard: Yard) -> None:
    yard.suite(
        test=MARK + "def test_more(trial):\n    assert trail.number == 1\n",
        thresholds='[local."*"]\nthroughput = { at_least = 1e9 }\naccuracy = { at_least = 0.5 }\n',
    )
    ended = yard.pytest("suites")
    assert (ended.code, ended.verdicts) == (1, {"toy-1x2": "FAILED"})
    assert "throughput 25 images/s" in ended.results["cases"][0]["reason"]


JOB_ENDS_WELL = "def test_it(job):\n    assert job.phase is Phase.SUCCEEDED, job.reason\n"


def test_tests_of_jobs_alone_say_what_their_exit_code_means_and_run_a_job_each_time(yard: Yard, card: Path) -> None:
    yard.suite(test=MARK + JOB_ENDS_WELL)
    before = submitted(card)
    for _ in range(2):
        ended = yard.pytest("suites")
        assert (ended.code, ended.verdicts) == (0, {"toy-1x2": None}), ended.out
        assert "toy-1x2 not judged: its tests ask for no verdict" in ended.out
        assert "exit code 0: the tests passed; they asked for no verdict on 1 case" in ended.out
        assert "every selected case passed" not in (ended.reports / "summary.md").read_text()
        assert "rank 1 of 2" in (ended.reports / "logs/toy-1x2/1/worker-0.log").read_text()
    assert submitted(card) == before + 2


@pytest.mark.parametrize("version", ["V1", "V2"])
def test_a_job_that_fails_at_once_leaves_its_log_and_its_reason(yard: Yard, version: str) -> None:
    yard.suite(script="import sys; sys.exit('no memory left')", test=MARK + JOB_ENDS_WELL)
    ended = yard.pytest("suites", "--aisbench-modelarts-version", version)
    assert (ended.code, ended.verdicts) == (1, {"toy-1x2": "FAILED"}), ended.out
    assert re.search(r"AssertionError: the job failed[^:]*: no memory left \(logs/toy-1x2/1/", ended.out), ended.out
    assert "no memory left" in (ended.reports / "logs/toy-1x2/1/worker-0.log").read_text()


def test_why_a_case_was_skipped_is_printed_without_asking(yard: Yard) -> None:
    yard.suite(test=MARK + BODIES["trial"], workload='framework = "torch"\n' + WORKLOAD)
    ended = yard.pytest("suites", "--aisbench-frameworks", "torch=/there/is/no/python", cloud=False)
    assert (ended.code, "1 skipped" in ended.out) == (5, True), ended.out
    assert "skipped: toy-1x2: torch is not installed for /there/is/no/python" in " ".join(ended.out.split())


def test_a_fixture_without_its_marker_says_what_to_write(yard: Yard) -> None:
    yard.suite(test="def test_it(trial):\n    pass\n")
    ended = yard.pytest("suites")
    assert ended.code == 1
    assert 'has no workload; mark it @pytest.mark.workload("name", nodes=[1])' in ended.out
