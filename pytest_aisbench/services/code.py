"""A workload's code as its nodes get it: its folders, the software that is to be updated, and `ma-pre-start.sh`."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path, PurePosixPath

from pytest_aisbench.domain.case import Workload
from pytest_aisbench.domain.prestart import RUN, SCRIPT, Update, script
from pytest_aisbench.errors import UsageFault
from pytest_aisbench.services.tree import Tree, plant


def code_tree(workload: Workload, variables: Mapping[str, str] | None = None) -> Tree:
    """`variables` are those that a request cannot carry: the script exports them."""
    folders = [Path(workload.folder) / part for part in workload.code]
    update = workload.update or Update()
    update = replace(update, exports={**(variables or {}), **update.exports})
    return plant(workload.code_name, folders, _additions(workload, update, folders))


def _additions(workload: Workload, update: Update, folders: list[Path]) -> dict[str, Path | bytes]:
    """They go beside the entry, where the platform looks for the script."""
    beside = PurePosixPath(workload.entry).parent
    more: dict[str, Path | bytes] = {}
    for file in update.files:
        path = str(beside / RUN / PurePosixPath(file).name)
        if path in more:
            raise UsageFault(f"update: two files are called {PurePosixPath(file).name}", advice="rename one of the two")
        more[path] = Path(workload.folder) / file
    if update.is_written:
        names = tuple(PurePosixPath(file).name for file in update.files)
        place = str(PurePosixPath(workload.code_name) / beside)
        own = _own_script(folders, beside)
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
