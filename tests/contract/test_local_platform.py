"""The platform `local`: how it starts or finds its cloud, and how that ends."""

from __future__ import annotations

import contextlib
import json
import os
import signal
import socket
import subprocess
import sys
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import pytest
from waiting import wait_until

from pytest_aisbench import Access
from pytest_aisbench.config.options import machine_cores
from pytest_aisbench.config.settings import Settings
from pytest_aisbench.errors import Unreachable, UsageFault
from pytest_aisbench.model.case import Shape
from pytest_aisbench.model.job import JobSpec, StoreUrl
from pytest_aisbench.platforms.local import Local
from pytest_aisbench.secret import Secret

HERE = StoreUrl("aisbench", "aisbench/here/")
SPEC = JobSpec("t-1", Shape(1, 1), HERE / "code/", "train.py", HERE / "out/", HERE / "log/")


@pytest.fixture(scope="module")
def local() -> Iterator[Local]:
    with contextlib.closing(Local(Settings())) as local:
        yield local


def process_of(local: Local) -> int:
    assert local._cloud is not None
    return local._cloud._process.pid


def is_gone(pid: int) -> bool:
    """Whether the process has ended; a zombie that nobody reaps has."""
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] == "Z"
    except (FileNotFoundError, ProcessLookupError):
        return True


def test_it_needs_no_settings(local: Local) -> None:
    local.check()
    assert local.name == "local"
    assert local.max_jobs == machine_cores()
    assert str(local.root) == "obs://aisbench/aisbench/"


@pytest.mark.parametrize("shape", [Shape(1, 1), Shape(3, 2), Shape(2, 8), Shape(1, 5)])
def test_any_shape_is_rendered(local: Local, shape: Shape) -> None:
    resource = local.render(replace(SPEC, shape=shape)).body["spec"]["resource"]
    assert resource == {"flavor_id": f"modelarts.local.{shape.devices}", "node_count": shape.nodes}


@pytest.mark.parametrize("framework", ["", "python", "mindspore", "tensorflow", "torch"])
def test_each_framework_has_an_engine_that_the_cloud_offers(local: Local, framework: str) -> None:
    offered = local.session.call("GET", "/v2/{project_id}/training-job-engines")["items"]
    engine = local.render(replace(SPEC, framework=framework)).body["algorithm"]["engine"]
    assert engine in [{key: item[key] for key in ("engine_name", "engine_version")} for item in offered]


def test_a_cloud_that_already_runs_is_used_and_left_running(local: Local, tmp_path: Path) -> None:
    card = dict(local.share())["cloud"]
    with contextlib.closing(Local(Settings(cloud=card))) as second:
        second.check()
        assert second.session.endpoint == local.session.endpoint
        second.store.write(second.root / "note", b"1")
    local.check()
    assert local.store.read(local.root / "note") == b"1"


def test_a_card_that_is_lent_is_ours_alone() -> None:
    with contextlib.closing(Local(Settings())) as lender:
        card = dict(lender.share())["cloud"]
        assert card.stat().st_mode & 0o077 == 0
    assert not card.exists()


@pytest.mark.parametrize(
    ("content", "words"),
    [
        (None, "No such file"),
        ("", "not the JSON line"),
        ("[]", "not the JSON line"),
        ("{'a': 1}", "not the JSON line"),
        ("{}", "access_key is missing"),
        ('{"access_key": "AKOFTHETEST", "secret_key": 7}', "secret_key is missing"),
    ],
)
def test_a_card_that_is_none_is_the_users_to_mend(tmp_path: Path, content: str | None, words: str) -> None:
    card = tmp_path / "card.json"
    if content is not None:
        card.write_text(content)
    with pytest.raises(UsageFault) as caught:
        Local(Settings(cloud=card))
    assert str(caught.value) == f"{card}: {caught.value.message.removeprefix(f'{card}: ')}; {caught.value.advice}"
    assert words in caught.value.message
    assert caught.value.advice == "start it with `aisbench cloud --json > FILE`"
    assert "AKOFTHETEST" not in str(caught.value)


def test_a_card_of_a_cloud_that_has_ended_is_said_to_be_so(local: Local, tmp_path: Path) -> None:
    card = json.loads(dict(local.share())["cloud"].read_text())
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))  # nobody listens
        card["modelarts_endpoint"] = f"http://127.0.0.1:{free.getsockname()[1]}"
        (tmp_path / "card.json").write_text(json.dumps(card))
        fault = pytest.raises(UsageFault, match=r"card.json: nothing answers .*aisbench cloud --json")
        with contextlib.closing(Local(Settings(cloud=tmp_path / "card.json"))) as platform, fault:
            platform.check()


def test_a_private_cloud_ends_when_it_is_closed() -> None:
    local = Local(Settings())
    pid = process_of(local)
    local.close()
    local.close()
    wait_until(lambda: is_gone(pid))


@pytest.mark.parametrize("number", [signal.SIGKILL, signal.SIGTERM])
def test_a_private_cloud_ends_with_its_owner(number: signal.Signals) -> None:
    code = (
        "import sys, time; from pytest_aisbench.platforms.local import Local;"
        "from pytest_aisbench.config.settings import Settings; local = Local(Settings());"
        "print(local._cloud._process.pid, flush=True); time.sleep(600)"
    )
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join(sys.path)}
    with subprocess.Popen([sys.executable, "-c", code], stdout=subprocess.PIPE, env=environment) as owner:
        assert owner.stdout is not None
        pid = int(owner.stdout.readline())
        owner.send_signal(number)
    wait_until(lambda: is_gone(pid))


def test_ctrl_c_at_the_terminal_is_not_for_the_cloud(local: Local) -> None:
    assert os.getpgid(process_of(local)) != os.getpgid(0)


def test_the_cloud_is_not_given_the_users_keys(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HUAWEICLOUD_SDK_SK", "hidden-by-its-name")
    monkeypatch.setenv("CI_JOB_TOKEN", "hidden-by-its-name")
    monkeypatch.setenv("MY_FAVOURITE", "hidden-by-its-value")
    monkeypatch.setenv("TOKENIZERS_PARALLELISM", "not-hidden")
    access = Access(Secret("an-access-key"), Secret("hidden-by-its-value"))
    with contextlib.closing(Local(Settings(access=access))) as local:
        environment = Path(f"/proc/{process_of(local)}/environ").read_text()
    assert "hidden-by" not in environment
    assert "not-hidden" in environment


def test_a_cloud_that_cannot_start_says_why(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    python = tmp_path / "python"
    python.write_text("#!/bin/sh\necho no room on device >&2\nexit 7\n")
    python.chmod(0o700)
    monkeypatch.setattr(sys, "executable", str(python))
    with pytest.raises(Unreachable, match="exit code 7; the local cloud said: no room on device"):
        Local(Settings())


@pytest.mark.slow(seconds=6)
def test_a_private_cloud_that_died_says_so() -> None:
    with contextlib.closing(Local(Settings())) as local:
        os.kill(process_of(local), signal.SIGKILL)
        wait_until(lambda: is_gone(process_of(local)))
        with pytest.raises(Unreachable, match="the local cloud said"):
            local.check()
