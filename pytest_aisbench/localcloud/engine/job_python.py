"""The Python of one node: an environment of its own on top of the cloud's, as a container has one.

What a job installs goes into the folders of its node and is gone with them; it sees everything that the Python below
has, and pip refuses to remove anything of that; where the machine allows private mounts, nothing else can, either.
"""

from __future__ import annotations

import functools
import json
import logging
import os
import shlex
import subprocess
from dataclasses import dataclass
from pathlib import Path

log = logging.getLogger(__name__)
_ASK = (
    "import json, site, sys; "
    "print(json.dumps([sys.executable, sys.base_prefix, list(sys.version_info[:2]), site.getsitepackages()]))"
)
_PATIENCE = 60  # seconds: a Python on a network share starts slowly


@dataclass(frozen=True)
class Interpreter:
    executable: str  # without links
    home: str  # the folder of the Python that environments are made from
    version: str  # such as 3.11
    packages: tuple[str, ...]


@functools.cache
def describe(interpreter: str) -> Interpreter | None:
    """None for a program that only starts a Python: an environment on top of it would lose what the program sets."""
    try:
        # -I: without the variables of this process.
        answer = subprocess.run(
            [interpreter, "-I", "-c", _ASK], capture_output=True, text=True, timeout=_PATIENCE, check=True
        )
        executable, base, version, packages = json.loads(answer.stdout)
    except (OSError, ValueError, subprocess.SubprocessError) as error:
        log.debug("%s is used as it is: %s", interpreter, error)
        return None
    real = os.path.realpath(interpreter)
    if os.path.realpath(executable) != real:
        log.debug("%s is used as it is: it starts %s", interpreter, executable)
        return None
    return Interpreter(real, str(Path(base, "bin")), ".".join(map(str, version)), tuple(packages))


def package_folders(interpreter: str) -> list[str]:
    """Where the packages of the Python below are, which no job may change."""
    below = describe(interpreter)
    return list(below.packages) if below else []


def provide(interpreter: str, folder: Path, inside: str) -> str:
    """Fill `folder`, which the node sees as `inside`, with programs called `python` and `pip`; return the path of the
    Python that the node is to use."""
    programs = folder / "bin"
    programs.mkdir(parents=True, exist_ok=True)
    below = describe(interpreter)
    if below is None:
        _write_program(programs / "python", f'exec {shlex.quote(interpreter)} "$@"')
        return interpreter
    packages = folder / "lib" / f"python{below.version}" / "site-packages"
    packages.mkdir(parents=True, exist_ok=True)
    settings = f"home = {below.home}\ninclude-system-site-packages = false\nversion = {below.version}\n"
    (folder / "pyvenv.cfg").write_text(settings)
    # Read after the node's own packages, which therefore come first; addsitedir obeys the .pth files there.
    lines = [f"import site; site.addsitedir({path!r})\n" for path in below.packages]
    (packages / "_below.pth").write_text("".join(lines))
    python, major = f"{inside}/bin/python", below.version.partition(".")[0]
    for name in ("python", f"python{major}", f"python{below.version}"):
        (programs / name).symlink_to(below.executable)
    for name in ("pip", f"pip{major}", f"pip{below.version}"):
        _write_program(programs / name, f'exec {shlex.quote(python)} -m pip "$@"')
    return python


def _write_program(path: Path, line: str) -> None:
    path.write_text(f"#!/bin/sh\n{line}\n")
    path.chmod(0o755)
