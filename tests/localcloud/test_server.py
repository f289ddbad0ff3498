"""The local cloud as a process: one line, then it serves, and it ends when it should."""

from __future__ import annotations

import contextlib
import fcntl
import json
import os
import signal
import socket
import subprocess
import sys
import threading
import time
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest
from waiting import wait_until
from yard import Yard

from pytest_aisbench.localcloud.server import DataInUseError, LocalCloud

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

pytestmark = [
    pytest.mark.filterwarnings(r"ignore:datetime\.datetime\.utcnow:DeprecationWarning"),
    pytest.mark.filterwarnings(r"ignore:.*invalid escape sequence"),
    pytest.mark.filterwarnings(r"ignore:.*'return' in a 'finally' block:SyntaxWarning"),
]

CARD = {
    "modelarts_endpoint",
    "obs_endpoint",
    "iam_endpoint",
    "tester_endpoint",
    "access_key",
    "secret_key",
    "project_id",
    "region",
    "bucket",
    "tester_token",
    "apulis_endpoint",
    "apulis_user",
    "apulis_password",
    "apulis_vc",
    "apulis_storage",
    "cloud_id",
}
COMMAND = [sys.executable, "-m", "pytest_aisbench.localcloud", "--apulis"]


@pytest.fixture
def environment(tmp_path: Path, pytestconfig: pytest.Config) -> dict[str, str]:
    """Temporary folders go below `tmp_path / "tmp"`, where the test sees what is left of them."""
    (tmp_path / "tmp").mkdir()
    path = os.pathsep.join([str(pytestconfig.rootpath), *filter(None, sys.path)])
    return {**os.environ, "TMPDIR": str(tmp_path / "tmp"), "PYTHONPATH": path}


@pytest.fixture
def launch(environment: dict[str, str]) -> Iterator[Callable[..., subprocess.Popen[str]]]:
    with contextlib.ExitStack() as stack:

        def start(*options: str, **streams: Any) -> subprocess.Popen[str]:
            pipes = {"stdin": subprocess.PIPE, "stdout": subprocess.PIPE, "stderr": subprocess.PIPE} | streams
            process = subprocess.Popen([*COMMAND, *options], env=environment, text=True, **pipes)
            stack.enter_context(process)
            stack.callback(process.kill)
            return process

        yield start


def card_of(process: subprocess.Popen[str]) -> dict[str, str]:
    assert process.stdout
    card = json.loads(process.stdout.readline())
    assert isinstance(card, dict)
    return card


def listens(url: str) -> bool:
    host, _, port = url.removeprefix("http://").partition(":")
    with contextlib.suppress(OSError), socket.create_connection((host, int(port)), timeout=5):
        return True
    return False


def client(card: dict[str, str]) -> Any:
    from obs import ObsClient

    return ObsClient(
        access_key_id=card["access_key"],
        secret_access_key=card["secret_key"],
        server=card["obs_endpoint"],
        max_retry_count=0,
    )


def test_the_card_opens_every_service() -> None:
    with LocalCloud() as cloud:
        card = cloud.card()
        assert card.keys() == CARD
        endpoints = [value for name, value in card.items() if name.endswith("_endpoint")]
        assert len(set(endpoints)) == 5
        assert all(listens(url) for url in endpoints)
        obs = client(card)
        assert obs.headBucket(card["bucket"]).status == 200
        obs.close()
    assert not any(listens(url) for url in endpoints)


@pytest.mark.parametrize("end", ["stdin", "SIGTERM", "SIGINT"])
def test_it_ends_when_it_is_told_and_leaves_nothing(
    launch: Callable[..., subprocess.Popen[str]], tmp_path: Path, end: str
) -> None:
    process = launch("--watch-stdin")
    card = card_of(process)
    assert card.keys() == CARD
    assert list((tmp_path / "tmp").iterdir())
    if end == "stdin":
        assert process.stdin
        process.stdin.close()
    else:
        process.send_signal(getattr(signal, end))
    assert process.wait(20) == 0
    assert process.stdout
    assert process.stderr
    assert (process.stdout.read(), process.stderr.read()) == ("", "")
    assert list((tmp_path / "tmp").iterdir()) == []
    assert not listens(card["obs_endpoint"])


def test_without_watching_the_end_of_stdin_means_nothing(launch: Callable[..., subprocess.Popen[str]]) -> None:
    process = launch(stdin=subprocess.DEVNULL)
    card = card_of(process)
    obs = client(card)
    assert obs.putContent(card["bucket"], "k", "x").status == 200
    obs.close()
    process.terminate()
    assert process.wait(20) == 0


@pytest.mark.skipif(sys.platform != "linux", reason="only Linux tells of the parent's death")
def test_it_ends_with_a_parent_that_is_killed(environment: dict[str, str]) -> None:
    """Also where the stdin that it watches stays open, as it does when others have inherited it."""
    reader, writer = os.pipe()
    parent_code = (
        "import subprocess, sys, time\n"
        f"subprocess.Popen({COMMAND!r} + ['--watch-stdin'], stdin={reader}, pass_fds=[{reader}])\n"
        "time.sleep(60)\n"
    )
    with subprocess.Popen(
        [sys.executable, "-c", parent_code], stdout=subprocess.PIPE, env=environment, pass_fds=[reader], text=True
    ) as parent:
        card = card_of(parent)
        assert listens(card["obs_endpoint"])
        parent.kill()
        wait_until(lambda: not listens(card["obs_endpoint"]))
    os.close(reader)
    os.close(writer)


