"""What loading us costs: a pytest run that does not use us, the command `aisbench jobs`, and a run of one job.

    python tests/bench/load.py [ROUNDS] [--python PYTHON]

The rounds run in turns, and the figures are medians. Instructions are counted by callgrind, which counts the same on a
busy machine; without it CPU times are compared. `--python` is the interpreter of another checkout, to compare with it.
"""

from __future__ import annotations

import argparse
import os
import re
import shutil
import statistics
import subprocess
import sys
import tempfile
from collections.abc import Callable, Sequence
from pathlib import Path

import track

_WITHOUT = ("-p", "no:pytest_aisbench.plugin")
_EMPTY_LEDGER = """import pathlib, sys
from pytest_aisbench.ledger.runs import JobLedger
JobLedger(pathlib.Path(sys.argv[1]), new=True).close()
"""
# What a run imports of the vendor's, after pytest, which brings some of it in.
_SDK_IMPORTS = """import time
import pytest
start, used = time.perf_counter(), time.process_time()
import obs
from huaweicloudsdkcore.http import http_client, http_config
from huaweicloudsdkcore.signer import signer
print(time.perf_counter() - start, time.process_time() - used)
"""


def measure(rounds: int, python: str = sys.executable) -> dict[str, float]:
    """The figures by name. Those with `cpu` in their names are CPU times, and the others wall times."""
    with tempfile.TemporaryDirectory() as name, track.local_cloud(Path(name)) as cloud:
        folder = Path(name)
        (folder / "plain").mkdir()
        (folder / "plain" / "test_empty.py").write_text("def test_empty():\n    pass\n")
        track.write_suites(folder / "suites", 1, 0.0)
        subprocess.run([python, "-c", _EMPTY_LEDGER, "ledger.db"], cwd=folder, env=track.environment(), check=True)
        pytest = [python, "-m", "pytest", "-q", "-p", "no:cacheprovider", "--import-mode=importlib"]
        place = ["--aisbench-cloud", str(cloud.file), "--aisbench-reports", "reports", "--aisbench-fresh"]
        contestants: dict[str, Callable[[], track.Ended]] = {
            "python": lambda: track.measured([python, "-c", "pass"], folder),
            "jobs": lambda: track.measured([python, "-m", "pytest_aisbench", "jobs", "--ledger", "ledger.db"], folder),
            "alone": lambda: track.measured([*pytest, *_WITHOUT], folder / "plain"),
            "unused": lambda: track.measured(pytest, folder / "plain"),
            "sdk": lambda: _imports(python, folder),
            "startup": lambda: track.measured([*pytest, *place, "suites"], folder),
        }
        ended: dict[str, list[track.Ended]] = {key: [] for key in contestants}
        for number in range(rounds + 1):  # the first compiles our modules, and does not count
            for key in contestants if number % 2 else reversed(contestants):
                ended[key].append(contestants[key]())
        wall = {key: statistics.median(each.wall for each in values[1:]) for key, values in ended.items()}
        cpu = {key: statistics.median(each.cpu for each in values[1:]) for key, values in ended.items()}
        return {
            **_unused_ratio(pytest, folder / "plain", cpu["unused"] / cpu["alone"]),
            "jobs_command_ms": 1000 * wall["jobs"],
            "jobs_command_cpu_ms": 1000 * cpu["jobs"],
            "python_ms": 1000 * wall["python"],
            "python_cpu_ms": 1000 * cpu["python"],
            "startup_s": wall["startup"],
            "startup_cpu_s": cpu["startup"],
            "pytest_alone_s": wall["alone"],
            "pytest_alone_cpu_s": cpu["alone"],
            "sdk_imports_s": wall["sdk"],
            "sdk_imports_cpu_s": cpu["sdk"],
        }


def _imports(python: str, folder: Path) -> track.Ended:
    command = [python, "-c", _SDK_IMPORTS]
    done = subprocess.run(command, cwd=folder, env=track.environment(), check=True, capture_output=True, text=True)
    wall, cpu = map(float, done.stdout.split())
    return track.Ended(wall, cpu, 0.0)


def _unused_ratio(pytest: Sequence[str], folder: Path, cpu_ratio: float) -> dict[str, float]:
    """What an empty test costs with the plugin, as a multiple of its cost without."""
    if not shutil.which("valgrind"):
        return {"unused_cpu_ratio": cpu_ratio}
    counted = ["valgrind", "--tool=callgrind", f"--callgrind-out-file={os.devnull}", *pytest]
    environment = track.environment() | {"PYTHONHASHSEED": "0"}
    runs = [
        subprocess.Popen(
            [*counted, *more], cwd=folder, env=environment, stdout=subprocess.DEVNULL, stderr=subprocess.PIPE, text=True
        )
        for more in ((), _WITHOUT)
    ]
    texts = [run.communicate()[1] for run in runs]
    counts = [re.search(r"Collected : (\d+)", text) for text in texts]
    if any(run.returncode for run in runs) or not all(counts):
        raise SystemExit("callgrind failed:\n" + "\n".join(texts))
    with_us, without = (int(count[1]) for count in counts if count)
    return {"unused_instructions_ratio": with_us / without, "unused_cpu_ratio": cpu_ratio}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("rounds", nargs="?", type=int, default=10)
    parser.add_argument("--python", default=sys.executable, help="of another checkout")
    options = parser.parse_args()
    print(f"{options.rounds} round(s), {track.machine()}", flush=True)
    figures = measure(options.rounds, options.python)
    track.table(["", "median"], [[key, f"{value:.4g}"] for key, value in figures.items()])
    beyond = figures["startup_s"] - figures["pytest_alone_s"] - figures["sdk_imports_s"]
    print(f"start-up beyond pytest and the vendor's SDKs: {beyond:.3f} s")


if __name__ == "__main__":
    main()
