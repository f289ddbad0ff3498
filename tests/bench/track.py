"""What the benchmarks of the Fleet share: a local cloud with its books, suites by the hundred, and a stopwatch."""

from __future__ import annotations

import base64
import itertools
import json
import os
import platform
import re
import shutil
import signal
import subprocess
import sys
import tempfile
import time
import urllib.request
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from importlib import metadata
from pathlib import Path
from typing import Any, NamedTuple

WITHOUT_US = ("-p", "no:pytest_aisbench.plugin")
_ROOM = 4 * 1024**3  # bytes; 10,000 jobs write less
TICKS = os.sysconf("SC_CLK_TCK")
_WORKLOAD = """name = "{name}"
code = ["../code"]
entry = "train.py"
devices = 1
parameters = {{ seconds = {seconds}, epochs = 1 }}
{expected}
[metrics.throughput]
unit = "images/s"
[modelarts]
framework_type = "Ascend-Powered-Engine"
framework_version = "python-local"
flavor = "modelarts.kat1.xlarge"
"""
_THRESHOLDS = '["*"."*"]\nthroughput = { at_least = 1 }\naccuracy = { at_least = 0.5 }\n'
_TEST = """import pytest


@pytest.mark.workload("{name}", nodes=[1])
def test_trains(trial):
    trial.verdict.require()
"""
TRAIN = """import argparse, pathlib, time
parser = argparse.ArgumentParser()
parser.add_argument("--train_url", default="")
parser.add_argument("--seconds", type=float)
options = parser.parse_known_args()[0]
time.sleep(options.seconds)
results = {"throughput_0": "100.0", "ranksize": "1", "accuracy": "0.9"} if options.train_url else {}
for name, text in results.items():
    pathlib.Path(options.train_url, f"{name}.json").write_text(text)
"""


def environment() -> dict[str, str]:
    """Ours, but for what would have every child compile its modules anew, and for settings of somebody's own."""
    odd = ("AISBENCH_", "PYTEST_", "PYTHONDONTWRITEBYTECODE")
    return {key: value for key, value in os.environ.items() if not key.startswith(odd)} | {"COLUMNS": "80"}


_ACCESS = """[access]
access_key = "{access_key}"
secret_access_key = "{secret_key}"
region_name = "{region}"
project_id = "{project_id}"
bucket = "{bucket}"
iam_endpoint = "{iam_endpoint}"
obs_endpoint = "{obs_endpoint}"
modelarts_endpoint = "{modelarts_endpoint}"
"""


@contextmanager
def scratch() -> Iterator[Path]:
    """A folder in memory where there is one: a disk that many files were deleted from takes twice the CPU per file."""
    memory = Path("/dev/shm")
    roomy = memory.is_dir() and os.access(memory, os.W_OK) and shutil.disk_usage(memory).free > _ROOM
    with tempfile.TemporaryDirectory(prefix="aisbench-bench-", dir=memory if roomy else None) as name:
        yield Path(name)


class Cloud(NamedTuple):
    card: dict[str, str]
    file: Path

    def books(self) -> dict[str, Any]:
        """What the server itself knows of its jobs and requests."""
        books: dict[str, Any] = self._local("GET", "books")
        return books

    def requests(self) -> int:
        return sum(self.requests_by_kind().values())

    def requests_by_kind(self) -> dict[str, int]:
        services = self.books()["requests"]
        return {f"{name} {kind}": count for name, counts in services.items() for kind, count in counts.items()}

    def hold(self) -> None:
        """Every job is shown as Running from now on, until `release`; then they have all ended at once."""
        self._local("PUT", "faults", [{"name": ".", "phase": "Running"}])

    def release(self) -> None:
        self._local("DELETE", "faults")

    def configure(self, folder: Path) -> None:
        """Runs there with the platform `modelarts` meet this cloud, and ask it as seldom as the vendor's."""
        (folder / "aisbench.toml").write_text(_ACCESS.format(**self.card))

    def _local(self, method: str, what: str, body: object = None) -> Any:
        keys = base64.b64encode(f"{self.card['access_key']}:{self.card['secret_key']}".encode()).decode()
        request = urllib.request.Request(
            f"{self.card['modelarts_endpoint']}/_local/{what}",
            method=method,
            data=None if body is None else json.dumps(body).encode(),
            headers={"Authorization": f"Basic {keys}"},
        )
        with urllib.request.urlopen(request) as answer:
            return json.loads(answer.read() or b"null")


@contextmanager
def local_cloud(folder: Path, engine: str = "simulated") -> Iterator[Cloud]:
    """It keeps its objects and the folders of its jobs in `folder`."""
    command = [sys.executable, "-m", "pytest_aisbench", "cloud", "--json", "--engine", engine]
    settings = environment() | {"TMPDIR": str(folder)}
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True, env=settings) as process:
        assert process.stdout
        try:
            line = process.stdout.readline()
            file = folder / f"card-{process.pid}.json"
            file.write_text(line)
            yield Cloud(json.loads(line), file)
        finally:
            process.send_signal(signal.SIGINT)


