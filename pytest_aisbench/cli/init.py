"""`aisbench init`: write a folder that runs, with a suite, thresholds and settings; and a CI file on request."""

from __future__ import annotations

import argparse
import os
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

from pytest_aisbench.cli import FAILED, add_command
from pytest_aisbench.config import toml_document
from pytest_aisbench.config.options import CONFIG_FILE
from pytest_aisbench.errors import UsageFault, perhaps
from pytest_aisbench.model.case import WORKLOAD_FILE

_PACKAGE = Path(__file__).parents[1]
_STARTER = _PACKAGE / "starter"
# The wheel holds copies of these folders of the repository; a checkout has the folders themselves.
_WHEEL = _PACKAGE / "shipped"
_SUITES = _WHEEL / "suites" if _WHEEL.is_dir() else _PACKAGE.parent / "suites"
_CI = _WHEEL / "ci" if _WHEEL.is_dir() else _PACKAGE.parent / "docs" / "ci"
_CI_FILES = {  # by CI server: the file that we ship, and where the server looks for it
    "github": ("github-workflow.yml", ".github/workflows/acceptance.yml"),
    "gitlab": ("gitlab-ci.yml", ".gitlab-ci.yml"),
    "jenkins": ("Jenkinsfile", "Jenkinsfile"),
}
# Any of these may hold pytest's settings. A pytest.ini beside them would switch those off.
_PYTEST_FILES = ("pytest.ini", ".pytest.ini", "pytest.toml", ".pytest.toml", "pyproject.toml", "tox.ini", "setup.cfg")
_PYTEST_INI = "[pytest]\ntestpaths = suites\n"
_GITIGNORE = "reports/\n.venv/\n__pycache__/\n.pytest_cache/\n"
_MANIFEST = "required.txt"
_REQUIRE = ("require", "suites/", "--nodes", "1,2")  # the node counts of the CI files
_IGNORED = shutil.ignore_patterns("__pycache__", ".*_cache")


def register(commands: Any) -> None:
    names = ", ".join(_shipped_suites())
    parser = add_command(
        commands,
        "init",
        "write a folder that runs: a suite, thresholds, settings, a CI file",
        "aisbench init acceptance --suites resnet50,bert --ci gitlab",
    )
    parser.add_argument("folder", nargs="?", type=Path, default=Path(), metavar="DIR", help="where (default: here)")
    parser.add_argument("--suites", metavar="NAME,NAME", help=f"copy these suites instead of the starter; of {names}")
    parser.add_argument("--ci", choices=_CI_FILES, help=f"also write the file of this CI server, and {_MANIFEST}")
    parser.set_defaults(act=_init)


def _init(options: argparse.Namespace) -> int:
    chosen = _chosen(options.suites) if options.suites is not None else []
    writer = _Writer(options.folder)
    writer.file(CONFIG_FILE, (_STARTER / CONFIG_FILE).read_text(encoding="utf-8"))
    if present := [name for name in _PYTEST_FILES if os.path.lexists(options.folder / name)]:
        writer.keep(present[0])
    else:
        writer.file("pytest.ini", _PYTEST_INI)
    writer.file(".gitignore", _GITIGNORE)
    if chosen:
        for name in _with_shared_code(chosen):
            writer.tree(_SUITES / name, f"suites/{name}")
    else:
        writer.tree(_STARTER / "suites", "suites")
    code = _write_ci(writer, options.ci) if options.ci else 0
    print("\n".join(_next_steps(options.folder, chosen)))
    return code


def _shipped_suites() -> list[str]:
    """The names of the suites that can be copied; the other folders beside them hold code that suites share."""
    return sorted(file.parent.name for file in _SUITES.glob("*/test_*.py"))


def _chosen(names: str) -> list[str]:
    shipped = _shipped_suites()
    chosen = [name for name in map(str.strip, names.split(",")) if name]
    for name in chosen:
        if name not in shipped:
            raise UsageFault(f"--suites: there is no suite {name!r}", advice=perhaps(name, shipped))
    if not chosen:
        raise UsageFault("--suites names no suite", advice=f"known: {', '.join(shipped)}")
    return chosen


def _with_shared_code(suites: Sequence[str]) -> list[str]:
    """The suites, and the folders beside them from which their code comes too (`code = ["code", "../miniature"]`)."""
    folders = dict.fromkeys(suites)
    for suite in suites:
        file = _SUITES / suite / WORKLOAD_FILE
        for part in _code_folders(toml_document.read(file).data) if file.is_file() else ():
            beside = (file.parent / part).resolve()
            if beside.parent == _SUITES.resolve():
                folders[beside.name] = None
    return list(folders)


def _code_folders(table: dict[str, Any]) -> Iterator[str]:
    """What `code` names, at the top of workload.toml and in the sections of platforms."""
    for key, value in table.items():
        if key == "code":
            yield from value
        elif isinstance(value, dict):
            yield from _code_folders(value)


def _write_ci(writer: _Writer, server: str) -> int:
    source, target = _CI_FILES[server]
    writer.file(target, (_CI / source).read_text(encoding="utf-8"))
    command = " ".join(("aisbench", *_REQUIRE, ">", _MANIFEST))
    if os.path.lexists(writer.folder / _MANIFEST):
        writer.keep(_MANIFEST)
        return 0
    done = subprocess.run(
        [sys.executable, "-m", "pytest_aisbench", *_REQUIRE],
        cwd=writer.folder,
        capture_output=True,
        text=True,
        check=False,
    )
    if done.returncode:
        print(done.stderr.rstrip(), file=sys.stderr)
        print(f"aisbench init: no {_MANIFEST} was written; mend the suites, then run `{command}`", file=sys.stderr)
        return FAILED
    writer.file(_MANIFEST, done.stdout)
    return 0


def _next_steps(folder: Path, suites: Sequence[str]) -> Iterator[str]:
    into = "" if folder == Path() else f"cd {folder} && "
    # The suites of clusters go up to eight nodes of eight cards, which are 64 processes here.
    yield f"now run:  {into}pytest{' --nodes 1' if suites else ''}"
    yield "It trains on a local cloud on this machine, without an account. aisbench.toml says how to choose another."


class _Writer:
    """Writes below one folder, prints a line for each thing, and leaves what is there as it is."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        try:
            folder.mkdir(parents=True, exist_ok=True)
        except OSError as error:
            raise _unwritable(folder, error) from None

    def file(self, name: str, text: str) -> None:
        target = self.folder / name
        try:
            target.parent.mkdir(parents=True, exist_ok=True)
            with target.open("x", encoding="utf-8", newline="\n") as opened:
                opened.write(text)
        except FileExistsError:
            self.keep(name)
        except OSError as error:
            raise _unwritable(target, error) from None
        else:
            print(f"wrote {name}")

    def tree(self, source: Path, name: str) -> None:
        """Copy a folder as a whole: with half of it from another version, a suite would not fit together."""
        target = self.folder / name
        if os.path.lexists(target):
            self.keep(f"{name}/")
            return
        try:
            target.parent.mkdir(parents=True, exist_ok=True)
            with tempfile.TemporaryDirectory(prefix=".aisbench-", dir=target.parent) as place:
                copied = shutil.copytree(source, Path(place, target.name), ignore=_IGNORED)
                copied.rename(target)
        except (OSError, shutil.Error) as error:
            raise _unwritable(target, error) from None
        print(f"wrote {name}/")

    def keep(self, name: str) -> None:
        print(f"kept  {name}, which is there already")


def _unwritable(path: Path, error: OSError) -> UsageFault:
    return UsageFault(f"{path} cannot be written: {error.strerror or error}")
