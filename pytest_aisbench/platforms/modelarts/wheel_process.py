"""Runs the vendor's `modelarts` wheel in a process of its own. `wheel.py` starts it.

The wheel prints, keeps its endpoints process-wide, has no time limits, pins old versions of libraries, and runs on
Pythons that pytest no longer supports. So `wheel.py` runs this file by its path, in a Python from 3.7 on that has the
wheel, and this file imports nothing of ours. For each JSON line that comes in one goes out: `open` makes the session,
every other line is a call.
"""

from __future__ import annotations

import importlib
import json
import os
import sys
from pathlib import Path
from typing import Any

_SESSION = "session"  # {"$": "session"} stands for the session, {"$": "module.Class", "with": {…}} for an object

_KEYS = ("access_key", "secret_key", "security_token")  # of a notebook's user: its session has them


class Caller:
    def __init__(self) -> None:
        self._session: Any = None

    def answer(self, asked: dict[str, Any]) -> dict[str, Any]:
        try:
            if "open" in asked:
                return self._open(**asked["open"])
            return {"answer": _plain(self._call(asked["of"], asked["call"], asked["args"]))}
        except Exception as error:  # noqa: BLE001  (whatever the wheel may raise)
            return {"raised": [kind.__name__ for kind in type(error).__mro__], "said": str(error)}

    def _open(self, modules: list[str], endpoints: dict[str, str], credentials: dict[str, str]) -> dict[str, Any]:
        try:
            for module in modules:
                importlib.import_module(module)
        except Exception as error:  # noqa: BLE001  (whatever an import may raise)
            return {"unloaded": getattr(error, "name", None) or "", "said": str(error)}
        session = importlib.import_module("modelarts.session").Session
        if endpoints:
            session.set_endpoint(**endpoints)  # before the constructor, which uses them
        self._session = session(**credentials)
        return {"answer": {} if credentials else {key: getattr(self._session, key, None) for key in _KEYS}}

    def _call(self, of: Any, name: str, args: dict[str, Any]) -> Any:
        target = _named(of) if isinstance(of, str) else self._made(of)
        return getattr(target, name)(**{key: self._made(value) for key, value in args.items()})

    def _made(self, value: Any) -> Any:
        if isinstance(value, list):
            return [self._made(each) for each in value]
        if not isinstance(value, dict) or "$" not in value:
            return value
        if value["$"] == _SESSION:
            return self._session
        return _named(value["$"])(**{key: self._made(each) for key, each in value["with"].items()})


def _named(path: str) -> Any:
    module, _, name = path.rpartition(".")
    return getattr(importlib.import_module(module), name)


def _plain(result: Any) -> Any:
    """For JSON: the ids of a job, or, if it was not created, what the wheel says about it, which is the reason."""
    if isinstance(result, (list, tuple)):
        return [_plain(each) for each in result]
    if hasattr(result, "job_id"):
        ids = {key: getattr(result, key, None) for key in ("job_id", "version_id")}
        return ids if ids["job_id"] else result.get_job_info()
    return result


def main() -> None:
    requests, replies = os.fdopen(os.dup(0)), os.fdopen(os.dup(1), "w")
    nothing = os.open(os.devnull, os.O_RDWR)
    for stream in (0, 1, 2):  # what the wheel prints is no reply
        os.dup2(nothing, stream)
    ours = Path(__file__).resolve().parent
    sys.path[:] = [entry for entry in sys.path if Path(entry).resolve() != ours]  # it has a module `modelarts`, too
    caller = Caller()
    for line in requests:
        replies.write(json.dumps(caller.answer(json.loads(line)), default=str) + "\n")
        replies.flush()


if __name__ == "__main__":
    main()
