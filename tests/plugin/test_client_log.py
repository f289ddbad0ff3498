"""What pytest's log file and live log tell of a run."""

from __future__ import annotations

import json
import re

import pytest
from yard import TEST, Ended, Yard

from pytest_aisbench.localcloud.faults import Fault
from pytest_aisbench.localcloud.server import LocalCloud

pytestmark = pytest.mark.slow

LEVEL = "--log-file-level=DEBUG"
FORMAT = "--log-file-format=%(levelname)s %(name)s %(message)s"
# Logs all the time, and 200 tests that print end meanwhile: the main thread has the terminal for itself all the same.
BUSY = """import logging, threading
import pytest

LOG, END = logging.getLogger("aisbench.busy"), threading.Event()
LINES = []


def work():
    while not END.wait(0.0005):
        LINES.append(None)
        LOG.info("busy line %d.", len(LINES))


@pytest.fixture(scope="module", autouse=True)
def busy():
    thread = threading.Thread(target=work)
    thread.start()
    yield
    END.set()
    thread.join()
    LOG.info("busy lines: %d.", len(LINES))


@pytest.mark.parametrize("number", range(200))
def test_busy(number):
    print("printed", number)
"""
LOGGING = (
    TEST
    + """

def test_logs(obs, stage):
    import logging

    logging.getLogger("mine").warning("logged by the test")
    assert obs.head(stage.code / "train.py")
"""
)


def ran(yard: Yard, *arguments: str, faults: list[Fault]) -> Ended:
    """On a cloud of its own, whose jobs end at once."""
    with LocalCloud(engine="simulated", faults=faults) as cloud:
        card = yard.folder / "card.json"
        card.write_text(json.dumps(cloud.card()))
        return Yard(yard.folder, card).pytest("suites", "--nodes", "1", *arguments)


def test_the_log_file_has_requests_decisions_and_what_was_swallowed(yard: Yard) -> None:
    yard.suite()
    faults = [
        Fault(service="modelarts", operation="create", times=1, status=503),
        Fault(service="modelarts", operation="metrics", status=400, code="X.1", message="no metrics today"),
        Fault(service="obs", operation="put-object", times=1, status=503, retry_after=1),
        Fault(name="toy-1x2", job="lost", times=1),
    ]
    ended = ran(yard, "--log-file=logs/run.log", LEVEL, FORMAT, faults=faults)
    assert ended.code == 0, ended.out
    assert "aisbench.fleet" not in ended.out, "a log file is no reason to write to the terminal"
    log = (yard.folder / "logs/run.log").read_text(encoding="utf-8")
    first, second = dict.fromkeys(re.findall(r"^INFO aisbench\.fleet (toy-1x2-\S+): begins, trial", log, re.MULTILINE))

    def is_logged(line: str) -> bool:
        return re.search(rf"^{line}", log, re.MULTILINE) is not None

    for request in (
        r"POST 127\.0\.0\.1:\d+/v2/\{project_id\}/training-jobs -> 503, \d+ ms",
        r"POST 127\.0\.0\.1:\d+/v2/\{project_id\}/training-jobs -> 201, \d+ ms, request \w+$",
        r"PUT obs://\S+/train\.py -> 503, \d+ ms, request \w+$",
        r"PUT obs://\S+/train\.py -> 200, \d+ ms, attempt 2, request \w+$",
        r"GET obs://\S+/outputs/accuracy\.json -> 200, \d+ ms",
        r"POST http://127\.0\.0\.1:\d+/api/v1/tests/\S+/results -> 201, \d+ ms",
    ):
        assert is_logged(f"DEBUG aisbench.requests {request}"), request
    assert is_logged(r"INFO aisbench.requests attempt 1 failed, the next one follows in [\d.]+ s: cannot write obs:")
    for decision in (
        f"{first}: begins, trial 1 of toy-1x2",
        f"{first}: STAGE -> SUBMIT",
        f"{first}: attempt 1 to submit it had no answer: ",
        f"{first}: submitted as job ",
        f"{first}: job [0-9a-f-]+ is LOST",
        f"{second}: begins, trial 2 of toy-1x2: .*lost",
        f"{second}: JUDGE -> DONE",
        f"{second}: PASSED: throughput ",
        "the run should cost [0-9.]+ card-hours, without a budget",
    ):
        assert is_logged(f"INFO aisbench.fleet {decision}"), decision
    assert is_logged(f"DEBUG aisbench.fleet {second}: stays at WATCH, next look in [0-9.]+ s")
    assert is_logged(f"DEBUG aisbench.fleet {second}: how its nodes were used: ignored Rejected: .*no metrics today")
    assert "urllib3" not in log, "each request is logged once"


def test_the_live_log_has_every_line_and_no_outcome_is_lost(yard: Yard) -> None:
    yard.suite()
    (yard.folder / "suites/test_busy.py").write_text(BUSY)
    ended = ran(yard, "--log-cli-level=DEBUG", "--log-file=run.log", LEVEL, FORMAT, faults=[])
    assert ended.code == 0, ended.out
    outcomes = re.findall(r"^(?:suites/\S+ )?PASSED +\[ *\d+%\]", ended.out, re.MULTILINE)
    assert len(outcomes) == 201
    logged = [line.partition(" ")[2] for line in (yard.folder / "run.log").read_text(encoding="utf-8").splitlines()]
    shown = [re.sub(r"(aisbench\.\w+):\S+", r"\1", line) for line in ended.out.splitlines()]
    busy = [line for line in logged if "busy line " in line]
    assert len(busy) > 200
    assert [line.partition(" ")[2].lstrip() for line in shown if "busy line " in line] == busy
    for line in logged:
        if "aisbench." in line:
            assert sum(each.endswith(line) for each in shown) == logged.count(line), line
    assert not re.search(r"^printed", ended.out, re.MULTILINE), "output of tests stays captured"


def test_processes_of_xdist_write_to_one_log_file(yard: Yard) -> None:
    yard.suite(test=LOGGING)
    log = yard.folder / "run.log"
    log.write_text("of an earlier run\n" * 1000)
    ended = ran(
        yard, "-n", "2", f"--log-file={log.name}", LEVEL, "--log-file-format=%(process)d %(message)s", faults=[]
    )
    assert ended.code == 0, ended.out
    lines = log.read_text(encoding="utf-8").splitlines()
    assert all(re.match(r"\d+ \S", line) for line in lines), "whole lines, and none of an earlier run"
    (fleet,) = {line.partition(" ")[0] for line in lines if line.endswith("STAGE -> SUBMIT")}
    (worker,) = {line.partition(" ")[0] for line in lines if line.endswith("logged by the test")}
    assert fleet != worker
    assert any(re.match(rf"{worker} HEAD obs://.*/train\.py -> 200, \d+ ms", line) for line in lines)


def test_a_run_needs_no_log(yard: Yard) -> None:
    """Nor pytest's plugin for it; and what is logged all the same appears nowhere."""
    yard.suite()
    faults = [Fault(service="modelarts", operation="metrics", status=400, code="X.1", message="no metrics today")]
    ended = ran(yard, "-n", "1", "-p", "no:logging", faults=faults)
    assert ended.code == 0, ended.out
    assert "no metrics today" not in ended.out
