"""Checks custom images and their commands before ModelArts does, and writes its pre-start script.

ModelArts finds these mistakes only when the job runs, and costs: a shell script given to Python, code in the wrong
folder, arguments that reach the wrong command, ports where hosts are expected. `ma-pre-start.sh` runs on every node
before training: it installs new software, and sets variables.
"""

from __future__ import annotations

import re
import shlex
from collections.abc import Iterable, Mapping
from dataclasses import replace
from pathlib import Path, PurePosixPath

from pytest_aisbench.errors import UsageFault
from pytest_aisbench.model.case import Update, Workload

JOB_DIRS = {"V1": "/home/work/user-job-dir", "V2": "/home/ma-user/modelarts/user-job-dir"}
ENTRY = "/home/work/run_train.sh"

_IMAGE = re.compile(r"[\w.-]+(?::\d+)?(?:/[\w.-]+)+(?::[\w.-]+)?(?:@sha256:[0-9a-f]{64})?")
_PYTHON_RUNS_SHELL = re.compile(r"(?P<python>\S*\bpython[\d.]*)(?P<between>(?:\s+-\w+)*\s+)(?P<script>\S+\.sh)\b")
_SHELL_RUNS_PYTHON = re.compile(r"\b(?P<shell>bash|sh)(?P<between>\s+)(?P<script>\S+\.py)\b")
_JOB_DIR = re.compile(
    r"(?P<folder>\$\{?MA_JOB_DIR\}?|/home/work/user-job-dir|/home/ma-user/modelarts/user-job-dir)/(?P<rest>[^\s'\";|&]*)"
)
_SEPARATORS = re.compile(r"&&|\|\||[;|&]")
_TAKES_NO_ARGUMENTS = {"", "tee", "echo", "cd", "exit", "export", "sleep", "true", "wait", "cat", "grep"}
_HOSTS_ASKED_FOR = re.compile(r"--?(?:cluster_node_ips|ips|hosts?)\b")
_PORT_CUT_OFF = re.compile(r"%%?:|\bcut\s+-d|\bsed\b|\bawk\b|\btr\b|:\*\}|split\(['\"]:")
_INTERPRETERS = {".py": "python", ".sh": "bash"}


def default_command(entry: str, *, version: str, code: str) -> str:
    """The command that starts the entry of a workload in a custom image."""
    interpreter = next((name for suffix, name in _INTERPRETERS.items() if entry.endswith(suffix)), "")
    if not interpreter:
        advice = "name a .py or .sh file, or write a command beside the image"
        raise UsageFault(f"entry {entry!r} in workload.toml is neither Python nor shell", advice=advice)
    started = f"bash {ENTRY} {interpreter} {JOB_DIRS['V1']}" if version == "V1" else f"{interpreter} ${{MA_JOB_DIR}}"
    return f"{started}/{code}/{entry}"


def check_image(image: str) -> None:
    """Raise unless it is an address of a registry: `host/organisation/name:tag`, or without the host."""
    if "://" in image:
        raise UsageFault(f"image {image!r} is a url", advice=f"write {image.partition('://')[2]!r}")
    if not _IMAGE.fullmatch(image):
        advice = "write <registry>/<organisation>/<name>:<tag>, as `docker push` was given it"
        raise UsageFault(f"image {image!r} is no address of an image", advice=advice)


def check_command(command: str, *, version: str, code: str, arguments: bool = True) -> None:
    """Raise for a command that cannot work. `code` is the name of the code's folder in the container. `arguments`: the
    job has parameters, inputs or outputs, which V2 appends to the command."""
    _check_form(command)
    _check_interpreters(command)
    _check_folders(command, version, code)
    if version == "V1":
        _check_v1(command)
    else:
        _check_v2(command, arguments=arguments)


def check_code(workload: Workload, scripts: Iterable[tuple[str, str]]) -> None:
    """Check the scripts of a workload with a custom image; an engine of the platform runs them in another way."""
    if "image" in workload.options:
        for path, text in scripts:
            check_script(path, text)


def check_script(name: str, content: str) -> None:
    """Raise if a script passes V1's hosts, which have ports, to a launcher that takes hosts without ports."""
    if "BATCH_CUSTOM" in content and _HOSTS_ASKED_FOR.search(content) and not _PORT_CUT_OFF.search(content):
        raise UsageFault(
            f"{name} passes BATCH_CUSTOM<i>_HOSTS on as hosts, but each is host:port",
            advice="cut the port off, such as host=${!key%%:*} with key=BATCH_CUSTOM${i}_HOSTS",
        )


def _check_form(command: str) -> None:
    if not command.strip():
        raise UsageFault("the command of the image is empty", advice="write what the container is to run")
    if "\n" in command.strip():
        raise UsageFault("the command of the image has several lines", advice="join them with &&, or use a script")