@pytest.mark.slow
@pytest.mark.skipif(sys.platform != "linux", reason="only Linux tells of the parent's death")
def test_the_end_of_the_thread_that_started_it_is_not_the_end_of_the_parent(
    launch: Callable[..., subprocess.Popen[str]],
) -> None:
    started: list[subprocess.Popen[str]] = []
    cards: list[dict[str, str]] = []

    def start() -> None:
        started.append(launch("--watch-stdin"))
        cards.append(card_of(started[0]))

    thread = threading.Thread(target=start)
    thread.start()
    thread.join()
    with pytest.raises(subprocess.TimeoutExpired):
        started[0].wait(1)
    assert listens(cards[0]["obs_endpoint"])


def test_a_restart_on_the_same_data_is_the_same_cloud(
    launch: Callable[..., subprocess.Popen[str]], tmp_path: Path
) -> None:
    data = tmp_path / "new" / "data"
    first = launch("--data", str(data))
    card = card_of(first)
    obs = client(card)
    assert obs.putContent(card["bucket"], "a/k", "kept", metadata={"who": "me"}).status == 200
    obs.close()
    first.kill()  # not even asked
    first.wait()

    second = launch("--data", str(data))
    again = card_of(second)
    same = ("access_key", "secret_key", "project_id", "region", "bucket")
    assert [again[name] for name in same] == [card[name] for name in same]
    obs = client(again)
    got = obs.getObject(card["bucket"], "a/k", loadStreamInMemory=True)
    assert (got.body.buffer, dict(got.header)["who"]) == (b"kept", "me")
    obs.close()
    assert (data / "accounts.json").stat().st_mode & 0o077 == 0


@pytest.mark.slow
def test_jobs_run_in_data_that_were_named_from_where_one_stands(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    with LocalCloud(Path("data")) as cloud:
        (tmp_path / "card.json").write_text(json.dumps(cloud.card()))
        yard = Yard(tmp_path / "yard", tmp_path / "card.json")
        yard.suite()
        ended = yard.pytest("suites", "--nodes", "1", "--aisbench-max-trials", "1", "--aisbench-tester", "none")
    assert ended.code == 0, ended.out


def test_it_sweeps_what_killed_clouds_left_and_nothing_else(
    launch: Callable[..., subprocess.Popen[str]], tmp_path: Path
) -> None:
    def folder(name: str, age: float) -> Path:
        path = tmp_path / "tmp" / name
        (path / "objects").mkdir(parents=True)
        (path / "lock").touch()
        os.utime(path / "lock", (time.time() - age,) * 2)
        return path

    dead, young = folder("aisbench-cloud-dead", 3600), folder("aisbench-cloud-young", 1)
    alive, strange = folder("aisbench-cloud-alive", 3600), folder("somebody-elses", 3600)
    with (alive / "lock").open() as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        assert card_of(launch("--watch-stdin")).keys() == CARD
    assert [path.exists() for path in (dead, young, alive, strange)] == [False, True, True, True]


def test_two_clouds_do_not_share_their_data(launch: Callable[..., subprocess.Popen[str]], tmp_path: Path) -> None:
    with LocalCloud(tmp_path / "data") as cloud:
        assert cloud.card()
        with pytest.raises(DataInUseError):
            LocalCloud(tmp_path / "data").__enter__()
        out, err = launch("--data", str(tmp_path / "data")).communicate(timeout=20)
        assert out == ""
        assert len(err.splitlines()) == 1
        assert "another local cloud runs on this folder" in err
    with LocalCloud(tmp_path / "data") as cloud:
        assert cloud.card()


def test_a_folder_that_cannot_be_is_one_clear_line(
    launch: Callable[..., subprocess.Popen[str]], tmp_path: Path
) -> None:
    (tmp_path / "file").write_text("")
    process = launch("--data", str(tmp_path / "file" / "data"))
    out, err = process.communicate(timeout=20)
    assert (process.returncode, out) == (4, "")
    assert len(err.splitlines()) == 1
    assert str(tmp_path / "file") in err


_IMPORTED = """
import json, sys, urllib.request
from pytest_aisbench.localcloud.server import LocalCloud
def services():
    prefix = "pytest_aisbench.localcloud."
    wanted = ("obs.service", "modelarts.v2", "apulis.service", "tester", "engine.process_engine", "faults")
    return [name for name in wanted if prefix + name in sys.modules] + [m for m in ("sqlite3",) if m in sys.modules]
with LocalCloud() as cloud:
    before = services()
    request = urllib.request.Request(cloud.card()["obs_endpoint"] + "/?apiversion", method="HEAD")
    urllib.request.build_opener(urllib.request.ProxyHandler({})).open(request).close()
    print(json.dumps([before, services()]))
"""


def test_a_service_is_imported_when_it_is_first_asked_for() -> None:
    """Every plain run waits for the start of its private cloud."""
    command = [sys.executable, "-c", _IMPORTED]
    printed = subprocess.run(command, check=True, capture_output=True, text=True, timeout=60).stdout
    assert json.loads(printed) == [[], ["obs.service"]]
