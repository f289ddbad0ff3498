"""The link by which a worker of xdist asks the controller for something."""

from __future__ import annotations

import socket
import threading

import pytest

from pytest_aisbench.errors import LedgerError
from pytest_aisbench.session.xdist import Link, RemoteLink


def test_a_stranger_at_the_door_does_not_close_it() -> None:
    link = Link({"ask": lambda: 42})
    with socket.socket(socket.AF_UNIX) as stranger:
        stranger.connect(link.address)
    remote = RemoteLink(link.address, link.key)
    assert remote.call("ask") == 42
    remote.close()
    link.close()


def test_the_controller_answers_two_workers_at_once() -> None:
    """A worker may wait hours for its case: another worker's question must not queue behind it."""
    link = Link({"meet": threading.Barrier(2).wait})
    answers: list[int] = []

    def work() -> None:
        remote = RemoteLink(link.address, link.key)
        answers.append(remote.call("meet"))
        remote.close()

    workers = [threading.Thread(target=work) for _ in range(2)]
    for worker in workers:
        worker.start()
    for worker in workers:
        worker.join(30)
    link.close()
    assert sorted(answers) == [0, 1]


def test_an_error_on_the_controller_is_raised_in_the_worker() -> None:
    def fail() -> None:
        raise LedgerError("no space", advice="free some")

    link = Link({"fail": fail})
    remote = RemoteLink(link.address, link.key)
    with pytest.raises(LedgerError, match="no space; free some"):
        remote.call("fail")
    remote.close()
    link.close()
