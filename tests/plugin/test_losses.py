"""What gets lost on the way: a job, a worker of xdist, somebody's patience. The run goes on, or says what it left."""

from __future__ import annotations

import json
import os
import re
import signal
import sys
import xml.etree.ElementTree as ET
from collections.abc import Iterator
from pathlib import Path

import pytest
from cloud_client import CloudClient
from waiting import wait_until
from yard import SCRIPT, TEST, WORKERS, Gate, Yard

from pytest_aisbench.ledger.runs import JobLedger
from pytest_aisbench.model.clock import SystemClock
from pytest_aisbench.model.trial import Trial

pytestmark = [
    pytest.mark.slow,
    pytest.mark.skipif(sys.platform != "linux", reason="kills processes by what /proc tells of them"),
]


@pytest.fixture
def cloud(own_card: Path) -> Iterator[CloudClient]:
    with CloudClient(json.loads(own_card.read_text())) as client:
        yield client


def in_flight(yard: Yard) -> Trial:
    ledger = JobLedger(yard.folder / "reports" / "ledger.db")
    (held,) = ledger.in_flight(SystemClock().now())
    ledger.close()
    return held.trial


@pytest.mark.parametrize("fault", ["lost", "unstartable"])
def test_a_job_that_the_platform_lost_is_tried_again_and_both_are_reported(
    tmp_path: Path, own_card: Path, cloud: CloudClient, fault: str
) -> None:
    assert cloud.control("PUT", "faults", [{"job": fault, "times": 1}])[0] == 200
    yard = Yard(tmp_path, own_card)
    yard.suite()
    ended = yard.pytest("suites", "--nodes", "1")
    assert ended.code == 0, ended.out
    (case,) = ended.results["cases"]
    assert case["verdict"] == "PASSED"
    assert [(trial["trial"], trial["phase"]) for trial in case["trials"]] == [(1, "LOST"), (2, "SUCCEEDED")]
    assert "note: toy-1x2: tried again: the platform lost the job" in ended.out
    assert {path.name for path in (ended.reports / "requests").iterdir()} == {"toy-1x2.json", "toy-1x2.trial-2.json"}
    assert "tried again" in (ended.reports / "report.html").read_text(encoding="utf-8")


def test_with_one_trial_a_lost_job_is_broken(tmp_path: Path, own_card: Path, cloud: CloudClient) -> None:
    assert cloud.control("PUT", "faults", [{"job": "lost", "times": 1}])[0] == 200
    yard = Yard(tmp_path, own_card)
    yard.suite()
    ended = yard.pytest("suites", "--nodes", "1", "--aisbench-max-trials", "1")
    assert (ended.code, ended.verdicts) == (12, {"toy-1x2": "BROKEN"}), ended.out


def test_the_case_of_a_killed_worker_is_judged_by_another(tmp_path: Path, own_card: Path, cloud: CloudClient) -> None:
    gate, pids = Gate(), tmp_path / "pids"
    pids.mkdir()
    yard = Yard(tmp_path, own_card)
    yard.suite(script=gate.wait + SCRIPT, test="import pathlib, os\n" + TEST)
    (tmp_path / "suites" / "conftest.py").write_text(
        f"import os, pathlib\n\n\ndef pytest_runtest_setup(item):\n"
        f"    (pathlib.Path({str(pids)!r}) / str(os.getpid())).touch()\n"
    )
    run = yard.start("-n", "2")
    yard.wait_for_job()
    wait_until(lambda: list(pids.iterdir()))
    (worker,) = pids.iterdir()
    os.kill(int(worker.name), signal.SIGKILL)
    wait_until(lambda: len(list(pids.iterdir())) == 2)  # another has begun with it
    gate.open()
    out, _ = run.communicate()
    assert run.returncode == 0, out
    assert "1 passed, 1 rerun" in out
    (case,) = json.loads((tmp_path / "reports/latest/results.json").read_text())["cases"]
    assert case["verdict"] == "PASSED"
    assert cloud.search(offset=0, limit=5)["total"] == 1
    suite = ET.parse(tmp_path / "reports/latest/junit.xml").getroot()[0]
    assert (suite.get("tests"), suite.get("failures"), suite.get("errors")) == ("1", "0", "0")
    assert len(suite.findall("testcase")) == 1


def test_a_test_that_kills_its_workers_is_not_tried_for_ever(yard: Yard) -> None:
    deadly = "\n\ndef test_then_dies(trial):\n    import os\n    os._exit(9)\n"
    yard.suite(test=TEST.split("\n\ndef test_trains")[0] + deadly)
    ended = yard.pytest("suites", "--nodes", "1", "-n", "2")
    assert ended.code == 1, ended.out
    assert ended.verdicts == {"toy-1x2": "FAILED"}
    assert "crashed while running" in ended.out