def write_empty_tests(folder: Path, count: int) -> Path:
    """So many tests that pass, each in a file and a folder of its own, as suites are."""
    folder.mkdir()
    for number in range(count):
        (folder / f"w{number:04d}").mkdir()
        (folder / f"w{number:04d}" / f"test_w{number:04d}.py").write_text("def test_trains():\n    pass\n")
    return folder


def write_suites(folder: Path, count: int, seconds: float, *, expected: float | None = None) -> Path:
    """So many workloads of one 1x1 case each, that share their code; `expected` is what they say of their length."""
    folder.mkdir()
    (folder / "code").mkdir()
    (folder / "code" / "train.py").write_text(TRAIN)
    line = f'expected = "{expected:g}s"' if expected else ""
    for number in range(count):
        name = f"w{number:04d}"
        suite = folder / name
        suite.mkdir()
        (suite / "workload.toml").write_text(_WORKLOAD.format(name=name, seconds=seconds, expected=line))
        (suite / "thresholds.toml").write_text(_THRESHOLDS)
        (suite / f"test_{name}.py").write_text(_TEST.format(name=name))
    return folder


def ours(cloud: Cloud, jobs: int, *more: str, platform: str = "local") -> list[str]:
    """The command whose Fleet is measured: all reports are written, as a user has them."""
    place = ["--aisbench-cloud", str(cloud.file)] if platform == "local" else ["--aisbench-platform", platform]
    return [*pytest_command(), *place, "--aisbench-max-jobs", str(jobs), "--aisbench-reports", "reports", *more]


def theirs(folder: Path, *more: str) -> list[str]:
    """pytest without us, that writes the same kinds of reports."""
    reports = [f"--junitxml={folder}/junit.xml", f"--html={folder}/report.html", "--self-contained-html"]
    return [*pytest_command(*reports, f"--alluredir={folder}/allure"), *WITHOUT_US, *more]


def pytest_command(*more: str) -> list[str]:
    return [sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider", "--import-mode=importlib", *more]


@dataclass(frozen=True)
class Ended:
    wall: float
    cpu: float  # seconds, children that it waited for included
    memory: float  # MiB, the most that was resident
    written: float = 0.0  # bytes that it gave to write(): files, the terminal, no sockets; 0 where no /proc tells


def measured(
    command: Sequence[str],
    folder: Path,
    *,
    settings: Mapping[str, str] | None = None,
    watching: Callable[[int], None] | None = None,
) -> Ended:
    """Run it to its end, which must be a good one; `watching` is given its process id meanwhile."""
    env = {**environment(), **(settings or {})}
    with (folder / "out.txt").open("wb") as out:
        start = time.perf_counter()
        process = subprocess.Popen(command, cwd=folder, env=env, stdout=out, stderr=subprocess.STDOUT)
        try:
            if watching:
                watching(process.pid)
            os.waitid(os.P_PID, process.pid, os.WEXITED | os.WNOWAIT)
            written = _written_by(process.pid)
            _, status, used = os.wait4(process.pid, 0)
        except BaseException:
            process.kill()
            raise
        process.returncode = os.waitstatus_to_exitcode(status)
    wall = time.perf_counter() - start
    if process.returncode:
        raise SystemExit(f"{' '.join(command)} ended with {process.returncode}:\n{(folder / 'out.txt').read_text()}")
    return Ended(wall, used.ru_utime + used.ru_stime, used.ru_maxrss / 1024, written)


def _written_by(pid: int) -> float:
    file = Path(f"/proc/{pid}/io")
    if not file.exists():
        return 0.0
    return float(re.search(r"wchar: (\d+)", file.read_text())[1])  # type: ignore[index]


def cpu_of(pid: int) -> float:
    """Seconds that the process itself has used so far."""
    fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    return (int(fields[11]) + int(fields[12])) / TICKS


def table(head: Sequence[str], rows: Iterable[Sequence[str]]) -> None:
    """Markdown, as docs/benchmarks.md keeps it; each row when it is known."""
    for cells in itertools.chain((head, ["---"] * len(head)), rows):
        print("|", " | ".join(cells), "|", flush=True)


def machine() -> str:
    load = ", ".join(f"{each:.1f}" for each in os.getloadavg())
    return f"{os.cpu_count()} cores, Python {sys.version.split()[0]}, load average {load}"


def machine_facts() -> dict[str, str]:
    """What the machine is, whatever it does meanwhile."""
    processors = Path("/proc/cpuinfo")
    named = re.search(r"model name\s*: (.*)", processors.read_text()) if processors.exists() else None
    return {
        "cores": f"{os.cpu_count()} cores",
        "processor": named[1] if named else platform.machine(),
        "system": f"{platform.system()} {platform.release().partition('-')[0]}",
        "python": f"Python {platform.python_version()}",
        "pytest": f"pytest {metadata.version('pytest')}",
    }
