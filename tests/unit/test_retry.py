"""The retry policy: what is repeated, after which pauses, until when; by a clock that the test holds in its hand."""

from __future__ import annotations

import logging
import random
import sys
from collections.abc import Callable

import pytest
from held_time import HeldTime

from pytest_aisbench.errors import AisbenchError, Garbled, Refused, Rejected, Throttled, Unreachable
from pytest_aisbench.logs import Exchange
from pytest_aisbench.net import retry


@pytest.fixture
def clock(monkeypatch: pytest.MonkeyPatch) -> HeldTime:
    clock = HeldTime()
    monkeypatch.setattr(retry, "time", clock)
    return clock


class Script:
    """An attempt that raises these errors in turn, the last one for ever, or succeeds after them."""

    def __init__(self, *errors: BaseException, succeeds: bool = True, takes: Callable[[], None] = lambda: None) -> None:
        self.errors = errors
        self.succeeds = succeeds
        self.takes = takes
        self.count = 0

    def __call__(self) -> str:
        self.takes()
        self.count += 1
        if self.succeeds and self.count > len(self.errors):
            return "answer"
        raise self.errors[min(self.count, len(self.errors)) - 1]


@pytest.mark.parametrize("error", [Unreachable("no answer"), Throttled("slow down"), Garbled("a page")])
def test_a_transient_error_is_followed_by_another_attempt(clock: HeldTime, error: AisbenchError) -> None:
    attempt = Script(error, error, error)
    assert retry.call(attempt, patience_s=60.0) == "answer"
    assert attempt.count == 4
    assert len(clock.waits) == 3


@pytest.mark.parametrize("error", [Refused("keys"), Rejected("a bad request"), ValueError("ours"), KeyboardInterrupt()])
@pytest.mark.parametrize("before", [0, 2])
def test_any_other_error_ends_it_at_once(clock: HeldTime, error: BaseException, before: int) -> None:
    attempt = Script(*[Unreachable("no answer")] * before, error)
    with pytest.raises(type(error)) as raised:
        retry.call(attempt, patience_s=60.0)
    assert raised.value is error
    assert (attempt.count, len(clock.waits)) == (before + 1, before)


def test_a_client_may_know_more_transient_errors(clock: HeldTime) -> None:
    attempt = Script(Refused("keys, for a minute"))
    assert retry.call(attempt, patience_s=60.0, is_transient=lambda error: isinstance(error, Refused)) == "answer"


@pytest.mark.parametrize("error", [Unreachable("no answer"), Throttled("slow down", pause_s=0.001)])
def test_without_patience_a_request_is_sent_once(clock: HeldTime, error: AisbenchError) -> None:
    attempt = Script(error)
    with pytest.raises(type(error)):
        retry.call(attempt, patience_s=0.0)
    assert (attempt.count, clock.waits) == (1, [])


@pytest.mark.parametrize(
    ("method", "given", "patience_s"),
    [("GET", None, 60.0), ("GET", 5.0, 5.0), ("GET", 0.0, 0.0), ("POST", None, 0.0), ("POST", 5.0, 5.0)],
)
def test_only_a_get_is_repeated_unless_its_caller_says_so(method: str, given: float | None, patience_s: float) -> None:
    assert retry.patience_for(method, given, 60.0) == patience_s


def test_the_last_error_is_raised_before_the_patience_ends(clock: HeldTime) -> None:
    errors = [Unreachable(str(number)) for number in range(99)]
    began, attempt = clock.now, Script(*errors, succeeds=False)
    with pytest.raises(Unreachable) as raised:
        retry.call(attempt, patience_s=60.0)
    assert raised.value is errors[attempt.count - 1]
    assert 50.0 < clock.now - began <= 60.0
    assert 8 <= attempt.count <= 25


