"""`ma-pre-start.sh`, which ModelArts runs on every node before training: new software, and what it may log.

The platform runs the script beside the boot file, whatever that is called, in a folder above it; variables that it
exports reach the training.
"""

from __future__ import annotations

import shlex
from collections.abc import Mapping
from dataclasses import dataclass, field

SCRIPT = "ma-pre-start.sh"
RUN = "run"  # the folder beside the entry that holds what is installed
FILES = {  # key of `update`: what such a file is called
    "wheels": (r"\S+\.whl", "a wheel"),
    "cann": (r"Ascend-cann-(nnae|nnrt|toolkit)[_-]\S*\.run", "an Ascend-cann-nnae, -nnrt or -toolkit package (.run)"),
}
LEVELS = {  # what a value means is in its place
    "GLOG_v": ("INFO", "WARNING", "ERROR", "FATAL"),
    "ASCEND_GLOBAL_LOG_LEVEL": ("DEBUG", "INFO", "WARNING", "ERROR", "NULL"),
    "ASCEND_GLOBAL_EVENT_ENABLE": ("off", "on"),
    "ASCEND_SLOG_PRINT_TO_STDOUT": ("off", "on"),
}


@dataclass(frozen=True)
class Update:
    """Software that the nodes get before they train, and variables that are exported there."""

    files: tuple[str, ...] = ()  # relative to the workload's folder; .whl and .run are installed in this order
    exports: Mapping[str, str] = field(default_factory=dict)
    installed: bool = True  # False: the workload's own script does it, and the files are only put beside it

    @property
    def is_written(self) -> bool:
        """Whether there is a script to write."""
        return bool((self.installed and self.files) or self.exports)


def level_fault(name: str, value: object) -> str:
    """Why this is no value of a log level; empty where it is one, and for every other variable."""
    words = LEVELS.get(name)
    if words is None or str(value) in map(str, range(len(words))):
        return ""
    meanings = ", ".join(f"{number} {word}" for number, word in enumerate(words))
    return f"{name} is none of {meanings}"


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
