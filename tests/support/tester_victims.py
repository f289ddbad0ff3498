"""The open Tester, which kills itself at a named point of an upload: `python tester_victims.py POINT --db URL …`."""

from __future__ import annotations

import os
import signal
import sys
from typing import Any

from sqlalchemy import event

from pytest_aisbench import cli
from pytest_aisbench.tester_server import api, app, schema

POINTS = (
    "received",  # all of it, and nothing is written
    "parcel written",  # in a transaction that is open
    "result written",
    "before commit",
    "after commit",  # and nobody was told
)
_STATEMENTS = {"parcel written": "INSERT INTO parcels", "result written": "INSERT INTO results"}


def die(*_: Any) -> None:
    os.kill(os.getpid(), signal.SIGKILL)


def arm(point: str) -> None:
    taking, opening = api.store_upload, schema.open_engine

    def take(*arguments: Any) -> int:
        if point == "received":
            die()
        return taking(*arguments)

    def open_engine(url: Any) -> Any:
        engine = opening(url)

        def wrote(_connection: Any, _cursor: Any, statement: str, *_: Any) -> None:
            if point in _STATEMENTS and statement.strip().startswith(_STATEMENTS[point]):
                die()
            seen.append(statement)

        def commit(_connection: Any) -> None:
            if point == "before commit" and any("INSERT INTO results" in statement for statement in seen):
                die()

        seen: list[str] = []
        event.listen(engine, "after_cursor_execute", wrote)
        event.listen(engine, "commit", commit)
        return engine

    setattr(api, "store_upload", take)  # noqa: B010 - a stranger's hand in the module
    setattr(app, "open_engine", open_engine)  # noqa: B010
    if point == "after commit":
        setattr(api, "JSONResponse", die)  # noqa: B010


if __name__ == "__main__":
    arm(sys.argv[1])
    sys.exit(cli.main(["tester", *sys.argv[2:]]))