def test_a_server_is_left_alone_for_as_long_as_it_asks(clock: HeldTime) -> None:
    assert retry.call(Script(Throttled("slow down", pause_s=40.0)), patience_s=60.0) == "answer"
    assert clock.waits == [40.0]


def test_a_server_that_asks_for_more_than_our_patience_is_not_waited_for(clock: HeldTime) -> None:
    attempt = Script(Throttled("slow down", pause_s=61.0))
    with pytest.raises(Throttled):
        retry.call(attempt, patience_s=60.0)
    assert (attempt.count, clock.waits) == (1, [])


@pytest.mark.parametrize(("from_first_failure", "attempts"), [(False, 1), (True, 2)])
def test_patience_may_count_from_the_first_failure(clock: HeldTime, from_first_failure: bool, attempts: int) -> None:
    """An upload of a large file takes minutes before it fails."""

    def takes() -> None:
        clock.now += 100.0

    attempt = Script(Unreachable("broke off"), succeeds=False, takes=takes)
    with pytest.raises(Unreachable):
        retry.call(attempt, patience_s=60.0, from_first_failure=from_first_failure)
    assert attempt.count == attempts


def test_pauses_double_up_to_the_longest_and_are_never_in_step() -> None:
    def series() -> list[float]:
        pauses = retry.Pauses(longest_s=4.0)
        return [pauses.after(Unreachable("no answer")) for _ in range(2000)]

    for pause_s, most_s in zip(series(), [0.25, 0.5, 1.0, 2.0, 4.0, 4.0], strict=False):
        assert most_s / 2 <= pause_s <= most_s
    assert max(series()) <= 4.0
    assert series()[:4] != series()[:4]


def test_after_a_success_the_pauses_begin_anew() -> None:
    pauses = retry.Pauses()
    for _ in range(9):
        pauses.after(Unreachable("no answer"))
    pauses.reset()
    assert pauses.after(Unreachable("no answer")) <= 0.25
    assert pauses.after(Throttled("slow down", pause_s=9.0)) == 9.0


def test_each_retry_is_logged(clock: HeldTime, caplog: pytest.LogCaptureFixture) -> None:
    with caplog.at_level(logging.INFO, logger="aisbench.requests"):
        retry.call(Script(Unreachable("GET https://here/: no answer"), Throttled("slow", pause_s=7.0)), patience_s=60.0)
    first, second = (record.getMessage() for record in caplog.records if record.name == "aisbench.requests")
    assert first == f"attempt 1 failed, the next one follows in {clock.waits[0]:.2f} s: GET https://here/: no answer"
    assert second == "attempt 2 failed, the next one follows in 7.00 s: slow"


def test_a_request_is_logged_with_the_number_of_its_attempt(clock: HeldTime, caplog: pytest.LogCaptureFixture) -> None:
    attempt = Script(Unreachable("no answer"), Unreachable("no answer"))

    def send() -> str:
        with Exchange("GET", "here") as exchange:
            exchange.status = 503
        return attempt()

    with caplog.at_level(logging.DEBUG, logger="aisbench.requests"):
        retry.call(send, patience_s=60.0)
        send()
    lines = [record.getMessage() for record in caplog.records if record.levelno == logging.DEBUG]
    assert [line.rpartition(" ms")[2] for line in lines] == ["", ", attempt 2", ", attempt 3", ""]


def test_what_does_not_fail_needs_no_library(clock: HeldTime, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "tenacity", None)  # an import of it fails
    assert retry.call(Script(), patience_s=60.0) == "answer"
    with pytest.raises(Refused):
        retry.call(Script(Refused("keys")), patience_s=60.0)
    with pytest.raises(ImportError):
        retry.call(Script(Unreachable("no answer")), patience_s=60.0)


def test_a_pause_takes_nothing_from_the_random_numbers_of_a_test() -> None:
    random.seed(7)
    before = random.getstate()
    assert retry.Pauses().after(None) != retry.Pauses().after(None)
    assert random.getstate() == before