def _check_interpreters(command: str) -> None:
    if match := _PYTHON_RUNS_SHELL.search(command):
        right = command[: match.start()] + f"bash {match['script']}" + command[match.end() :]
        raise UsageFault(f"{match[0]!r}: Python cannot run a shell script", advice=f"write {right!r}")
    if match := _SHELL_RUNS_PYTHON.search(command):
        right = command[: match.start()] + f"python {match['script']}" + command[match.end() :]
        raise UsageFault(f"{match[0]!r}: a shell cannot run a Python script", advice=f"write {right!r}")


def _check_folders(command: str, version: str, code: str) -> None:
    job_dir = JOB_DIRS[version]
    for match in _JOB_DIR.finditer(command):
        folder, rest = match["folder"], match["rest"]
        if folder not in {job_dir, "$MA_JOB_DIR", "${MA_JOB_DIR}"} or (version == "V1" and folder.startswith("$")):
            right = f"{job_dir}/{rest}"
            raise UsageFault(f"{match[0]}: {version} has the code in {job_dir}", advice=f"write {right}")
        if rest.partition("/")[0] != code and not rest.startswith("$"):
            right = f"{folder}/{code}/{rest}"
            raise UsageFault(f"{match[0]}: the name of the code's folder is missing", advice=f"write {right}")


def _check_v1(command: str) -> None:
    if ENTRY not in command and JOB_DIRS["V1"] in command:
        raise UsageFault(
            f"the command does not run {ENTRY}, which brings the code into the container",
            advice=f"write {f'bash {ENTRY} {command}'!r}",
        )
    if re.search(rf"\bsh\s+{re.escape(ENTRY)}", command):
        raise UsageFault(f"{ENTRY} is a script of bash", advice=f"write bash {ENTRY}")


def _check_v2(command: str, *, arguments: bool) -> None:
    if "run_train.sh" in command:
        raise UsageFault("run_train.sh is V1's: a job of V2 has no DLS_ variables", advice="run the script itself")
    if re.search(r"\b(?:conda|source)\s+activate\b", command):
        raise UsageFault(
            "the command activates an environment of conda, but runs in no shell session",
            advice="name its Python, such as /home/ma-user/miniconda3/envs/NAME/bin/python",
        )
    last = _SEPARATORS.split(command)[-1].split()
    if arguments and (last[0] if last else "") in _TAKES_NO_ARGUMENTS:
        raise UsageFault(
            f"the command ends with {' '.join(last) or 'a separator'!r}, where --train_url and the parameters land",
            advice="let the training script be the last command",
        )


# The pre-start script

PRE_START_SCRIPT = "ma-pre-start.sh"
RUN = "run"  # the folder beside the entry with the files to install


def pre_start_files(workload: Workload, variables: Mapping[str, str]) -> dict[str, str | bytes]:
    """The files to install and the script, by their paths. They lie beside the entry, where ModelArts looks.

    The script exports `variables`, which V1's request cannot carry.
    """
    update = workload.update or Update()
    update = replace(update, exports={**variables, **update.exports})
    beside = PurePosixPath(workload.entry).parent
    files: dict[str, str | bytes] = {}
    for file in update.files:
        path = str(beside / RUN / PurePosixPath(file).name)
        if path in files:
            raise UsageFault(f"update: two files are called {PurePosixPath(file).name}", advice="rename one of the two")
        files[path] = str(Path(workload.folder) / file)
    if update.is_written:
        names = tuple(PurePosixPath(file).name for file in update.files)
        folder = str(PurePosixPath(workload.code_name) / beside)
        own = _own_script([Path(workload.folder) / part for part in workload.code], beside)
        files[str(beside / PRE_START_SCRIPT)] = pre_start_script(update, names, folder, own).encode()
    return files


def _own_script(folders: list[Path], beside: PurePosixPath) -> str:
    for folder in folders:
        other = folder / beside / PRE_START_SCRIPT.replace(".sh", ".py")
        if other.exists():
            advice = f"call it from a {PRE_START_SCRIPT} of your own, which is kept"
            raise UsageFault(
                f"{other} would not be run beside the {PRE_START_SCRIPT} that the update needs", advice=advice
            )
        try:
            return (folder / beside / PRE_START_SCRIPT).read_text(encoding="utf-8")
        except FileNotFoundError:
            continue
        except (OSError, UnicodeDecodeError) as error:
            raise UsageFault(f"{folder / beside / PRE_START_SCRIPT} cannot be read: {error}") from None
    return ""


def pre_start_script(update: Update, names: tuple[str, ...], folder: str, own: str = "") -> str:
    """`names` are the files in `run/`. `folder` is the entry's folder below the job's code, such as `bert/src`. `own`
    is the workload's own script, which comes last and may override the rest."""
    lines = ["#!/bin/bash", "# Written by pytest-aisbench for this job."]
    if update.installed and names:
        lines += _installation(names, folder)
    lines += [f"export {name}={shlex.quote(value)}" for name, value in update.exports.items()]
    if own:
        lines += ["", f"# From here on: the workload's own {PRE_START_SCRIPT}.", own.rstrip("\n")]
    return "\n".join(lines) + "\n"


def _installation(names: tuple[str, ...], folder: str) -> list[str]:
    marker = shlex.quote(f"{RUN}/{names[0]}")
    below = shlex.quote(folder)
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
