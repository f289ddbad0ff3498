"""A local cloud for all tests of a session, and a folder with suites that take a second instead of a minute."""

from __future__ import annotations

import contextlib
import gc
import os
import signal
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest
from browser import Browser, chromium
from commands import local_cloud
from slurm import ABSENT, Cluster, missing_programs, running, shared
from yard import Yard

if TYPE_CHECKING:
    from playwright.sync_api import Browser as Chromium


# The tests start thousands of processes, and a run has many workers: none compiles again what another has compiled.
os.environ.pop("PYTHONDONTWRITEBYTECODE", None)
sys.dont_write_bytecode = False

# Jenkins, `nohup` and `&` start a command with SIGINT ignored, and processes pass that on: a run that a test starts
# and then interrupts would never notice. With this handler the command itself still ignores SIGINT, and the processes
# that it starts get the default again.
if signal.getsignal(signal.SIGINT) is signal.SIG_IGN:
    signal.signal(signal.SIGINT, lambda _number, _frame: None)


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """The longest first, as they say themselves: none of them begins when all others have ended."""
    items.sort(key=_seconds, reverse=True)


def pytest_collection_finish() -> None:
    """Search no longer for garbage in what was collected: it stays until the end, and is more than tests make."""
    gc.collect()
    gc.freeze()


def _seconds(item: pytest.Item) -> float:
    slow = item.get_closest_marker("slow")
    return slow.kwargs.get("seconds", 0.0) if slow else 0.0


@pytest.hookimpl(optionalhook=True)
def pytest_xdist_make_scheduler(config: pytest.Config, log: Any) -> Any:
    """A worker that has nothing left takes tests from another: they last from a millisecond to half a minute."""
    from xdist.scheduler import WorkStealingScheduling  # type: ignore[import-untyped]

    return WorkStealingScheduling(config, log) if config.getoption("dist") == "load" else None


@pytest.fixture(scope="session")
def card(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Path]:
    with local_cloud(tmp_path_factory.mktemp("cloud")) as file:
        yield file


@pytest.fixture(scope="session")
def slurm(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Cluster]:
    """One cluster for all tests, also of other workers: that of scripts/slurm, or one of this session."""
    if missing_programs():
        pytest.skip(ABSENT)
    with contextlib.ExitStack() as stack:
        base = tmp_path_factory.getbasetemp()
        folder = base.parent if os.environ.get("PYTEST_XDIST_WORKER") else base
        cluster = running() or stack.enter_context(shared(folder / "slurm"))
        patch = stack.enter_context(pytest.MonkeyPatch.context())
        patch.setenv("SLURM_CONF", cluster.environment["SLURM_CONF"])
        yield cluster


@pytest.fixture
def own_card(tmp_path: Path) -> Iterator[Path]:
    """Of a cloud for one test alone: its faults strike, and its limits count, nobody else."""
    with local_cloud(tmp_path) as file:
        yield file


@pytest.fixture
def yard(tmp_path: Path, card: Path) -> Yard:
    return Yard(tmp_path, card)


@pytest.fixture(scope="module")
def chrome() -> Iterator[Chromium]:
    """For a module, no longer: while Playwright is at work, no other event loop may run in this thread."""
    with chromium() as started:
        yield started


@pytest.fixture
def browser(chrome: Chromium) -> Iterator[Browser]:
    """A test fails if a page that it opened asked a stranger for something, or threw."""
    opened = Browser(chrome)
    yield opened
    opened.close_pages()
    assert not opened.strangers
    assert not opened.errors
