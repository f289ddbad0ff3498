"""Never green by accident: whatever a test, a plugin or a worker does, the ledger decides."""

from __future__ import annotations

import json
from pathlib import Path
from xml.etree import ElementTree as ET

import pytest
from junit_schema import properties, strictly
from waiting import wait_until
from yard import SCRIPT, THRESHOLDS, WORKERS, Yard, submitted

pytestmark = pytest.mark.slow

HARD = THRESHOLDS.replace("at_least = 1 ", "at_least = 1e9 ")
HEAD = 'import pytest\n\npytestmark = pytest.mark.workload("{name}", nodes=[1])\n\n'
TRAINS = "def test_trains(trial):\n    trial.verdict.require()\n"
SLEEP = "import time\ntime.sleep(600)\n"


@WORKERS
def test_an_expected_failure_is_not_a_case_that_passed(yard: Yard, workers: list[str]) -> None:
    yard.suite("good")
    yard.suite("bad", thresholds=HARD, test=HEAD + "@pytest.mark.xfail(strict=False)\n" + TRAINS)
    ended = yard.pytest("suites", "--nodes", "1", *workers)
    assert ended.verdicts == {"bad-1x2": "FAILED", "good-1x2": "PASSED"}
    assert ended.code == ended.results["exit_code"] == 1


def test_a_skip_after_the_verdict_changes_nothing(yard: Yard) -> None:
    yard.suite(thresholds=HARD, test=HEAD + "def test_trains(trial):\n    pytest.skip('I saw nothing')\n")
    ended = yard.pytest("suites")
    assert ended.verdicts == {"toy-1x2": "FAILED"}
    assert ended.code == 1


@WORKERS
def test_a_run_whose_every_case_is_skipped_judged_nothing(yard: Yard, workers: list[str]) -> None:
    yard.suite(test=HEAD + "@pytest.mark.skip\n" + TRAINS + "\n\ndef test_ordinary():\n    pass\n")
    ended = yard.pytest("suites", *workers)
    assert ended.code == 5, ended.out
    assert not (yard.folder / "reports").exists()


@WORKERS
def test_an_ordinary_test_does_not_make_up_for_cases_that_nodes_left_out(yard: Yard, workers: list[str]) -> None:
    yard.suite(test=HEAD + TRAINS + "\n\ndef test_ordinary():\n    pass\n")
    assert yard.pytest("suites", "--nodes", "7", *workers).code == 5


def test_one_skipped_and_one_passed_is_what_was_asked_for(yard: Yard) -> None:
    yard.suite("a")
    yard.suite(
        "b", test=HEAD + "@pytest.fixture\ndef veto():\n    pytest.skip('no')\n\n\n" + TRAINS.replace("(", "(veto, ")
    )
    ended = yard.pytest("suites", "--nodes", "1")
    assert ended.verdicts == {"a-1x2": "PASSED", "b-1x2": None}
    assert ended.code == 0


def test_a_trial_that_was_asked_for_in_the_middle_is_required_too(yard: Yard) -> None:
    yard.suite(thresholds=HARD, test=HEAD + "def test_sly(stage, request):\n    request.getfixturevalue('trial')\n")
    ended = yard.pytest("suites")
    assert ended.code == 1
    assert ended.verdicts == {"toy-1x2": "FAILED"}


@WORKERS
def test_tests_of_a_case_that_nobody_trains_do_not_disturb(yard: Yard, workers: list[str]) -> None:
    test = """import pytest

@pytest.mark.workload("toy", nodes=[1])
def test_trains(trial):
    trial.verdict.require()

@pytest.mark.workload("toy", nodes=[1, 2])
def test_width(case):
    assert case.shape.devices == 2
"""
    yard.suite(test=test)
    ended = yard.pytest("suites", *workers)
    assert ended.code == 0, ended.out
    assert ended.verdicts == {"toy-1x2": "PASSED"}


