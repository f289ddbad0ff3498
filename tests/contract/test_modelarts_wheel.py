"""ModelArts by the vendor's `modelarts` wheel, by the contract of Platform; a stand-in has its documented methods."""

from __future__ import annotations

import contextlib
import importlib
import json
import uuid
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from by_wheel import OPTIONS, STANDIN, by_wheel
from waiting import wait_until

from pytest_aisbench import Access, Settings
from pytest_aisbench.errors import JobLost, Refused, Rejected, UsageFault
from pytest_aisbench.model.case import Shape
from pytest_aisbench.model.job import JobSpec, LogPart, Phase
from pytest_aisbench.platforms.local import Local
from pytest_aisbench.platforms.modelarts.platform import ModelArts
from pytest_aisbench.secret import NO_SECRET, Secret
from pytest_aisbench.testing import PlatformContract


@pytest.fixture(scope="module", autouse=True)
def _standin() -> Iterator[None]:
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("PYTHONPATH", str(STANDIN))
        yield


@pytest.fixture(scope="module")
def access() -> Iterator[Access]:
    """Of a local cloud."""
    with contextlib.closing(Local(Settings())) as local:
        yield local._card


@pytest.fixture(scope="module")
def v2(access: Access) -> Iterator[ModelArts]:
    with by_wheel(access, "V2") as modelarts:
        yield modelarts


@pytest.fixture(scope="module")
def v1(access: Access) -> Iterator[ModelArts]:
    with by_wheel(access, "V1") as modelarts:
        yield modelarts


class TestWheelV2(PlatformContract):
    OPTIONS = OPTIONS
    TWO_NODES = Shape(2, 8)

    @pytest.fixture
    def platform(self, v2: ModelArts, access: Access, monkeypatch: pytest.MonkeyPatch) -> ModelArts:
        monkeypatch.setattr(type(self), "SECRETS", (access.access_key.reveal(), access.secret_access_key.reveal()))
        return v2


class TestWheelV1(PlatformContract):
    OPTIONS = OPTIONS
    TWO_NODES = Shape(2, 8)
    UNKNOWN = "4711/1"
    SAVE = "import moxing as mox; mox.file.write(given['train_url'].rstrip('/') + '/' + name, text)"

    @pytest.fixture
    def platform(self, v1: ModelArts, access: Access, monkeypatch: pytest.MonkeyPatch) -> ModelArts:
        monkeypatch.setattr(type(self), "SECRETS", (access.access_key.reveal(), access.secret_access_key.reveal()))
        return v1


def test_its_chatter_is_not_seen(v2: ModelArts, capfd: pytest.CaptureFixture[str]) -> None:
    v2.check()
    assert not v2.events("nobody")
    assert capfd.readouterr() == ("", "")


def test_threads_take_turns(v1: ModelArts) -> None:
    with ThreadPoolExecutor(8) as pool:
        answers = list(pool.map(lambda number: v1.inspect([f"{number}/1"]), range(4700, 4724)))
    assert [list(jobs) for jobs in answers] == [[f"{number}/1"] for number in range(4700, 4724)]


@pytest.mark.parametrize("wrong", ["access_key", "secret_access_key"])
@pytest.mark.parametrize("version", ["V1", "V2"])
def test_keys_that_are_wrong_are_refused_and_not_shown(access: Access, version: str, wrong: str) -> None:
    keys: dict[str, Any] = {wrong: Secret("WRONGKEYOFTHETEST")}
    with (
        by_wheel(replace(access, **keys), version) as platform,
        pytest.raises(Refused, match=r"APIGW\.0301.*check access_key") as refused,
    ):
        platform.check()
    assert "WRONGKEYOFTHETEST" not in f"{refused.value} {platform._wheel!r}"


# Versions.


@pytest.fixture
def spec(v1: ModelArts) -> JobSpec:
    name = f"job-{uuid.uuid4().hex[:8]}"
    place = v1.root / f"{name}/"
    v1.store.write(
        place / "code/train.py", b"import time\nprint('\xc3\xa9\xe2\x82\xac' * 1500, flush=True)\ntime.sleep(600)\n"
    )
    options = {**OPTIONS, "job_name": f"shared-{name}"}
    return JobSpec(name, Shape(1, 1), place / "code/", "train.py", place / "out/", place / "log/", options=options)


def test_a_job_of_that_name_gets_another_version(v1: ModelArts, spec: JobSpec) -> None:
    one, two = v1.render(spec), v1.render(replace(spec, outputs=spec.outputs / "two/"))
    first, second = v1.submit(one), v1.submit(two)
    assert first != second
    assert first.partition("/")[0] == second.partition("/")[0]
    assert v1.submit(one) == first  # it arrived before: no third
    assert (v1.find(one), v1.find(two)) == (first, second)
    both = [first, second]
    for job_id in both:
        v1.cancel(job_id)
    wait_until(lambda: v1.inspect(both), lambda jobs: {jobs[each].phase for each in both} == {Phase.CANCELLED})