# Kills a worker that has collected, before xdist sends it its first test, and waits until sending would fail.
_DIES_FIRST = """import contextlib, os, signal


def pytest_xdist_node_collection_finished(node):
    if node.gateway.id in VICTIMS:
        os.kill(node.gateway._rinfo().pid, signal.SIGKILL)
        with contextlib.suppress(EOFError):
            node.channel.waitclose(60)
"""


def test_a_worker_that_dies_before_its_first_test_is_replaced(yard: Yard) -> None:
    yard.suite()
    (yard.folder / "conftest.py").write_text(_DIES_FIRST.replace("VICTIMS", "('gw0', 'gw1')"))
    ended = yard.pytest("suites", "-n", "2")
    assert (ended.code, ended.verdicts) == (0, {"toy-1x2": "PASSED", "toy-2x2": "PASSED"}), ended.out


def test_where_no_worker_lives_to_its_first_test_the_run_ends_and_names_it(yard: Yard) -> None:
    yard.suite()
    (yard.folder / "conftest.py").write_text(_DIES_FIRST.replace("VICTIMS", "('gw0',)"))
    ended = yard.pytest("suites", "--nodes", "1", "-n", "1", "--max-worker-restart", "0")
    assert (ended.code, ended.verdicts) == (1, {"toy-1x2": "FAILED"}), ended.out
    assert re.search(r"worker 'gw0' crashed while running '\S*test_toy.py::test_trains\[toy-1x2\]'", ended.out)
    assert "INTERNALERROR" not in ended.out


@pytest.mark.parametrize(("number", "code"), [(signal.SIGINT, 2), (signal.SIGTERM, 143)])
@WORKERS
def test_the_second_signal_ends_at_once_and_the_job_is_on_record(
    tmp_path: Path, own_card: Path, cloud: CloudClient, number: signal.Signals, code: int, workers: list[str]
) -> None:
    yard = Yard(tmp_path, own_card)
    yard.suite(script="import time\ntime.sleep(600)")
    run = yard.start(*workers)
    yard.wait_for_job()
    assert cloud.control("PUT", "faults", [{"method": "POST", "path": "/actions$", "status": 503}])[0] == 200
    os.kill(run.pid, number)
    assert run.stdout is not None
    heard = ""
    while "once more, and it is left at once" not in heard:
        line = run.stdout.readline()
        assert line, heard
        heard += line
    wait_until(lambda: in_flight(yard).fault)  # from here on nobody takes it over
    os.kill(run.pid, number)
    out, _ = run.communicate()
    assert run.returncode == code, out
    assert "left at once; jobs that may still run: aisbench jobs" in out
    assert cloud.phase(in_flight(yard).job_id or "") in {"Creating", "Running"}  # nobody stopped it


def test_what_could_not_be_stopped_is_named(tmp_path: Path, own_card: Path, cloud: CloudClient) -> None:
    """The platform agrees to stop the job, and the job runs on."""
    assert (
        cloud.control("PUT", "faults", [{"phase": "Running"}, {"method": "POST", "path": "/actions$", "status": 503}])[
            0
        ]
        == 200
    )
    yard = Yard(tmp_path, own_card)
    yard.suite(script="import time\ntime.sleep(600)")
    (tmp_path / "conftest.py").write_text(
        "from pytest_aisbench.engine import watch\n\nwatch.Limits.__init__.__defaults__ = (900.0, 1.0)\n"
    )
    run = yard.start()
    yard.wait_for_job()
    os.kill(run.pid, signal.SIGINT)
    out, _ = run.communicate()
    assert run.returncode == 2, out
    job_id = in_flight(yard).job_id
    assert f"job {job_id} (toy-1x2) may still run: aisbench stop {job_id}" in out


def test_a_signal_while_the_reports_are_written_is_in_the_exit_code(yard: Yard) -> None:
    """Nothing is left to interrupt, and everything that is written says so."""
    yard.suite()
    (yard.folder / "conftest.py").write_text(
        "import os, signal\n\n\ndef pytest_sessionfinish():\n    os.kill(os.getpid(), signal.SIGTERM)\n"
    )
    ended = yard.pytest("suites", "--nodes", "1")
    assert ended.code == 143, ended.out
    assert ended.results["exit_code"] == 143
    assert ended.verdicts == {"toy-1x2": "PASSED"}
    assert "Traceback" not in ended.out