def test_cases_that_are_only_staged_hold_no_place(yard: Yard) -> None:
    for name in ("a", "b"):
        yard.suite(name, test=HEAD + "def test_code(stage):\n    assert stage.code\n")
    yard.suite("c")
    ended = yard.pytest("suites", "--nodes", "1", "--aisbench-max-jobs", "1")
    assert ended.code == 0, ended.out


def test_numbers_beyond_all_numbers_fail_their_own_case_only(yard: Yard) -> None:
    yard.suite("vast", script=SCRIPT.replace('"12.5"', '"1.5e308"'))
    yard.suite("good")
    ended = yard.pytest("suites", "--nodes", "1")
    assert ended.verdicts == {"good-1x2": "PASSED", "vast-1x2": "FAILED"}
    assert "throughput_0.json says 1.5e+308, beyond" in " ".join(ended.out.split())


@pytest.mark.slow
def test_workers_share_one_private_cloud(yard: Yard) -> None:
    body = "def test_{n}(modelarts_session):\n    Path('seen-{n}').write_text(modelarts_session.endpoint)\n\n\n"
    bodies = "".join(body.replace("{n}", str(number)) for number in range(4))
    yard.suite(test=f"from pathlib import Path\n\n\n{bodies}")
    ended = yard.pytest("suites", "-n", "2", cloud=False)
    assert ended.code == 0, ended.out
    endpoints = [file.read_text() for file in yard.folder.glob("seen-*")]
    assert len(endpoints) == 4
    assert len(set(endpoints)) == 1


def test_a_condition_that_cannot_be_evaluated_is_that_tests_own_error(yard: Yard) -> None:
    yard.suite("odd", test=HEAD + "@pytest.mark.skipif('nonsense_name')\n" + TRAINS)
    yard.suite("good")
    ended = yard.pytest("suites", "--nodes", "1")
    assert ended.code == 1
    assert ended.verdicts == {"good-1x2": "PASSED"}


@pytest.mark.slow
def test_a_worker_that_dies_takes_its_case_with_it(yard: Yard) -> None:
    yard.suite("good")
    yard.suite("dies", test=HEAD + "def test_trains(trial):\n    import os\n    os._exit(1)\n")
    ended = yard.pytest("suites", "--nodes", "1", "-n", "2", "--max-worker-restart", "0")
    assert ended.code != 0
    assert ended.verdicts["dies-1x2"] == "FAILED"
    assert "crashed" in ended.out


@WORKERS
@pytest.mark.slow
def test_x_does_not_wait_for_a_long_job(yard: Yard, workers: list[str]) -> None:
    yard.suite("long", script=SLEEP)
    (yard.folder / "suites" / "test_ordinary.py").write_text("def test_ordinary():\n    assert not 1\n")
    ended = yard.pytest("suites/test_ordinary.py", "suites/long", "--nodes", "1", "-x", *workers)
    assert ended.code == 1, ended.out


@WORKERS
def test_a_test_that_fails_after_its_verdict_is_told_alike_everywhere(yard: Yard, workers: list[str]) -> None:
    yard.suite(test=HEAD + "def test_more(trial):\n    trial.verdict.require()\n    assert trial.number == 2\n")
    ended = yard.pytest("suites", *workers)
    assert ended.code == 1
    assert ended.verdicts == {"toy-1x2": "FAILED"}
    (result,) = (ended.reports / "allure-results").glob("*-result.json")
    labels = {label["name"]: label["value"] for label in json.loads(result.read_text())["labels"]}
    assert labels["verdict"] == "FAILED"
    properties = {
        each.get("name"): each.get("value") for each in ET.parse(ended.reports / "junit.xml").iter("property")
    }
    assert properties["aisbench.verdict"] == "FAILED"


