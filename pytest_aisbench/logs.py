"""The client's log: Python's `logging` below the name `aisbench`, without a secret in any record.

Each module takes its logger from `get_logger`, which attaches the mask: a filter of the logger `aisbench` alone would
not see the records of `aisbench.fleet`. The mask works on the record, before any handler has it, so that pytest's live
log, its log file and captured logs, and any handler of the user's, get the same text.
"""

from __future__ import annotations

import contextlib
import logging
import threading
import time
import traceback
from types import TracebackType
from typing import TYPE_CHECKING

from pytest_aisbench.errors import AisbenchError
from pytest_aisbench.secret import mask

if TYPE_CHECKING:
    from typing_extensions import Self

Kinds = type[BaseException] | tuple[type[BaseException], ...]
ROOT = "aisbench"
_BELOW = ("urllib3.connectionpool", "urllib3.connection", "urllib3.util.retry", "urllib3.poolmanager", "requests")
"""Loggers of the libraries that carry our requests."""

_thread = threading.local()  # `attempt`: of this thread's next request; `sending`: it is under way


class _Mask(logging.Filter):
    """Writes each record's text out, exception included, and takes the secrets from it. Drops no record.

    What a platform or a training script wrote stays on its line: it must not look like a record of its own, move a
    terminal's cursor, or give a CI server a command.
    """

    def filter(self, record: logging.LogRecord) -> bool:
        try:
            text = record.getMessage()
        except Exception as error:  # noqa: BLE001 - a wrong format must not end a run
            text = f"{record.msg} (with arguments that do not fit: {error})"
        record.msg, record.args = _in_one_line(mask(text)), None
        if record.exc_info:
            # Handlers that find a text do not write one of their own.
            kind, error_raised, tb = record.exc_info
            record.exc_text = "".join(traceback.format_exception(kind, error_raised, tb)).rstrip()
            record.exc_info = None
        if record.exc_text:
            record.exc_text = _indented(mask(record.exc_text))
        if record.stack_info:
            record.stack_info = _indented(mask(record.stack_info))
        return True


def _in_one_line(text: str) -> str:
    if text.isprintable():
        return text
    return "".join(char if char.isprintable() else char.encode("unicode_escape").decode() for char in text)


def _indented(lines: str) -> str:
    return "\n".join(f"  | {_in_one_line(line)}" for line in lines.splitlines())


class _MaskBelow(_Mask):
    """For libraries below our clients: also drops the line that they write for each request, since we write one."""

    def filter(self, record: logging.LogRecord) -> bool:
        if record.levelno <= logging.DEBUG and getattr(_thread, "sending", False):
            return False
        return super().filter(record)


_MASK, _MASK_BELOW = _Mask(), _MaskBelow()
for _name in _BELOW:
    logging.getLogger(_name).addFilter(_MASK_BELOW)  # noqa: TID251
# Without it Python prints warnings to stderr wherever logging is not set up: in `aisbench`, and between tests.
logging.getLogger(ROOT).addHandler(logging.NullHandler())  # noqa: TID251


def get_logger(topic: str) -> logging.Logger:
    """The logger `aisbench.<topic>`, whose records carry no secret. docs/reference.md lists the topics."""
    logger = logging.getLogger(f"{ROOT}.{topic}")  # noqa: TID251
    logger.addFilter(_MASK)  # adds one filter once, however often it is asked to
    return logger


_REQUESTS = get_logger("requests")


def attempt(number: int) -> None:
    """Say which attempt of its call this thread's next request is."""
    _thread.attempt = number


class Exchange:
    """One request, logged when it ends: `with Exchange("GET", address) as exchange`, which then sets the `status`.

    The address has no query: it may hold a signature, and our own queries say nothing that the path does not.
    """

    __slots__ = ("_address", "_began", "error", "method", "request_id", "status")

    def __init__(self, method: str, address: str) -> None:
        self.method = method
        self._address = address
        self.status: int | str = 0  # of HTTP, or a word where the client does not tell it
        self.error: BaseException | None = None  # by which it ended; one that is raised need not be named
        self.request_id = ""

    def __enter__(self) -> Self:
        self._began = time.monotonic()
        _thread.sending = True
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, tb: TracebackType | None) -> None:
        _thread.sending = False
        if not _REQUESTS.isEnabledFor(logging.DEBUG):
            return
        error = error or self.error
        answer = f"{type(error).__name__}: {error}" if error else self.status or "no answer"
        number = getattr(_thread, "attempt", 1)
        more = f", attempt {number}" if number > 1 else ""
        if self.request_id:
            more += f", request {self.request_id}"
        took = 1000 * (time.monotonic() - self._began)
        _REQUESTS.debug("%s %s -> %s, %.0f ms%s", self.method, self._address, answer, took, more, stacklevel=2)


class ignored(contextlib.suppress):  # noqa: N801, TID251 - used as the function that it extends
    """`contextlib.suppress` that logs the error: `with ignored(log, OSError, "the last lines of %s", name): …`."""

    def __init__(
        self, logger: logging.Logger, kinds: Kinds, lost: str, *names: object, level: int = logging.DEBUG
    ) -> None:
        """`lost` says, with the `names` filled in, what is missing or was not done when such an error came."""
        super().__init__(*(kinds if isinstance(kinds, tuple) else (kinds,)))
        self._logger = logger
        self._lost = lost
        self._names = names
        self._level = level

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, tb: TracebackType | None) -> bool:
        suppressed = bool(super().__exit__(kind, error, tb))
        if suppressed and error is not None:
            log_ignored(self._logger, error, self._lost, *self._names, level=self._level, stacklevel=3)
        return suppressed


def log_ignored(
    logger: logging.Logger,
    error: BaseException,
    lost: str,
    *names: object,
    level: int = logging.DEBUG,
    stacklevel: int = 2,
) -> None:
    """Log an error that ends here, and what is lost by it; with a traceback where its text is not meant for people."""
    if logger.isEnabledFor(level):
        traceback_of = None if isinstance(error, (AisbenchError, OSError, EOFError)) else error
        what, kind = lost % names if names else lost, type(error).__name__
        logger.log(level, "%s: ignored %s: %s", what, kind, error, exc_info=traceback_of, stacklevel=stacklevel)
