"""The calls that the vendor's `modelarts` wheel gets, how we read its answers, and its flaws."""

from __future__ import annotations

import ast
import json
import os
import signal
import threading
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest
from by_wheel import OPTIONS, STANDIN, by_wheel

from pytest_aisbench import Access
from pytest_aisbench.errors import (
    AisbenchError,
    BadAnswer,
    OutOfQuota,
    Refused,
    Rejected,
    Throttled,
    Unreachable,
    UsageFault,
)
from pytest_aisbench.model.case import Shape
from pytest_aisbench.model.job import JobSpec, Request
from pytest_aisbench.platforms.modelarts import wheel_process
from pytest_aisbench.platforms.modelarts.platform import ModelArts
from pytest_aisbench.secret import Secret

if TYPE_CHECKING:
    from tests.contract.conftest import Server

GOLDEN = Path(__file__).parents[1] / "unit/golden"


@pytest.fixture(autouse=True)
def _standin(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PYTHONPATH", str(STANDIN))


@pytest.fixture
def access(server: Server) -> Access:
    """Of a server that answers as it is told."""
    return Access(
        Secret("AKOFTHETEST"),
        Secret("the-key-of-the-test"),
        "here-1",
        "p0",
        "b",
        iam_endpoint=server.url,
        obs_endpoint=server.url,
        modelarts_endpoint=server.url,
    )


@pytest.fixture
def alone(access: Access) -> Iterator[ModelArts]:
    with by_wheel(access) as platform:
        platform.jobs._session.patience_s = 5.0
        yield platform


# What is asked of the platform is what the SDK's client would ask.


@pytest.mark.parametrize("golden", ["pool-1x8", "resnet50-2x8", "single-1x1"])
def test_a_request_of_v2_arrives_as_it_was_rendered(alone: ModelArts, server: Server, golden: str) -> None:
    server.answer((201, {"metadata": {"id": "j"}}))
    body = json.loads((GOLDEN / f"{golden}.json").read_text())
    assert alone.submit(Request("POST", "/v2/{project_id}/training-jobs", body)) == "j"
    ((_, path, _, sent),) = server.seen
    body["spec"].pop("auto_stop", None)  # the wheel has no argument for it
    del body["metadata"]["workspace_id"]  # nor for this, which is the default
    assert (path, json.loads(sent)) == ("/v2/p0/training-jobs", body)


def test_an_image_and_a_share_arrive_by_v2(alone: ModelArts, server: Server) -> None:
    nas = {"nas_type": "nfs", "nas_share_addr": "192.168.0.82:/", "nas_mount_path": "/home/ma-user/nas"}
    image = {"image": "org/img:1", "command": "python train.py", "pool_id": "pool1"}
    place = alone.root / "t/"
    spec = JobSpec("t", Shape(1, 8), place / "c/", "t.py", place / "o/", place / "l/", options={**nas, **image})
    request = alone.render(replace(spec, inputs=place / "in/"))
    server.answer((201, {"metadata": {"id": "j"}}))
    alone.submit(request)
    sent = json.loads(server.seen[0][3])
    assert (sent["algorithm"], sent["spec"]) == (request.body["algorithm"], request.body["spec"])


def test_what_the_wheel_cannot_be_told_is_not_dropped(alone: ModelArts, server: Server) -> None:
    body = json.loads((GOLDEN / "single-1x1.json").read_text())
    own = {"spec": {**body["spec"], "schedule_policy": {"priority": 1}}, "endpoints": {"ssh": {}}}
    for key, name in (("spec", "schedule_policy"), ("endpoints", "endpoints")):
        with pytest.raises(UsageFault, match=f"cannot be told {name}"):
            alone.submit(Request("POST", "/v2/{project_id}/training-jobs", {**body, key: own[key]}))
    assert server.seen == []


@pytest.mark.parametrize(
    "options",
    [
        OPTIONS,
        {"image": "host/org/img:1", "command": "bash /home/work/run_train.sh python t.py", "pool_id": "pool1"},
        {**OPTIONS, "nas_type": "nfs", "nas_share_addr": "192.168.0.82:/", "nas_mount_path": "/home/work/nas"},
    ],
    ids=["engine", "image", "share"],
)
def test_a_request_of_v1_arrives_as_the_sdks_does(access: Access, server: Server, options: dict[str, str]) -> None:
    catalog = {
        "specs": [{"spec_code": "modelarts.kat1.8xlarge", "spec_id": 7}],
        "engines": [
            {"engine_name": "Ascend-Powered-Engine", "engine_version": OPTIONS["framework_version"], "engine_id": 9}
        ],
    }
    server.answer((200, {"is_success": True, "job_id": "10", "version_id": "11", **catalog}))
    sent = []
    for client in ("sdk", "wheel"):
        with by_wheel(access, "V1", modelarts_client=client) as platform:
            place = platform.root / "t/"
            spec = JobSpec("t", Shape(1, 8), place / "c/", "t.py", place / "o/", place / "l/", options=options)
            request = platform.render(replace(spec, inputs=place / "in/", parameters={"epochs": "3"}))
            assert platform.submit(request) == "10/11"
        method, path, _, body = server.seen[-1]
        sent.append((method, path, json.loads(body)))
    assert sent[0][2].pop("workspace_id") == "0"
    assert sent[0] == sent[1]


# Its answers.


@pytest.mark.parametrize(
    ("answer", "error"),
    [
        ({"error_code": "ModelArts.2781", "error_msg": "no such flavor"}, Rejected),
        ({"error_code": "ModelArts.2815", "error_msg": "full"}, OutOfQuota),
        ({"error_code": "APIGW.0301", "error_msg": "no AKOFTHETEST"}, Refused),
        ({"error_code": "APIGW.0308", "error_msg": "slow"}, Throttled),
        ({"error_code": "ModelArts.0010", "error_msg": "internal"}, Unreachable),
        ({"is_success": False}, Rejected),
        ({"nothing": "of it"}, Unreachable),
        (b"<html>Please log in</html>", Unreachable),
    ],
)
def test_a_create_that_fails_is_what_the_answer_says(
    alone: ModelArts, server: Server, answer: Any, error: type[AisbenchError]
) -> None:
    server.answer((200, answer))
    with pytest.raises(AisbenchError) as failed:
        alone.submit(request(alone))
    assert type(failed.value) is error
    assert "AKOFTHETEST" not in str(failed.value)
    assert len([seen for seen in server.seen if seen[0] == "POST"]) == 1


def request(platform: ModelArts) -> Request:
    place = platform.root / "t/"
    return platform.render(JobSpec("t", Shape(1, 1), place / "c/", "t.py", place / "o/", place / "l/", options=OPTIONS))


def test_a_create_whose_answer_is_lost_goes_out_once(alone: ModelArts, server: Server) -> None:
    server.answer((0,))
    with pytest.raises(Unreachable):
        alone.submit(request(alone))
    assert len(server.seen) == 1
    job = {"metadata": {"id": "j", "name": "t"}, "status": {"phase": "Running"}}
    longer = {"metadata": {"id": "k", "name": "t-1"}, "status": {"phase": "Running"}}
    server.answer((0,), (200, {"items": [longer, job]}))  # and a search is repeated
    assert alone.find(request(alone)) == "j"


def test_no_listing_depends_on_the_kind_of_the_session(access: Access, server: Server) -> None:
    """How V1's listing spells its sorting does: `sortBy` or `sort_by`."""
    server.answer((200, {"is_success": True, "jobs": []}))
    with by_wheel(access, "V1") as platform:
        assert platform.find(request(platform)) is None
    ((_, path, *_),) = server.seen
    assert "search_content=t" in path
    assert "sort" not in path


@pytest.mark.slow
def test_what_hangs_is_given_up_and_what_died_begins_anew(alone: ModelArts, server: Server) -> None:
    late = threading.Event()
    server.answer((200, {}, {}, 0, late), (200, {"flavors": []}))
    session = alone.jobs._session
    with pytest.raises(Unreachable, match=r"no answer within 1\.5 s"):
        session.call("GET", "/v2/{project_id}/training-job-flavors", patience_s=0.0, timeout_s=1.5)
    late.set()
    alone.jobs.check(10.0)
    assert alone._wheel is not None
    assert alone._wheel._process is not None
    os.kill(alone._wheel._process.pid, signal.SIGKILL)
    alone.jobs.check(10.0)


def test_temporary_keys_are_not_half_used(access: Access) -> None:
    with (
        by_wheel(replace(access, security_token=Secret("t"))) as platform,
        pytest.raises(UsageFault, match="takes no temporary keys; use keys that last, or --aisbench-modelarts-client"),
    ):
        platform.check()


# Where it is, and where it is not.


def test_it_runs_in_pythons_that_pytest_has_left_behind() -> None:
    ast.parse(Path(wheel_process.__file__).read_text(), feature_version=(3, 7))


@pytest.mark.parametrize(
    ("files", "told"),
    [
        ({}, r"is not installed in .*; download it as https://support\.huaweicloud\.com/\S+ says and `pip install"),
        ({"session.py": ""}, "does not know API V2; install a newer one, or choose --aisbench-modelarts-version V1"),
        ({"session.py": "import nowhere"}, "does not load: No module named 'nowhere'"),
    ],
    ids=["none", "old", "broken"],
)
def test_a_wheel_that_is_not_there_is_one_line(
    access: Access, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, files: dict[str, str], told: str
) -> None:
    for name, text in files.items():
        (tmp_path / "modelarts").mkdir(exist_ok=True)
        (tmp_path / "modelarts" / name).write_text(text)
    monkeypatch.setenv("PYTHONPATH", str(tmp_path))
    with by_wheel(access) as platform, pytest.raises(UsageFault, match=told) as fault:
        platform.check()
    assert "\n" not in str(fault.value)


def test_a_python_that_is_not_there_is_one_line(access: Access, tmp_path: Path) -> None:
    with (
        by_wheel(access, modelarts_python=tmp_path / "python3.7") as platform,
        pytest.raises(UsageFault, match=r"--aisbench-modelarts-python .*python3\.7: No such file"),
    ):
        platform.check()


@pytest.mark.parametrize(
    ("raised", "error"),
    [
        ("Exception('failed: ModelArts.2781 no such flavor')", Rejected("x: failed: ModelArts.2781 no such flavor")),
        ("ConnectionResetError('gone')", Unreachable("x: ConnectionResetError: gone")),
        ("KeyError('specs')", BadAnswer("x raised KeyError: 'specs'")),
    ],
)
def test_what_it_raises_is_ours(
    access: Access, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, raised: str, error: AisbenchError
) -> None:
    (tmp_path / "modelarts").mkdir()
    (tmp_path / "modelarts/session.py").write_text(
        "class Session:\n    set_endpoint = dict\n    def __init__(self, **_): pass\n"
    )
    (tmp_path / "modelarts/train_params.py").touch()
    (tmp_path / "modelarts/estimatorV2.py").write_text(
        f"class Estimator:\n    @staticmethod\n    def get_train_instance_types(session):\n        raise {raised}\n"
    )
    monkeypatch.setenv("PYTHONPATH", str(tmp_path))
    with by_wheel(access) as platform, pytest.raises(AisbenchError) as failed:
        platform.jobs.check(0.0)
    assert type(failed.value) is type(error)
    assert failed.value.message == error.message.replace("x", "get_train_instance_types of the modelarts wheel", 1)