@WORKERS
def test_an_earlier_test_of_a_case_does_not_keep_an_old_verdict(yard: Yard, workers: list[str]) -> None:
    late = "def test_a(trial):\n    trial.verdict.require()\n\n\ndef test_b(trial):\n    assert trial.number == 2\n"
    yard.suite(test=HEAD + late)
    ended = yard.pytest("suites", *workers, *(["--dist", "loadfile"] if workers else []))
    assert ended.code == 1
    suite = strictly(ended.reports / "junit.xml")
    assert properties(suite)["aisbench.exit_code"] == "1"
    told = {case.get("name"): properties(case) for case in suite.iter("testcase")}
    assert {name: facts["aisbench.verdict"] for name, facts in told.items()} == {
        "test_a[toy-1x2]": "FAILED",
        "test_b[toy-1x2]": "FAILED",
    }
    assert told["test_a[toy-1x2]"]["aisbench.throughput.unit"] == "images/s"
    assert told["test_a[toy-1x2]"]["aisbench.shape"] == "1x2"


def test_a_collection_error_submits_nothing(yard: Yard, card: Path) -> None:
    yard.suite()
    (yard.folder / "suites" / "test_broken.py").write_text("import no_such_module\n")
    before = submitted(card)
    assert yard.pytest("suites", "--nodes", "1").code == 2
    assert submitted(card) == before


@pytest.mark.slow
def test_with_xdist_what_could_be_collected_is_judged_and_the_run_is_red(yard: Yard) -> None:
    """xdist goes on after an error of collection, so the job is not in vain."""
    yard.suite()
    (yard.folder / "suites" / "test_broken.py").write_text("import no_such_module\n")
    ended = yard.pytest("suites", "--nodes", "1", "-n", "2")
    assert ended.code == ended.results["exit_code"] == 1
    assert ended.verdicts == {"toy-1x2": "PASSED"}


def test_what_a_user_records_stays(yard: Yard) -> None:
    fixture = """@pytest.fixture(autouse=True)
def note(request):
    request.node.user_properties.append(("commit", "abc"))


"""
    yard.suite(test=HEAD + fixture + TRAINS)
    ended = yard.pytest("suites")
    names = [each.get("name") for each in ET.parse(ended.reports / "junit.xml").iter("property")]
    assert "commit" in names
    assert "aisbench.verdict" in names


def test_sigterm_is_not_swallowed(yard: Yard) -> None:
    test = """def test_deaf(trial):
    import time
    open("ready", "w").close()
    try:
        time.sleep(60)
    except Exception:
        pass
"""
    yard.suite(test=HEAD + test)
    run = yard.start()
    wait_until((yard.folder / "ready").exists)
    run.terminate()
    out, _ = run.communicate()
    assert run.returncode == 143, out
    assert json.loads((yard.folder / "reports/latest/results.json").read_text())["exit_code"] == 143


@pytest.mark.skipif(not Path("/proc").is_dir(), reason="finds the cloud in /proc")
@pytest.mark.slow(seconds=15)
def test_a_cloud_that_dies_does_not_keep_anybody_waiting(yard: Yard) -> None:
    """Its jobs are lost with it, and the case is BROKEN at once."""
    kill = """import os, pathlib, signal, threading, time

def pytest_sessionstart(session):
    threading.Thread(target=kill, daemon=True).start()

def kill():
    while not (found := clouds()):
        time.sleep(0.05)
    time.sleep(1)
    os.kill(found[0], signal.SIGKILL)

def clouds():
    found = []
    for entry in pathlib.Path("/proc").iterdir():
        try:
            line = (entry / "cmdline").read_bytes()
            mine = int((entry / "stat").read_text().rsplit(")", 1)[1].split()[1]) == os.getpid()
        except (OSError, ValueError, IndexError):
            continue
        if mine and b"pytest_aisbench.localcloud" in line:
            found.append(int(entry.name))
    return found
"""
    yard.suite(script=SLEEP)
    (yard.folder / "conftest.py").write_text(kill)
    ended = yard.pytest("suites", "--nodes", "1", cloud=False, tester_patience=0.5)
    assert ended.code == 12, ended.out
    assert "the local cloud ended" in ended.out
