"""Commands that a test runs to their end, and the local cloud that it runs beside it."""

from __future__ import annotations

import contextlib
import json
import os
import subprocess
import sys
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import forking
from waiting import PATIENCE

AISBENCH = (sys.executable, "-m", "pytest_aisbench")


def run(
    *command: str | Path,
    folder: Path | None = None,
    environment: Mapping[str, str] | None = None,
    seconds: float = PATIENCE,
    merge: bool = False,
    fork: bool = True,
    planted: Mapping[str, float] | None = None,
) -> subprocess.CompletedProcess[str]:
    """Run a command to its end; `merge` takes both of its streams as one.

    Without `fork` it imports all that it needs. Only a forked one has other values for constants `planted`."""
    if fork and forking.can_fork(command, environment or os.environ):
        return forking.run(command, folder, environment or os.environ, seconds, merge=merge, planted=planted)
    return subprocess.run(
        command,
        cwd=folder,
        env=environment,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT if merge else subprocess.PIPE,
        text=True,
        check=False,
        timeout=seconds,
    )


def run_python(code: Sequence[Path], *arguments: str | Path, **environment: str) -> subprocess.CompletedProcess[str]:
    """Run Python with the folders of `code` on its path, as a node has them."""
    path = os.pathsep.join(map(str, code))
    return run(sys.executable, *arguments, environment={**os.environ, "PYTHONPATH": path, **environment})


def printed_json(code: Sequence[Path], program: str, *arguments: str) -> Any:
    """What a program prints as JSON in its last line."""
    done = run_python(code, "-c", program, *arguments)
    assert done.returncode == 0, done.stderr
    return json.loads(done.stdout.splitlines()[-1])


@contextlib.contextmanager
def local_cloud(folder: Path, *options: str) -> Iterator[Path]:
    """A local cloud in a process of its own; the file holds its card, as `aisbench cloud --json > FILE` writes it."""
    file = folder / "card.json"
    with forking.Child([*AISBENCH, "cloud", "--json", *options], folder, os.environ) as cloud:
        file.write_text(cloud.stdout.readline())
        yield file
        cloud.terminate()
        cloud.wait()
