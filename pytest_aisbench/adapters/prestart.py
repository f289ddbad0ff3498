"""`ma-pre-start.sh`, which ModelArts runs on every node before training: new software, and what it may log.

The platform runs the script beside the boot file, whatever that is called, in a folder above it; variables that it
exports reach the training.
"""

from __future__ import annotations

import shlex
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path, PurePosixPath

from pytest_aisbench.domain.case import Update, Workload
from pytest_aisbench.errors import UsageFault

SCRIPT = "ma-pre-start.sh"
RUN = "run"  # the folder beside the entry that holds what is installed


def files(workload: Workload, variables: Mapping[str, str]) -> dict[str, str | bytes]:
    """What goes beside the entry, where the platform looks for the script: the files to install, and the script.

    `variables` are those that a request cannot carry: the script exports them.
    """
    update = workload.update or Update()
    update = replace(update, exports={**variables, **update.exports})
    beside = PurePosixPath(workload.entry).parent
    more: dict[str, str | bytes] = {}
    for file in update.files:
        path = str(beside / RUN / PurePosixPath(file).name)
        if path in more:
            raise UsageFault(f"update: two files are called {PurePosixPath(file).name}", advice="rename one of the two")
        more[path] = str(Path(workload.folder) / file)
    if update.is_written:
        names = tuple(PurePosixPath(file).name for file in update.files)
        place = str(PurePosixPath(workload.code_name) / beside)
        own = _own_script([Path(workload.folder) / part for part in workload.code], beside)
        more[str(beside / SCRIPT)] = script(update, names, place, own).encode()
    return more


def _own_script(folders: list[Path], beside: PurePosixPath) -> str:
    for folder in folders:
        other = folder / beside / SCRIPT.replace(".sh", ".py")
        if other.exists():
            advice = f"call it from a {SCRIPT} of your own, which is kept"
            raise UsageFault(f"{other} would not be run beside the {SCRIPT} that the update needs", advice=advice)
        try:
            return (folder / beside / SCRIPT).read_text(encoding="utf-8")
        except FileNotFoundError:
            continue
        except (OSError, UnicodeDecodeError) as error:
            raise UsageFault(f"{folder / beside / SCRIPT} cannot be read: {error}") from None
    return ""


def script(update: Update, names: tuple[str, ...], place: str, own: str = "") -> str:
    """`names` are the files as they lie in `run/`; `place` is the entry's folder below the job's code, such as
    `bert/src`; `own` is the workload's script, which comes last and has the last word."""
    lines = ["#!/bin/bash", "# Written by pytest-aisbench for this job."]
    if update.installed and names:
        lines += _installation(names, place)
    lines += [f"export {name}={shlex.quote(value)}" for name, value in update.exports.items()]
    if own:
        lines += ["", f"# From here on: the workload's own {SCRIPT}.", own.rstrip("\n")]
    return "\n".join(lines) + "\n"


def _installation(names: tuple[str, ...], place: str) -> list[str]:
    marker = shlex.quote(f"{RUN}/{names[0]}")
    below = shlex.quote(place)
    lines = [
        "_aisbench_failed() {",
        '    echo "aisbench: $1: the job would train with other software than it should" >&2',
        "    exit 1",
        "}",
        "_aisbench_root() {",
        '    if [ "$(id -u)" = 0 ] || ! command -v sudo >/dev/null; then "$@"; else sudo "$@"; fi',
        "}",
        "# Sourced or run, from whatever folder: what is to be installed lies beside this script.",
        '_aisbench_here=""',
        'for _aisbench_try in "$(dirname "${BASH_SOURCE[0]}")" "$(dirname "$0")" \\',
        f'    "${{MA_JOB_DIR:-.}}"/{below} ./{below}; do',
        f'    if [ -f "$_aisbench_try"/{marker} ]; then _aisbench_here=$(cd "$_aisbench_try" && pwd); break; fi',
        "done",
        f'[ -n "$_aisbench_here" ] || _aisbench_failed {shlex.quote(f"{RUN}/{names[0]} is nowhere to be found")}',
    ]
    for name in names:
        file, failed = f'"$_aisbench_here"/{shlex.quote(f"{RUN}/{name}")}', shlex.quote(f"{name} was not installed")
        if name.endswith(".whl"):
            lines.append(f"pip install {file} || _aisbench_failed {failed}")
        elif name.endswith(".run"):
            lines += [
                f"chmod +x {file} || _aisbench_root chmod +x {file}",
                f"_aisbench_root {file} --upgrade || _aisbench_failed {failed}",
            ]
    return lines
