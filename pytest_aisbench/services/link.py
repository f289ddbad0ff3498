"""How workers of pytest-xdist reach the Fleet, which lives on the controller alone."""

from __future__ import annotations

import secrets
import threading
from collections.abc import Callable, Mapping
from multiprocessing.connection import Client, Connection, Listener
from typing import Any

from pytest_aisbench.logs import get_logger, ignored, log_ignored

_LOG = get_logger("session")


class Link:
    """The controller's end: answers calls to the named functions, each worker in a thread of its own."""

    def __init__(self, answers: Mapping[str, Callable[..., Any]]) -> None:
        self.key = secrets.token_bytes(32)
        self._answers = answers
        self._closed = False
        self._listener = Listener(authkey=self.key)
        threading.Thread(target=self._accept, name="aisbench-link", daemon=True).start()

    @property
    def address(self) -> str:
        return str(self._listener.address)

    def close(self) -> None:
        self._closed = True
        self._listener.close()

    def _accept(self) -> None:
        while True:
            try:
                connection = self._listener.accept()
            except Exception as error:  # noqa: BLE001 - somebody without the key, or who hung up: the next may be a worker
                if self._closed:
                    return
                log_ignored(_LOG, error, "a connection to the Fleet that is no worker's")
                continue
            threading.Thread(target=self._serve, args=(connection,), name="aisbench-worker-link", daemon=True).start()

    def _serve(self, connection: Connection) -> None:
        with connection, ignored(_LOG, (EOFError, OSError), "the connection of a worker that ended"):
            while True:
                name, arguments = connection.recv()
                try:
                    answer: Any = self._answers[name](*arguments)
                    failed = False
                except Exception as error:  # noqa: BLE001 - it belongs to the caller
                    answer, failed = error, True
                connection.send((failed, answer))


class RemoteLink:
    """A worker's end."""

    def __init__(self, address: str, key: bytes) -> None:
        self._connection = Client(address, authkey=key)
        self._lock = threading.Lock()

    def call(self, name: str, *arguments: Any) -> Any:
        """What the function returned on the controller, or the error that it raised there."""
        with self._lock:
            self._connection.send((name, arguments))
            failed, answer = self._connection.recv()
        if failed:
            raise answer
        return answer

    def close(self) -> None:
        self._connection.close()
