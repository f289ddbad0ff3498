"""Sixteen jobs of a second, for any engine of the local cloud, and a plugin that holds a run where it is to die."""

from __future__ import annotations

from yard import THRESHOLDS, Yard

SECONDS = (0.5, 0.5, 0.6, 0.7, 0.8, 1.0, 1.4, 2.0)  # of the jobs of each workload, one on one node and one on two
CASES = 2 * len(SECONDS)
_WORKLOAD = """name = "{name}"
code = ["code"]
entry = "train.py"
devices = 1
parameters = { seconds = SECONDS, throughput = THROUGHPUT, accuracy = 0.9, exit_code = EXIT }
[metrics.throughput]
unit = "images/s"
[apulis]
image = "apulistech/horovod:0.19.2"
device_type = "nvidia_gpu_amd64"
"""
_CLAIMS = THRESHOLDS + THRESHOLDS.replace("local", "apulis")
_SCRIPT = """# edition EDITION
import argparse, os, pathlib, sys, time
parser = argparse.ArgumentParser()
for name in ("train_url", "seconds", "throughput", "accuracy", "exit_code"):
    parser.add_argument(f"--{name}")
told = parser.parse_known_args()[0]
rank = int(os.environ["RANK_ID"])


def write(name, text):
    if told.train_url.startswith(("s3:", "obs:")):  # V1 gives its jobs a place in OBS
        import moxing

        moxing.file.write(f"{told.train_url.rstrip('/')}/{name}.json", text)
    else:
        (pathlib.Path(told.train_url) / f"{name}.json").write_text(text)


time.sleep(float(told.seconds))
if int(told.exit_code):
    time.sleep(30 if rank else 0)  # always the same rank fails, and the others are stopped
    sys.exit(int(told.exit_code))
write(f"throughput_{rank}", told.throughput)
if rank == 0:
    write("ranksize", os.environ["RANK_SIZE"])
    write("accuracy", told.accuracy)
"""
# Runs inside the pytest that is to be killed. A window that would be open for a millisecond stays open for a while.
_PACING = """import os, time
import pytest


def reach(window):
    if os.environ["CHAOS_WINDOW"] == window:
        with open(os.environ["CHAOS_TRACE"], "a") as trace:
            trace.write(".")
        time.sleep(0.3)


def pytest_collection_finish():
    reach("collecting")


@pytest.hookimpl(wrapper=True)
def pytest_runtest_call(item):
    reach("judging")
    return (yield)


def pytest_aisbench_reporters():
    return {"pacing": "pacing:Reporter"}


class Reporter:
    def __init__(self, config, folder):
        pass

    def case(self, entry):
        reach("reporting")

    def run(self, entry):
        reach("ending")
"""


def write(yard: Yard, edition: int, *, failing: bool) -> None:
    """Another edition is other code: it is staged anew, and nothing of the last one can be taken over.

    With `failing`, one workload fails: its job has run to its end, and a death is no reason to run it again.
    """
    (yard.folder / "pacing.py").write_text(_PACING)
    for number, seconds in enumerate(SECONDS):
        facts = {
            "SECONDS": str(seconds),
            "THROUGHPUT": str(10.0 + number),
            "EXIT": "3" if failing and number == 1 else "0",
        }
        workload = _WORKLOAD
        for word, value in facts.items():
            workload = workload.replace(word, value)
        script = _SCRIPT.replace("EDITION", str(edition))
        yard.suite(f"w{number}", workload=workload, script=script, thresholds=_CLAIMS)