def test_characters_are_whole_where_pieces_of_a_log_meet(v1: ModelArts, spec: JobSpec) -> None:
    job_id = v1.submit(v1.render(spec))
    whole = "é€" * 1500 + "\n"
    pieces = [LogPart("", 0)]

    def log_so_far() -> str:
        pieces.append(v1.logs(job_id, since=pieces[-1].next))
        return "".join(piece.text for piece in pieces)

    assert wait_until(log_so_far, lambda log: whole in log).count("é€") == 1500
    v1.cancel(job_id)


def test_what_v1_does_not_have_is_answered_with_what_it_has(v1: ModelArts, spec: JobSpec) -> None:
    strange = replace(spec, options={**spec.options, "flavor": "modelarts.vm.gpu.v100"})
    with pytest.raises(Rejected, match=r"no 'modelarts\.vm\.gpu\.v100'; its specs are .*modelarts\.kat1\.8xlarge"):
        v1.submit(v1.render(strange))


def test_an_unknown_job_has_no_logs(v1: ModelArts, v2: ModelArts) -> None:
    for platform, job_id in ((v1, "4711/1"), (v2, "nobody")):
        with pytest.raises(JobLost):
            platform.logs(job_id)


def test_rendering_is_the_sdks(access: Access, spec: JobSpec) -> None:
    for version in ("V1", "V2"):
        with by_wheel(access, version) as one, by_wheel(access, version, modelarts_client="sdk") as other:
            assert one.render(spec) == other.render(spec)
            assert one._wheel is not None
            assert one._wheel._process is None


def test_a_notebook_needs_no_keys(access: Access, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    keyless = replace(access, access_key=NO_SECRET, secret_access_key=NO_SECRET)
    with pytest.raises(UsageFault, match=r"without keys .* gives no session: .*; write access_key .*notebook"):
        by_wheel(keyless)
    notebook = {
        "access_key": access.access_key.reveal(),
        "secret_key": access.secret_access_key.reveal(),
        "project_id": access.project_id,
        "endpoints": {"modelarts_endpoint": access.modelarts_endpoint},
    }
    (tmp_path / "user.json").write_text(json.dumps(notebook))
    monkeypatch.setenv("STANDIN_NOTEBOOK", str(tmp_path / "user.json"))
    with by_wheel(keyless) as platform:
        platform.check()
        assert platform.store.read(platform.root / "nothing") is None


@pytest.mark.parametrize("version", ["", "V2"])
def test_the_standin_has_what_ais_bench_stubs_imports_and_moves_files_by(
    version: str, access: Access, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The states of jobs by their numbers, from either module; and files by `session.obs`."""
    monkeypatch.syspath_prepend(str(STANDIN))
    states = importlib.import_module(f"modelarts.estimator{version}").JOB_STATE
    assert [states[number] for number in (8, 10, 11)] == ["JOBSTAT_RUNNING", "JOBSTAT_COMPLETED", "JOBSTAT_FAILED"]
    kind = importlib.import_module("modelarts.session").Session
    kind.set_endpoint(obs_endpoint=access.obs_endpoint, modelarts_endpoint=access.modelarts_endpoint)
    obs = kind(access.access_key.reveal(), access.secret_access_key.reveal(), access.project_id, "local").obs
    (tmp_path / "code/src").mkdir(parents=True)
    (tmp_path / "code/train.py").write_text("train")
    (tmp_path / "code/src/模型.py").write_text("model")
    folder = f"obs://{access.bucket}/of-the-wheel{version}/"
    assert not obs.is_obs_path_exists(folder)
    obs.upload_dir(str(tmp_path / "code"), folder)
    obs.upload_file(str(tmp_path / "code/train.py"), f"{folder}again/")
    assert [obs.is_obs_path_exists(folder + name) for name in ("", "train.py", "src/", "tr")] == [
        True,
        True,
        True,
        False,
    ]
    obs.download_dir(folder, str(tmp_path / "back"))
    back = {file.relative_to(tmp_path / "back").as_posix() for file in (tmp_path / "back").rglob("*") if file.is_file()}
    assert back == {"train.py", "src/模型.py", "again/train.py"}
    obs.download_file(f"{folder}src/模型.py", str(tmp_path))
    assert (tmp_path / "模型.py").read_text() == "model"
    with pytest.raises(ValueError, match="does not end with /"):
        obs.upload_dir(str(tmp_path / "code"), folder.rstrip("/"))
