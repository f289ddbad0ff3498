"""What is wrong is said before anything is uploaded, submitted or paid for."""

from __future__ import annotations

import shutil
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any, NamedTuple

import pytest

from pytest_aisbench.engine import preflight
from pytest_aisbench.errors import Unreachable, UsageFault
from pytest_aisbench.model.case import Case
from pytest_aisbench.model.job import StoreUrl
from pytest_aisbench.model.ports import Check, Health, failure, warning
from pytest_aisbench.platforms.modelarts import image_rules

Make = Callable[..., Any]


class Usage(NamedTuple):
    free: int


def failing(error: Exception) -> Callable[..., None]:
    def fail(*_: object) -> None:
        raise error

    return fail


def test_a_disk_without_room_is_refused(
    healthy: Make, case: Case, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(shutil, "disk_usage", lambda _: Usage(1024 * 1024))
    with pytest.raises(UsageFault, match=r"only 1\.0 MiB are free for the reports; free some space"):
        preflight.require_checks(healthy(), [case], 60.0, tmp_path / "not" / "there" / "yet")


def test_a_request_that_cannot_be_made_names_its_case(healthy: Make, case: Case, tmp_path: Path) -> None:
    platform = healthy()
    platform.render = failing(UsageFault("flavor is missing", advice="write flavor"))
    with pytest.raises(UsageFault, match="toy-2x2: flavor is missing; write flavor"):
        preflight.require_checks(platform, [case], 60.0, tmp_path)


def test_a_bucket_of_data_that_is_not_there_names_its_case(healthy: Make, case: Case, tmp_path: Path) -> None:
    platform = healthy()
    platform.store.check = failing(UsageFault("there is no bucket 'elsewhere'"))
    case = replace(case, workload=replace(case.workload, data="obs://elsewhere/imagenet/"))
    with pytest.raises(UsageFault, match="toy-2x2: there is no bucket 'elsewhere'"):
        preflight.require_checks(platform, [case], 60.0, tmp_path)


def test_keys_that_do_not_work_are_the_users_and_an_outage_is_not(healthy: Make, case: Case, tmp_path: Path) -> None:
    platform = healthy()
    platform.check = failing(UsageFault("wrong keys"))
    with pytest.raises(UsageFault, match="wrong keys"):
        preflight.require_checks(platform, [case], 60.0, tmp_path)
    platform.check = failing(Unreachable("no answer from 192.0.2.1"))
    said: list[str] = []
    preflight.require_checks(platform, [case], 60.0, tmp_path, said.append)
    assert said == ["scripted is not well, the run goes on trying: no answer from 192.0.2.1"]
    assert not platform.jobs
    assert not platform.store.objects_


def test_what_the_platform_does_not_offer_names_the_case(healthy: Make, case: Case, tmp_path: Path) -> None:
    platform = healthy()
    platform.vetted = [warning("engine", "not listed"), failure("flavor", "there is no flavor 'x'", "write y")]
    with pytest.raises(UsageFault, match="toy-2x2: there is no flavor 'x'; write y"):
        preflight.require_checks(platform, [case], 60.0, tmp_path)


def test_what_may_pass_is_told_and_everything_else_still_looked_at(healthy: Make, case: Case, tmp_path: Path) -> None:
    platform, said = healthy(), list[str]()
    platform.vetted = [Check("quota", Health.FAILURE, "10 of 10 jobs are there", "delete some", lasting=False)]
    preflight.require_checks(platform, [case], 60.0, tmp_path, said.append)
    assert said == ["scripted is not well, the run goes on trying: toy-2x2: 10 of 10 jobs are there; delete some"]
    platform.vetted.append(failure("flavor", "there is no flavor 'x'"))
    with pytest.raises(UsageFault, match="no flavor 'x'"):
        preflight.require_checks(platform, [case], 60.0, tmp_path)


def test_lists_that_nobody_gives_condemn_no_run(healthy: Make, case: Case, tmp_path: Path) -> None:
    platform, said, asked = healthy(), list[str](), list[object]()

    def deaf(spec: object) -> list[Check]:
        asked.append(spec)
        raise Unreachable("no answer")

    platform.vet = deaf
    other = replace(case, workload=replace(case.workload, name="other"))
    preflight.require_checks(platform, [case, other], 60.0, tmp_path, said.append)
    assert len(said) == len(asked) == 1, "nobody is asked again who does not answer"


def test_data_without_what_must_be_in_it_is_refused(healthy: Make, case: Case, tmp_path: Path) -> None:
    platform = healthy()
    data = StoreUrl.parse("obs://bucket/enwiki/")
    contents = ("train/", "val/", "ms_bert_large.ckpt")
    case = replace(case, workload=replace(case.workload, data=str(data), data_contains=contents))
    platform.store.write(data / "train/a.mindrecord", b"")
    with pytest.raises(
        UsageFault, match=r"toy-2x2: obs://bucket/enwiki/ has no val/ and no ms_bert_large\.ckpt; upload"
    ):
        preflight.require_checks(platform, [case], 60.0, tmp_path)
    platform.store.write(data / "val/b", b"")
    platform.store.write(data / "ms_bert_large.ckpt.part", b"")
    with pytest.raises(UsageFault, match=r"has no ms_bert_large\.ckpt;"):
        preflight.require_checks(platform, [case], 60.0, tmp_path)
    platform.store.write(data / "ms_bert_large.ckpt", b"")
    preflight.require_checks(platform, [case], 60.0, tmp_path)


def test_data_of_this_machine_without_what_must_be_in_it_is_refused(healthy: Make, case: Case, tmp_path: Path) -> None:
    folder = Path(case.workload.folder) / "data"
    (folder / "train").mkdir(parents=True)
    case = replace(case, workload=replace(case.workload, data="data", data_contains=("train/", "labels.txt")))
    with pytest.raises(UsageFault, match=r"data has no labels\.txt;"):
        preflight.require_checks(healthy(), [case], 60.0, tmp_path)
    (folder / "labels.txt").touch()
    preflight.require_checks(healthy(), [case], 60.0, tmp_path)


def test_an_empty_data_set_is_a_warning_only(healthy: Make, case: Case) -> None:
    case = replace(case, workload=replace(case.workload, data="obs://bucket/new/"))
    (found,) = preflight.data_checks(healthy(), [case])
    assert (found.health, found.text) == (Health.WARNING, "obs://bucket/new/ is empty")


def test_a_script_of_an_image_that_hands_ports_on_as_hosts_is_refused(
    healthy: Make, case: Case, tmp_path: Path
) -> None:
    script = Path(case.workload.folder) / "code" / "run.sh"
    script.write_text('python -m launch --ips "$BATCH_CUSTOM0_HOSTS"\n')
    platform = healthy()
    platform.check_code = image_rules.check_code
    preflight.require_checks(platform, [case], 60.0, tmp_path)  # an engine of the platform: it is run otherwise
    case = replace(case, workload=replace(case.workload, options={"image": "swr/org/image:1"}))
    with pytest.raises(UsageFault, match=r"toy-2x2: run\.sh passes .* host:port; cut the port off"):
        preflight.require_checks(platform, [case], 60.0, tmp_path)
    preflight.require_checks(healthy(), [case], 60.0, tmp_path)  # another platform has no such rule
