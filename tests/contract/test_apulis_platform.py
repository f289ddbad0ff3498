"""The platform `apulis` against the local cloud's Apulis, by the contract of Platform."""

from __future__ import annotations

import contextlib
import dataclasses
import hashlib
import json
import uuid
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import requests

from pytest_aisbench import Settings
from pytest_aisbench.errors import Refused, Unreachable, UsageFault
from pytest_aisbench.localcloud.faults import Fault
from pytest_aisbench.localcloud.server import LocalCloud
from pytest_aisbench.model.case import Shape
from pytest_aisbench.model.job import JobSpec, Phase
from pytest_aisbench.platforms.apulis.platform import Apulis
from pytest_aisbench.platforms.apulis.settings import ApulisAccess
from pytest_aisbench.secret import Secret
from pytest_aisbench.testing import PlatformContract

GPU = {"image": "apulistech/horovod:0.19.2", "device_type": "nvidia_gpu_amd64"}


class TestApulis(PlatformContract):
    OPTIONS = GPU

    @pytest.fixture
    def platform(self, card: Path) -> Iterator[Apulis]:
        with contextlib.closing(Apulis(Settings(platform="apulis", cloud=card))) as platform:
            type(self).SECRETS = (json.loads(card.read_text())["apulis_password"],)
            yield platform


def test_results_come_by_obs_too(card: Path) -> None:
    """The keys that pods are lent stand in no request."""
    access = ApulisAccess(results="obs", send_obs_keys=True)
    with contextlib.closing(Apulis(Settings(platform="apulis", cloud=card, tables={"apulis": access}))) as platform:
        place = platform.root / f"by-obs-{uuid.uuid4().hex[:8]}/"
        code = "import sys, moxing; moxing.file.write(sys.argv[1].partition('=')[2] + 'accuracy.json', '0.9')"
        platform.store.write(place / "code/train.py", code.encode())
        spec = JobSpec(
            name=f"by-obs-{uuid.uuid4().hex[:8]}",
            shape=Shape(1, 1),
            code=place / "code/",
            entry="train.py",
            outputs=place / "outputs/",
            logs=place / "logs/",
            options=GPU,
        )
        request = platform.render(spec)
        assert json.loads(card.read_text())["secret_key"] not in json.dumps(request.body)
        job = TestApulis().ended(platform, platform.submit(request))
        assert job.phase is Phase.SUCCEEDED, platform.logs(job.id).text
        assert platform.store.read(spec.outputs / "accuracy.json") == b"0.9"
        assert platform.store.head(spec.logs / "worker-0.log")


@pytest.mark.parametrize(("code", "phase"), [(0, Phase.SUCCEEDED), (4, Phase.FAILED)])
def test_a_command_that_never_ends_is_over_when_its_log_says_so(card: Path, code: int, phase: Phase) -> None:
    with contextlib.closing(Apulis(Settings(platform="apulis", cloud=card))) as platform:
        name = f"endless-{uuid.uuid4().hex[:8]}"
        place = platform.root / f"{name}/"
        script = f"echo trained; echo ACCEPTANCE_DONE rc={code}; sleep 600"
        platform.store.write(place / "code/run.sh", script.encode())
        options = {**GPU, "command": "bash run.sh", "done": "ACCEPTANCE_DONE"}
        outputs, logs = place / "outputs/", place / "logs/"
        spec = JobSpec(name, Shape(2, 1), place / "code/", "run.sh", outputs, logs, options=options)
        job_id = platform.submit(platform.render(spec))
        job = TestApulis().ended(platform, job_id)
        assert (job.phase, job.platform_phase, job.exit_code) == (phase, "killed", code or None)
    with contextlib.closing(Apulis(Settings(platform="apulis", cloud=card))) as another:
        assert another.inspect([job_id])[job_id] == job, "whoever takes it over knows it as well"


@pytest.mark.parametrize(
    ("fault", "made"), [({"drop": "answer"}, 1), ({"truncate": 5}, 1), ({"drop": "request"}, 0), ({"status": 502}, 0)]
)
def test_a_request_without_an_answer_is_one_job_at_most(tmp_path: Path, fault: dict[str, Any], made: int) -> None:
    """By its own id, which the platform takes once: even where the request is sent again."""
    with LocalCloud(
        faults=[Fault(service="apulis", operation="PostJob", times=1, **fault)], engine="simulated"
    ) as cloud:
        card = tmp_path / "card.json"
        card.write_text(json.dumps(cloud.card()))
        with contextlib.closing(Apulis(Settings(platform="apulis", cloud=card))) as platform:
            place = platform.root / "lost/"
            spec = JobSpec("lost", Shape(1, 1), place / "code/", "a.py", place / "out/", place / "logs/", options=GPU)
            request = platform.render(spec)
            with pytest.raises(Unreachable):
                platform.submit(request)
            job_id = platform.find(request)
            assert job_id == (request.body["jobId"] if made else None)
            assert platform.submit(request) == request.body["jobId"]
            assert platform.find(request) == request.body["jobId"]
        assert [job["name"] for job in cloud.books()["jobs"]] == ["lost"]


def test_a_token_does_instead_of_a_login(own_card: Path) -> None:
    card = json.loads(own_card.read_text())  # not that of all tests, which takes ten logins in ten minutes
    user, share = card["apulis_user"], f"{card['apulis_storage']}/data"
    digest = hashlib.md5(card["apulis_password"].encode(), usedforsecurity=False).hexdigest()
    login = f"{card['apulis_endpoint']}/custom-user-dashboard-backend/auth/login"
    token = requests.post(login, json={"userName": user, "password": digest}, timeout=30).json()["token"]
    access = ApulisAccess(card["apulis_endpoint"], user=user, token=Secret(token), vc=card["apulis_vc"], share=share)
    with contextlib.closing(Apulis(Settings(platform="apulis", tables={"apulis": access}))) as platform:
        platform.check()
    stale = dataclasses.replace(access, token=Secret(f"{token}x"))
    with (
        contextlib.closing(Apulis(Settings(platform="apulis", tables={"apulis": stale}))) as platform,
        pytest.raises(Refused),
    ):
        platform.check()


@pytest.mark.slow
def test_the_charts_of_the_platform_say_how_busy_a_node_was(card: Path) -> None:
    with contextlib.closing(Apulis(Settings(platform="apulis", cloud=card))) as platform:
        place = platform.root / f"busy-{uuid.uuid4().hex[:8]}/"
        platform.store.write(
            place / "code/train.py", b"import time\nend = time.time() + 3\nwhile time.time() < end: pass"
        )
        outputs, logs = place / "outputs/", place / "logs/"
        name = f"busy-{uuid.uuid4().hex[:8]}"
        spec = JobSpec(name, Shape(1, 1), place / "code/", "train.py", outputs, logs, options=GPU)
        job = TestApulis().ended(platform, platform.submit(platform.render(spec)))
        assert job.phase is Phase.SUCCEEDED
        assert max(platform.usage(job.id)["cpu"]) > 0


def test_a_cloud_without_apulis_says_so(card: Path, tmp_path: Path) -> None:
    older = {key: value for key, value in json.loads(card.read_text()).items() if not key.startswith("apulis_")}
    (tmp_path / "card.json").write_text(json.dumps(older))
    with pytest.raises(UsageFault, match="this local cloud has no apulis_endpoint"):
        Apulis(Settings(platform="apulis", cloud=tmp_path / "card.json"))
