"""A workload's code as its nodes get it: its folders, the software that is to be updated, and `ma-pre-start.sh`."""

from __future__ import annotations

from pathlib import Path, PurePosixPath

from pytest_aisbench.domain.case import Workload
from pytest_aisbench.domain.prestart import RUN, SCRIPT, script
from pytest_aisbench.errors import UsageFault
from pytest_aisbench.services.tree import Tree, plant


def code_tree(workload: Workload) -> Tree:
    folders = [Path(workload.folder) / part for part in workload.code]
    return plant(workload.code_name, folders, _additions(workload, folders))


def _additions(workload: Workload, folders: list[Path]) -> dict[str, Path | bytes]:
    """They go beside the entry, where the platform looks for the script."""
    update = workload.update
    if update is None:
        return {}
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
