"""Each fixture alone in a suite of a user's own; asking twice never submits twice."""

from __future__ import annotations

from pathlib import Path

import pytest
from yard import WORKERS, Yard, submitted

MARK = 'import pytest\nfrom pytest_aisbench import Phase\n\npytestmark = pytest.mark.workload("{name}", nodes=[1])\n\n'
BODIES = {
    "modelarts_session": """
def test_it(modelarts_session):
    assert modelarts_session.call("GET", "/v2/{project_id}/training-job-flavors")["flavors"]
    assert "***" in repr(modelarts_session) or "secret" not in repr(modelarts_session).lower()
""",
    "obs": """
def test_it(obs):
    from pytest_aisbench import StoreUrl
    url = StoreUrl.parse("obs://aisbench/of-a-test/hello.txt")
    obs.write(url, b"hello")
    assert obs.read(url) == b"hello"
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
""",
}


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


def test_a_fixture_without_its_marker_says_what_to_write(yard: Yard) -> None:
    yard.suite(test="def test_it(trial):\n    pass\n")
    ended = yard.pytest("suites")
    assert ended.code == 1
    assert 'has no workload; mark it @pytest.mark.workload("name", nodes=[1])' in ended.out
