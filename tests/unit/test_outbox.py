"""Uploads in the outbox are neither lost nor doubled, even if the process that sends them is killed."""

from __future__ import annotations

import json
from collections.abc import Iterator
from contextlib import closing
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from upload_victims import CASE, RUN

from pytest_aisbench.errors import AisbenchError, Refused, Rejected, Throttled, Unreachable
from pytest_aisbench.ledger.ledger import Ledger
from pytest_aisbench.ledger.outbox import Outbox
from pytest_aisbench.model.clock import SystemClock
from pytest_aisbench.model.messages import message
from pytest_aisbench.model.results import PRIVATE, Destination, UploadItem, UploadState
from pytest_aisbench.model.verdict import Ruling
from pytest_aisbench.tester import uploader
from pytest_aisbench.tester.uploader import flush, requeue

BOUND = Destination("https://tester.example/", "local", "")
NOT_JUDGED = message("not judged") + message("because", why="stopped")  # as a run says it


@pytest.fixture
def ledger(tmp_path: Path) -> Iterator[Ledger]:
    with closing(Ledger(tmp_path / "ledger.db")) as ledger:
        ledger.begin(RUN, {}, 1.0, "elsewhere:1")
        yield ledger


@pytest.fixture
def outbox(ledger: Ledger) -> Outbox:
    outbox = Outbox(ledger.database)
    outbox.set_destination(RUN, BOUND)
    return outbox


class Scripted:
    """A way to a Tester on which each sending meets the next of these; then all goes well."""

    def __init__(self, *errors: AisbenchError) -> None:
        self.errors, self.sent = list(errors), list[str]()

    def send(self, upload: UploadItem) -> None:
        self.sent.append(upload.case)
        if self.errors:
            raise self.errors.pop(0)

    def close(self) -> None: ...


def states(outbox: Outbox) -> list[tuple[str, str, str]]:
    return [(upload.case, upload.state.value, upload.why) for upload in outbox.of(RUN)]


def judge(ledger: Ledger, *names: str) -> None:
    for ordinal, name in enumerate(names):
        ledger.save_case(RUN, ordinal, replace(CASE, id=name))


# A kill at every step


# The outbox


def test_a_verdict_is_spooled_once_and_again_when_it_changed(ledger: Ledger, outbox: Outbox) -> None:
    ledger.save_case(RUN, 1, replace(CASE, id="unjudged-1x1", verdict=None))
    judge(ledger, "toy-1x1")
    for _ in range(2):
        uploader.fill_outbox(outbox, 2.0, RUN)
    ledger.save_case(RUN, 0, replace(CASE, verdict=Ruling.FAILED))
    uploader.fill_outbox(outbox, 3.0, RUN)
    assert [upload["case"] for upload in ledger.entry(RUN).uploads] == ["toy-1x1"]  # its last word
    assert [(upload.case, upload.attempt) for upload in outbox.of(RUN)] == [("toy-1x1", 1), ("toy-1x1", 2)]
    assert [json.loads(upload.body)["status"] for upload in outbox.of(RUN)] == ["OK", "FAILED"]


def test_how_a_run_ended_is_spooled_once_and_again_when_it_changed(ledger: Ledger, outbox: Outbox) -> None:
    """With what no result can tell: cases that nobody judged."""
    ledger.begin("run-2", {"required": ["toy-1x1", "other-1x1"]}, 5.0)
    outbox.set_destination("run-2", BOUND)
    ledger.save_case("run-2", 0, CASE)
    ledger.save_case("run-2", 1, replace(CASE, id="late-1x1", verdict=None, reason=NOT_JUDGED))
    uploader.fill_outbox(outbox, 6.0, "run-2")
    assert [upload.kind for upload in outbox.of("run-2")] == ["results"]  # it runs
    for code in (2, 2, 3):
        ledger.finish("run-2", code, 7.0)
        uploader.fill_outbox(outbox, 8.0, "run-2")
    ends = [json.loads(upload.body) for upload in outbox.of("run-2") if upload.kind == "runs"]
    assert [(end["attempt"], end["exit_code"]) for end in ends] == [(1, 2), (2, 3)]
    assert ends[0]["unjudged"] == {"late-1x1": "not judged: stopped"}
    assert ends[0]["missing"] == ["other-1x1"]
    assert ends[0]["card_hours"] == CASE.card_hours
    assert (ends[0]["started"], ends[0]["finished"]) == ("1970-01-01T00:00:05.000Z", "1970-01-01T00:00:07.000Z")


def test_a_run_that_was_killed_is_told_by_whoever_comes_next(ledger: Ledger, outbox: Outbox) -> None:
    ledger.renew(RUN, 100.0)
    assert outbox.pending_ends(50.0) == []  # it lives
    (found,) = outbox.pending_ends(150.0)
    assert (found.end.run, found.end.exit_code, found.end.finished) == (RUN, None, None)


def test_the_run_tells_what_became_of_its_uploads(ledger: Ledger, outbox: Outbox) -> None:
    judge(ledger, "toy-1x1")
    uploader.fill_outbox(outbox, 2.0, RUN)
    outbox.set_state(outbox.of(RUN)[0].key, UploadState.DEAD, "too large", 3.0)
    uploads = ledger.entry(RUN).uploads
    assert uploads == ({"tester": BOUND.tester, "case": "toy-1x1", "state": "dead", "why": "too large"},)


