"""What a person sees while jobs run: on a terminal, in a log of CI, under xdist."""

from __future__ import annotations

import json
import re
import signal
import socket
import subprocess
import sys
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest
from forking import Child
from waiting import PATIENCE
from yard import SCRIPT, THRESHOLDS, WORKERS, WORKLOAD, Yard

from pytest_aisbench.localcloud.faults import Fault
from pytest_aisbench.localcloud.server import LocalCloud

pytestmark = [pytest.mark.slow, pytest.mark.skipif(sys.platform != "linux", reason="needs a pseudo terminal")]
# Trains an epoch, and goes on when its port is listened at: a node shares no folder with us.
UNTIL_TOLD = """import os, socket, time
print("epoch: 1 step: 10, loss is 2.5", flush=True)
print("Train epoch time: 100.0 ms, per step time: 10.0 ms", flush=True)
while socket.socket().connect_ex(("127.0.0.1", PORTS[os.environ["RANK_SIZE"]])):
    time.sleep(0.05)
"""
FOUR_EPOCHS = f"parameters = {{ epochs = 4, batch_size = 32 }}\n{WORKLOAD}"
BARS = r"running +0:\d\d:\d\d  \[##-{8}\]  25%  eta 0:\d\d:\d\d  epoch 1/4, ~6400 images/s, loss 2.5"
HEARTBEAT = (
    r"aisbench \+0:\d\d:\d\d 0/2 done, 2 running, 0 waiting, eta 0:\d\d:\d\d "
    r"\| toy-1x2 25% ~6400 images/s loss 2.5, toy-2x2 25% ~12800 images/s loss 2.5"
)


@pytest.fixture
def gates() -> Iterator[dict[int, socket.socket]]:
    """By the number of ranks; bound, so that nobody else takes the port."""
    with socket.socket() as two, socket.socket() as four:
        for gate in (two, four):
            gate.bind(("127.0.0.1", 0))
        yield {2: two, 4: four}


Go = Callable[..., None]


@pytest.fixture
def go(gates: dict[int, socket.socket]) -> Go:
    """Let the jobs of so many ranks go on; without a number, all."""

    def open_gates(*ranks: int) -> None:
        for size in ranks or gates:
            gates[size].listen()

    return open_gates


@pytest.fixture
def waiting(yard: Yard, gates: dict[int, socket.socket]) -> Yard:
    ports = {str(size): gate.getsockname()[1] for size, gate in gates.items()}
    yard.suite(script=UNTIL_TOLD.replace("PORTS", repr(ports)) + SCRIPT, workload=FOUR_EPOCHS)
    return yard


def environment(yard: Yard, **variables: str) -> dict[str, str]:
    """Of somebody who sits in front of a terminal, unless told otherwise."""
    inherited = yard.environment()
    return {**inherited, "TERM": "xterm", **variables}


def shows(pattern: str) -> Callable[[str], bool]:
    return lambda text: re.search(pattern, text, re.MULTILINE) is not None


def test_bars_are_drawn_below_the_results_and_leave_no_trace(waiting: Yard, go: Go) -> None:
    from screen import Screen

    command = waiting.command("suites", "--nodes", "1,2", "--aisbench-max-jobs", "2")
    with Screen(command, waiting.folder, environment(waiting)) as screen:
        text = screen.until(shows(f"toy-1x2  {BARS}\ntoy-2x2  {BARS.replace('6400', '12800')}$"))
        assert text.splitlines()[-1].startswith("0/2 done, 2 running, 0 waiting, eta 0:")
        assert "toy.py" not in text
        go(2)
        text = screen.until(shows(r"^1/2 done, 1 running, 0 waiting"))
        assert "suites/toy/test_toy.py .\ntoy-2x2  running" in text
        assert text.count("running  0:") == 1, "drawn in place"
        go(4)
        assert screen.end() == 0
    assert "\n\nsuites/toy/test_toy.py .. " in screen.text
    assert "2 passed" in screen.text
    assert not re.search(r"\[#|running|/2 done", screen.text)


