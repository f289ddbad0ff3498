"""A run that judges one case, uploads it and ends, and kills itself at a named point on the way.

`python upload_victims.py LEDGER TESTER POINT`; the points are in the order in which an upload passes them.
"""

from __future__ import annotations

import os
import signal
import socket
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

from factories import make_case_entry

from pytest_aisbench.config.access import TesterAccess
from pytest_aisbench.ledger.lease import this_process
from pytest_aisbench.ledger.ledger import Ledger
from pytest_aisbench.ledger.outbox import Outbox
from pytest_aisbench.model.clock import SystemClock
from pytest_aisbench.model.results import Destination, UploadItem, UploadState
from pytest_aisbench.secret import Secret
from pytest_aisbench.tester import uploader
from pytest_aisbench.tester.transports import make_transport

POINTS = (
    "judged",
    "while spooling",
    "spooled",
    "while sending",
    "sent",
    "stored",  # by the Tester, which did not answer yet
    "answered",
    "while marking",
    "marked",
    "ended",
    "end spooled",
)
ENDED = POINTS[-2:]
RUN = "run-1"
TOKEN = os.environ.get("TESTER_TOKEN", "token-of-a-local-tester")
CASE = make_case_entry()


def die() -> None:
    os.kill(os.getpid(), signal.SIGKILL)


class _Traced:
    """A connection of SQLite whose statement that begins so is the last one."""

    def __init__(self, ledger: Ledger, word: str) -> None:
        self._word, self._begun = word, False
        ledger.database._db.set_trace_callback(self._see)

    def _see(self, statement: str) -> None:
        self._begun = self._begun or statement.startswith(self._word)
        if self._begun and statement.startswith("COMMIT" if "INSERT" in self._word else self._word):
            die()


def main(file: Path, tester: str, point: str) -> None:
    clock, ledger = SystemClock(), Ledger(file)
    outbox = Outbox(ledger.database)
    ledger.begin(RUN, {}, clock.now(), this_process(), clock.now() + 3600)
    outbox.set_destination(RUN, Destination(tester, "local", str(file.parent)))
    ledger.save_case(RUN, 0, CASE)
    at: dict[str, Callable[[], Any]] = {point: die}

    def reach(name: str) -> None:
        at.get(name, lambda: None)()

    reach("judged")
    if point == "while spooling":
        _Traced(ledger, "INSERT INTO uploads")
    uploader.fill_outbox(outbox, clock.now(), RUN)
    reach("spooled")
    way = make_transport(tester, TesterAccess(token=Secret(TOKEN)))

    def send(upload: UploadItem) -> None:
        if point in {"while sending", "sent", "stored"}:
            _half(tester, upload, point)
        way.send(upload)
        reach("answered")

    if point == "while marking":
        _Traced(ledger, "UPDATE uploads")
    (upload,) = outbox.waiting(RUN)
    assert uploader.send_once(outbox, upload, send, clock) is None
    reach("marked")
    assert outbox.of(RUN)[0].state is UploadState.DELIVERED
    ledger.finish(RUN, 0, clock.now())
    reach("ended")
    uploader.fill_outbox(outbox, clock.now(), RUN)
    reach("end spooled")


def _half(tester: str, upload: UploadItem, point: str) -> None:
    """The request by hand: half of it, or all of it without waiting for the answer, or with, unread."""
    address = urlsplit(tester)
    body = upload.body.encode()
    head = (
        f"POST /api/v1/tests/{upload.testid}/results HTTP/1.1\r\nHost: {address.netloc}\r\n"
        f"Idempotency-Key: {upload.key}\r\nAuthorization: Bearer {TOKEN}\r\nContent-Length: {len(body)}\r\n\r\n"
    )
    with socket.create_connection((address.hostname or "", address.port or 0)) as connection:
        connection.sendall(head.encode() + (body[: len(body) // 2] if point == "while sending" else body))
        if point == "stored":
            assert connection.recv(12) == b"HTTP/1.1 201"
        die()


if __name__ == "__main__":
    main(Path(sys.argv[1]), sys.argv[2], sys.argv[3])