def test_what_is_delivered_stays_delivered(ledger: Ledger, outbox: Outbox) -> None:
    """Two sent it at once, and the slower one had no answer."""
    judge(ledger, "toy-1x1")
    uploader.fill_outbox(outbox, 2.0, RUN)
    key = outbox.of(RUN)[0].key
    outbox.set_state(key, UploadState.DELIVERED, "", 3.0)
    outbox.set_state(key, UploadState.WAITING, "no answer", 4.0)
    assert states(outbox) == [("toy-1x1", "delivered", "")]


def test_a_live_run_spools_its_own(ledger: Ledger, outbox: Outbox) -> None:
    judge(ledger, "toy-1x1")
    ledger.renew(RUN, 100.0)
    assert outbox.pending_results(50.0) == []
    assert [found.run for found in outbox.pending_results(150.0)] == [RUN]


def test_what_was_bound_for_a_private_cloud_dies_with_it(ledger: Ledger, outbox: Outbox) -> None:
    outbox.set_destination(RUN, replace(BOUND, label=PRIVATE))
    judge(ledger, "toy-1x1")
    way = Scripted()
    assert [upload.state for upload in flush(outbox, lambda _: way, SystemClock(), patience_s=0)] == []
    assert way.sent == []
    assert states(outbox) == [("toy-1x1", "dead", "the private local cloud ended with its run")]


# The uploader


@pytest.mark.parametrize(
    ("error", "state"),
    [
        (Rejected("422"), "dead"),
        (Refused("401"), "spooled"),
        (Unreachable("reset"), "spooled"),
        (Throttled("429", pause_s=100.0), "spooled"),
    ],
    ids=["never", "keys", "network", "later"],
)
def test_only_what_will_never_succeed_is_dead(ledger: Ledger, outbox: Outbox, error: AisbenchError, state: str) -> None:
    judge(ledger, "toy-1x1")
    way = Scripted(error)
    upload = flush(outbox, lambda _: way, SystemClock(), patience_s=0)[0]
    assert (upload.state.value, upload.why) == (state, str(error))
    if state == "dead":
        assert outbox.dead() == [upload]
        requeue(outbox, upload.key[:8], SystemClock())
    upload = flush(outbox, lambda _: way, SystemClock(), patience_s=0)[0]
    assert upload.state is UploadState.DELIVERED


def test_one_that_fails_does_not_hold_up_the_others(ledger: Ledger, outbox: Outbox, clock: Any) -> None:
    judge(ledger, "a-1x1", "b-1x1", "c-1x1")
    way = Scripted(Unreachable("500"))
    found = flush(outbox, lambda _: way, clock, patience_s=60)
    assert way.sent == ["a-1x1", "b-1x1", "c-1x1", "end", "a-1x1"]
    assert {upload.state for upload in found} == {UploadState.DELIVERED}


def test_a_tester_that_is_down_is_given_up_after_a_while_and_all_are_told_why(
    ledger: Ledger, outbox: Outbox, clock: Any
) -> None:
    judge(ledger, "a-1x1", "b-1x1")
    way, before = Scripted(*[Unreachable("no answer")] * 1000), clock.now()
    flush(outbox, lambda _: way, clock, patience_s=60)
    assert states(outbox) == [(name, "spooled", "no answer") for name in ("a-1x1", "b-1x1", "end")]
    assert 3 < len(way.sent) < 20  # ever more slowly
    assert 30 < clock.now() - before <= 60


def test_retry_after_is_heeded(ledger: Ledger, outbox: Outbox, clock: Any) -> None:
    judge(ledger, "a-1x1")
    way, before = Scripted(Throttled("429", pause_s=17.0)), clock.now()
    flush(outbox, lambda _: way, clock, patience_s=60)
    assert clock.now() - before >= 17.0
    assert states(outbox) == [("a-1x1", "delivered", ""), ("end", "delivered", "")]


def test_a_run_that_ends_leaves_the_rest_spooled(ledger: Ledger, outbox: Outbox) -> None:
    warnings: list[str] = []
    way = Scripted(*[Unreachable("no answer")] * 10_000)
    running = uploader.Uploader(outbox, RUN, transport=way, clock=SystemClock(), warn=warnings.append)
    judge(ledger, "a-1x1")
    running.add(replace(CASE, id="a-1x1"))
    running.close(0.3)
    assert states(outbox) == [("a-1x1", "spooled", "no answer")]
    assert warnings == []


def test_a_token_that_is_refused_is_said_once_and_not_tried_on_every_case(ledger: Ledger, outbox: Outbox) -> None:
    warnings: list[str] = []
    way = Scripted(Refused("HTTP 401"))
    running = uploader.Uploader(outbox, RUN, transport=way, clock=SystemClock(), warn=warnings.append)
    judge(ledger, "a-1x1", "b-1x1")
    running.add(replace(CASE, id="a-1x1"))
    running.close(20)
    assert states(outbox) == [("a-1x1", "spooled", "HTTP 401"), ("b-1x1", "spooled", "HTTP 401")]
    assert warnings == ["the Tester does not take results now, they are spooled: HTTP 401"]
    assert way.sent == ["a-1x1"]
