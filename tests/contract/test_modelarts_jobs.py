"""How we read what ModelArts answers about jobs and logs."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from typing import TYPE_CHECKING, Any

import pytest

from pytest_aisbench import Access, Settings
from pytest_aisbench.errors import BadAnswer
from pytest_aisbench.model.job import Job, LogPart, Phase, Request
from pytest_aisbench.platforms.modelarts.platform import ModelArts
from pytest_aisbench.secret import Secret

if TYPE_CHECKING:
    from tests.contract.conftest import Server

PROJECT = "0123456789abcdef"


@pytest.fixture
def platform(server: Server) -> Iterator[ModelArts]:
    access = Access(
        Secret("AK"), Secret("SK"), "", PROJECT, "b", obs_endpoint=server.url, modelarts_endpoint=server.url
    )
    platform = ModelArts(Settings(platform="modelarts", access=access))
    with contextlib.closing(platform):
        yield platform


def job(phase: str, **status: Any) -> dict[str, Any]:
    return {"metadata": {"id": "j", "name": "t-1", "create_time": 1000}, "status": {"phase": phase, **status}}


@pytest.mark.parametrize(
    ("word", "phase"),
    [
        ("Creating", Phase.PENDING),
        ("Pending", Phase.PENDING),
        ("Running", Phase.RUNNING),
        ("Terminating", Phase.RUNNING),
        ("Completed", Phase.SUCCEEDED),
        ("Failed", Phase.FAILED),
        ("Terminated", Phase.CANCELLED),
        ("Abnormal", Phase.LOST),
    ],
)
def test_each_word_of_the_vendor_has_its_phase(platform: ModelArts, server: Server, word: str, phase: Phase) -> None:
    server.answer((200, job(word)))
    inspected = platform.inspect(["j"])["j"]
    assert (inspected.phase, inspected.platform_phase, inspected.known) == (phase, word, True)


def test_a_word_nobody_knows_counts_as_running(platform: ModelArts, server: Server) -> None:
    server.answer((200, job("Hibernating")))
    assert platform.inspect(["j"])["j"] == Job("j", Phase.RUNNING, "Hibernating", known=False, name="t-1")


def test_why_and_when_a_job_ended(platform: ModelArts, server: Server) -> None:
    tasks = [
        {"task": "worker-0", "exit_code": 0, "message": ""},
        {"task": "worker-1", "exit_code": 3, "message": "no loss"},
    ]
    server.answer((200, job("Failed", start_time=3500, duration=60_000, task_statuses=tasks)))
    assert platform.inspect(["j"])["j"] == Job(
        "j",
        Phase.FAILED,
        "Failed",
        reason="worker-1 ended with exit code 3: no loss",
        exit_code=3,
        queued_s=2.5,
        ran_s=60.0,
        name="t-1",
    )
    records = [{"end_reason": "node lost"}]
    server.answer((200, job("Abnormal", secondary_phase="Lost", running_records=records, task_statuses=None)))
    assert platform.inspect(["j"])["j"] == Job("j", Phase.LOST, "Abnormal", reason="node lost", name="t-1")
    server.answer((200, job("Abnormal", secondary_phase="CreateFailed")))
    assert platform.inspect(["j"])["j"].reason == "CreateFailed"


@pytest.mark.parametrize(
    "answer", [{}, {"metadata": None, "status": {}}, job("Running", start_time="soon"), {"items": 7}]
)
def test_a_job_that_cannot_be_read_is_a_bad_answer(platform: ModelArts, server: Server, answer: dict[str, Any]) -> None:
    server.answer((200, answer))
    with pytest.raises(BadAnswer):
        platform.inspect(["j"])


def test_many_are_looked_for_in_the_list_and_the_rest_shown(platform: ModelArts, server: Server) -> None:
    """Also when the offset counts pages, so that the second page repeats the first."""

    def named(job_id: str, phase: str) -> dict[str, Any]:
        return {"metadata": {"id": job_id, "name": job_id}, "status": {"phase": phase}}

    full = [named(f"j{number}", "Running") for number in range(49)] + [named("failed", "Failed")]
    server.answer(
        (200, {"items": full}),
        (200, {"items": full}),
        (200, named("old", "Completed")),
        (200, named("failed", "Failed")),
    )
    jobs = platform.inspect(["j1", "old", "j2", "failed"])
    assert {job_id: job.phase for job_id, job in jobs.items()} == {
        "j1": Phase.RUNNING,
        "old": Phase.SUCCEEDED,
        "j2": Phase.RUNNING,
        "failed": Phase.FAILED,
    }
    assert [method for method, *_ in server.seen] == ["POST", "POST", "GET", "GET"]


def test_two_jobs_of_one_name_are_nobodys(platform: ModelArts, server: Server) -> None:
    twins = [{"metadata": {"id": job_id, "name": "t-1"}, "status": {"phase": "Running"}} for job_id in ("a", "b")]
    server.answer((200, {"items": twins}))
    with pytest.raises(BadAnswer, match="2 jobs are called t-1: a, b"):
        platform.find(Request("POST", "", {"metadata": {"name": "t-1"}}))


def test_logs_go_on_where_they_ended(platform: ModelArts, server: Server) -> None:
    server.answer(
        (204, b""),
        (200, {"content": "Größe\n", "current_size": 8, "full_size": 8}),
        (200, {"content": "Größe\nmehr\n", "current_size": 13, "full_size": 13}),
        (200, {"content": "Größe\nmehr\n", "current_size": 13, "full_size": 13}),
        (200, {"content": "newest\n", "current_size": 7, "full_size": 100}),
        (400, {"error_code": "ModelArts.2818", "error_msg": "not generated"}),
    )
    assert platform.logs("j") == LogPart("", 0)
    assert platform.logs("j") == LogPart("Größe\n", 8)
    assert platform.logs("j", since=8) == LogPart("mehr\n", 13)
    assert platform.logs("j", since=13) == LogPart("", 13)
    assert platform.logs("j", since=13) == LogPart("[80 bytes are no longer shown]\nnewest\n", 100)
    assert platform.logs("j", node=1, since=100) == LogPart("", 100)
    assert server.seen[-1][1] == f"/v2/{PROJECT}/training-jobs/j/tasks/worker-1/logs/preview"


def test_what_has_ended_or_is_unknown_needs_no_stopping(platform: ModelArts, server: Server) -> None:
    for status, code in ((409, "ModelArts.2796"), (400, "ModelArts.2775")):
        server.answer((status, {"error_code": code, "error_msg": "no"}))
        platform.cancel("j")
    assert len(server.seen) == 2


@pytest.mark.parametrize("record", [{"end_related_task": "worker-1", "end_reason": "failed"}, {}])
def test_the_node_that_failed_is_quoted_and_not_the_ones_that_were_ended_for_it(
    platform: ModelArts, server: Server, record: dict[str, str]
) -> None:
    tasks = [
        {"task": "worker-0", "exit_code": 143, "message": "terminated"},
        {"task": "worker-1", "exit_code": 3, "message": "no loss"},
    ]
    server.answer((200, job("Failed", task_statuses=tasks, running_records=[record])))
    inspected = platform.inspect(["j"])["j"]
    assert (inspected.exit_code, inspected.reason) == (3, "worker-1 ended with exit code 3: no loss")


def test_logs_go_on_where_they_ended_though_their_bytes_are_no_text(platform: ModelArts, server: Server) -> None:
    """The platform shows a byte that is not UTF-8 as U+FFFD, and counts one."""
    server.answer(
        (200, {"content": "a\ufffdb\n", "current_size": 4, "full_size": 4}),
        (200, {"content": "a\ufffdb\nü\ufffd\n", "current_size": 8, "full_size": 8}),
        # Two bytes of a broken character were shown as one: what came after is told all the same.
        (200, {"content": "a\ufffdb\nü\ufffd\n\ufffd?\nnew\n", "current_size": 16, "full_size": 16}),
    )
    assert platform.logs("j") == LogPart("a\ufffdb\n", 4)
    assert platform.logs("j", since=4) == LogPart("ü\ufffd\n", 8)
    assert platform.logs("j", since=12) == LogPart("new\n", 16)
