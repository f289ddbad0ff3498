"""The one retry policy: which errors are worth another attempt, how long to wait before it, and when to give up.

- An error is transient if it says so itself (`AisbenchError.retryable`: no answer, throttled, half an answer). A
  client may name more, such as the refusal of keys that were accepted a minute ago.
- The pauses double, and each is random within its upper half, so that many clients fall out of step. A server that
  sends Retry-After is left alone for at least as long.
- A client gives up as soon as the next pause would end after its patience does; it then raises the last error.
- A request that may change something is sent once, unless its caller knows that a second one does no harm: the first
  may have been carried out although its answer was lost. `patience_for` says so.
- Each retry is logged to `aisbench.requests`.

The first attempt costs nothing extra: the first transient error imports tenacity, which does the repeating.
"""

from __future__ import annotations

import random
import threading
import time
from collections.abc import Callable
from typing import TYPE_CHECKING, TypeVar

from pytest_aisbench import logs
from pytest_aisbench.errors import AisbenchError

if TYPE_CHECKING:
    from tenacity import RetryCallState

T = TypeVar("T")
CHECK_S = 10.0  # the patience of a check before a run: a person waits at the prompt
LOOK_S = 5.0  # the patience of one look at a job: others wait behind it, and the next look asks again
_FIRST_PAUSE_S = 0.25
_LONGEST_PAUSE_S = 8.0
_MOST_DOUBLINGS = 20  # no pause is longer, and a number that doubles for ever overflows
_CHANCE = random.SystemRandom()  # has no state: a test that seeds `random` gets its own numbers whatever threads retry
_LOG = logs.get_logger("requests")
_LOADING = threading.Lock()  # many threads may fail at once, and pytest's import hook is not thread-safe


def patience_for(method: str, patience_s: float | None, default_s: float) -> float:
    """How long an HTTP request may be repeated: as its caller says, else a GET for `default_s` and all others never."""
    if patience_s is not None:
        return patience_s
    return default_s if method == "GET" else 0.0


class Pauses:
    """The pauses between attempts that fail in a row; for a loop that does more than repeat one request."""

    def __init__(self, longest_s: float = _LONGEST_PAUSE_S) -> None:
        self._longest_s = longest_s
        self._failures = 0

    def after(self, error: BaseException | None) -> float:
        """The seconds to wait after this failure."""
        pause_s = min(self._longest_s, _FIRST_PAUSE_S * 2.0**self._failures)
        self._failures = min(self._failures + 1, _MOST_DOUBLINGS)
        retry_after_s = error.pause_s if isinstance(error, AisbenchError) else 0.0
        return max(retry_after_s, pause_s * _CHANCE.uniform(0.5, 1.0))

    def reset(self) -> None:
        """Forget earlier failures, after an attempt that succeeded."""
        self._failures = 0


def call(
    attempt: Callable[[], T],
    *,
    patience_s: float,
    is_transient: Callable[[AisbenchError], bool] = lambda error: error.retryable,
    from_first_failure: bool = False,
    longest_pause_s: float = _LONGEST_PAUSE_S,
    now: Callable[[], float] | None = None,
    sleep: Callable[[float], object] | None = None,
) -> T:
    """Call `attempt` until it returns. Repeat it after transient errors, for `patience_s` seconds in all.

    The patience counts from now or, for attempts that may take long themselves, `from_first_failure`.
    """
    now, sleep = now or time.monotonic, sleep or time.sleep
    deadline = now() + patience_s
    try:
        return attempt()
    except AisbenchError as error:
        if not is_transient(error):
            raise
        first = error
    if from_first_failure:
        deadline = now() + patience_s
    with _LOADING:
        from tenacity import Retrying, retry_if_exception

    failures, pauses = iter((first,)), Pauses(longest_pause_s)

    def again() -> T:
        for failure in failures:  # let tenacity count the failure from before its import
            raise failure
        return attempt()

    retrying = Retrying(
        retry=retry_if_exception(lambda error: isinstance(error, AisbenchError) and is_transient(error)),
        wait=lambda state: pauses.after(state.outcome.exception() if state.outcome else None),
        stop=lambda state: now() + state.upcoming_sleep > deadline,
        before_sleep=_log,
        sleep=sleep,  # type: ignore[arg-type]  # tenacity ignores what it returns
        reraise=True,
    )
    try:
        return retrying(again)
    finally:
        logs.attempt(1)  # of the next call


def _log(state: RetryCallState) -> None:
    error = state.outcome.exception() if state.outcome else None
    _LOG.info(
        "attempt %d failed, the next one follows in %.2f s: %s", state.attempt_number, state.upcoming_sleep, error
    )
    logs.attempt(state.attempt_number + 1)