def test_ctrl_c_takes_the_bars_away(waiting: Yard) -> None:
    from screen import Screen

    command = waiting.command("suites", "--nodes", "1", "-v")
    with Screen(command, waiting.folder, environment(waiting), columns=60) as screen:
        screen.until(shows(r"toy-1x2  running  0:\d\d:\d\d   25%  eta"))
        screen.process.send_signal(signal.SIGINT)
        assert screen.end() == 2
    assert "KeyboardInterrupt" in screen.text
    assert "25%" not in screen.text


@pytest.mark.parametrize(
    ("arguments", "variables"), [(["-q", "-q"], {}), ([], {"CI": "true"}), (["--log-cli-level", "INFO"], {})]
)
def test_a_terminal_that_is_not_for_bars_gets_heartbeats(
    waiting: Yard, go: Go, arguments: list[str], variables: dict[str, str]
) -> None:
    from screen import Screen

    command = waiting.command("suites", "--nodes", "1,2", "--aisbench-max-jobs", "2", "--aisbench-heartbeat", "1s")
    with Screen([*command, *arguments], waiting.folder, environment(waiting, **variables), columns=160) as screen:
        screen.until(shows(f"^{HEARTBEAT}$"))
        go()
        assert screen.end() == 0
    assert "[#" not in screen.text


@contextmanager
def lines_of(yard: Yard, *arguments: str, card: Path | None = None) -> Iterator[Iterator[str]]:
    """What a run writes to a pipe, line by line, while it runs; it must pass."""
    attach = ["--aisbench-cloud", str(card or yard.card), "--aisbench-max-jobs", "2"]
    command = [*yard.command(*arguments, cloud=False), *attach]
    with Child(command, yard.folder, yard.environment(), stderr=subprocess.STDOUT) as run:
        watchdog = threading.Timer(PATIENCE, run.kill)  # a line that never comes would be waited for for ever
        watchdog.start()
        try:
            yield iter(run.stdout)
            assert run.wait() == 0
        finally:
            watchdog.cancel()
            run.kill()


def until(lines: Iterator[str], pattern: str) -> str:
    """The first line that fits."""
    seen = []
    for line in lines:
        seen.append(line)
        if re.search(pattern, line):
            return line
    raise AssertionError("".join(seen))


@WORKERS
def test_a_log_has_a_line_now_and_then_at_once_and_on_its_own(waiting: Yard, go: Go, workers: list[str]) -> None:
    with lines_of(waiting, "suites", "--nodes", "1,2", "--aisbench-heartbeat", "1s", *workers) as lines:
        until(lines, f"^{HEARTBEAT}$")
        go(2)
        until(lines, r"^aisbench \+.* 1/2 done, .* \| toy-2x2 25% ~12800 images/s loss 2.5$")
        go()
        rest = "".join(lines)
    assert "2 passed" in rest
    assert "\x1b[" not in rest


@pytest.mark.slow(seconds=9)
def test_a_job_that_stands_still_is_reported_and_noted(yard: Yard) -> None:
    workload = f"parameters = {{ seconds = 7, epochs = 70 }}\n{WORKLOAD}"
    yard.suite(workload=workload, thresholds=THRESHOLDS)
    card = yard.folder / "card.json"
    with LocalCloud(engine="simulated", faults=[Fault(name="toy-2x2", job="log-frozen", after=1.0)]) as cloud:
        card.write_text(json.dumps(cloud.card()))
        with lines_of(yard, "suites", "--nodes", "1,2", "--aisbench-stall", "2s", card=card) as lines:
            line = until(lines, "stalls")
            rest = "".join(lines)
    job = r"[0-9a-f-]{36}"
    said = (
        rf"aisbench: toy-2x2 stalls: job ({job}) has shown no sign of life since \d\d:\d\d:\d\d"
        rf"(, at epoch \d+/70, step 100)?; see `aisbench logs \1`\n"
    )
    assert re.fullmatch(said, line), line
    assert "stalls" not in rest, "once, and nothing of the job that works"
    noted = r"no sign of life since \d{4}-\d\d-\d\d \d\d:\d\d:\d\dZ"
    assert re.search(noted, rest), rest
    assert re.search(noted, (yard.folder / "reports/latest/report.html").read_text(encoding="utf-8"))
