"""SIGINT where a shell started the command with it ignored, as Jenkins, `nohup` and `&` do."""

from __future__ import annotations

import signal
import subprocess
import sys
from pathlib import Path

import pytest
from waiting import PATIENCE
from yard import SCRIPT, Gate, Yard

pytestmark = pytest.mark.skipif(sys.platform == "win32", reason="needs a POSIX shell")
ROOT = Path(__file__).parents[2]
IGNORED = ("sh", "-c", 'trap "" INT; exec "$@"', "sh")


def test_a_process_that_a_test_starts_can_be_interrupted() -> None:
    program = "import signal; print(signal.getsignal(signal.SIGINT) is signal.default_int_handler)"
    assert subprocess.check_output([sys.executable, "-c", program], text=True) == "True\n"


@pytest.mark.slow
def test_also_where_the_tests_were_started_with_sigint_ignored() -> None:
    test = f"{Path(__file__)}::{test_a_process_that_a_test_starts_can_be_interrupted.__name__}"
    command = [*IGNORED, sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider", test]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=False, timeout=PATIENCE)
    assert done.returncode == 0, done.stdout


@pytest.mark.slow
def test_a_run_that_was_started_with_sigint_ignored_is_not_interrupted(yard: Yard) -> None:
    """A shell starts what it puts in the background so, and Ctrl-C then means another command."""
    gate = Gate()
    yard.suite(script=gate.wait + SCRIPT)
    command = [*IGNORED, *yard.command("suites", "--nodes", "1")]
    with subprocess.Popen(command, cwd=yard.folder, env=yard.environment(), stdout=subprocess.PIPE, text=True) as run:
        yard.wait_for_job()
        run.send_signal(signal.SIGINT)
        gate.open()
        out, _ = run.communicate(timeout=PATIENCE)
    assert run.returncode == 0, out
