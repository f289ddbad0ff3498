"""Executing a configuration that cannot be read otherwise: in a child process, and only where that was asked for."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path
from typing import Any

from pytest_aisbench.errors import UsageFault
from pytest_aisbench.settings.legacy.values import Table

_PATIENCE_S = 60.0
# What the file prints goes to stderr; stdout is ours. `easydict` need not be installed for a dict with attributes.
_CHILD = """
import json, os, runpy, sys, types
answer = os.fdopen(os.dup(1), "w", encoding="utf-8")
os.dup2(2, 1)
try:
    import easydict
except ImportError:
    class EasyDict(dict):
        __getattr__ = dict.__getitem__
        __setattr__ = dict.__setitem__
    sys.modules["easydict"] = easydict = types.ModuleType("easydict")
    easydict.EasyDict = EasyDict
path, names = sys.argv[1], sys.argv[2:]
sys.path.insert(0, os.path.dirname(path))
found = runpy.run_path(path)
def plain(value):
    if isinstance(value, type):
        return {key: item for key, item in vars(value).items() if not key.startswith("__")}
    raise TypeError(f"a {type(value).__name__} is no setting")
json.dump({name: found[name] for name in names if name in found}, answer, default=plain)
answer.close()
"""


def execute(path: Path, names: list[str]) -> Table:
    """What the file binds these names to; of lines nothing is known."""
    command = [sys.executable, "-c", _CHILD, str(path.resolve()), *names]
    try:
        done = subprocess.run(
            command,
            cwd=path.resolve().parent,
            capture_output=True,
            encoding="utf-8",
            errors="replace",
            timeout=_PATIENCE_S,
            check=False,
        )
    except subprocess.TimeoutExpired:
        raise UsageFault(f"{path}: executed, and did not end within {_PATIENCE_S:g} s") from None
    if done.returncode:
        # Only the kind of the error: its text may quote a key.
        last = (done.stderr.strip().splitlines() or ["no word"])[-1].partition(":")[0]
        raise UsageFault(f"{path}: executed, and ended with exit code {done.returncode}: {last}")
    if not done.stdout:
        raise UsageFault(f"{path}: executed, and ended before its last line", advice="take sys.exit out of it")
    return _table(json.loads(done.stdout))


def _table(found: dict[str, Any]) -> Table:
    table = Table()
    for key, value in found.items():
        table.put(key, _plain(value), 0)
    return table


def _plain(value: Any) -> Any:
    if isinstance(value, dict):
        return _table(value)
    return [_plain(item) for item in value] if isinstance(value, list) else value
