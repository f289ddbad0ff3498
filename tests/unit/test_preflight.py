"""What is wrong is said before anything is uploaded, submitted or paid for."""

from __future__ import annotations

import shutil
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any, NamedTuple

import pytest

from pytest_aisbench.domain.case import Case
from pytest_aisbench.errors import Unreachable, UsageFault
from pytest_aisbench.services import preflight

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
        preflight.check(healthy(), [case], 60.0, tmp_path / "not" / "there" / "yet")


def test_a_request_that_cannot_be_made_names_its_case(healthy: Make, case: Case, tmp_path: Path) -> None:
    platform = healthy()
    platform.render = failing(UsageFault("flavor is missing", advice="write flavor"))
    with pytest.raises(UsageFault, match="toy-2x2: flavor is missing; write flavor"):
        preflight.check(platform, [case], 60.0, tmp_path)


def test_a_bucket_of_data_that_is_not_there_names_its_case(healthy: Make, case: Case, tmp_path: Path) -> None:
    platform = healthy()
    platform.store.check = failing(UsageFault("there is no bucket 'elsewhere'"))
    case = replace(case, workload=replace(case.workload, data="obs://elsewhere/imagenet/"))
    with pytest.raises(UsageFault, match="toy-2x2: there is no bucket 'elsewhere'"):
        preflight.check(platform, [case], 60.0, tmp_path)


def test_keys_that_do_not_work_are_the_users_and_an_outage_is_not(healthy: Make, case: Case, tmp_path: Path) -> None:
    platform = healthy()
    platform.check = failing(UsageFault("wrong keys"))
    with pytest.raises(UsageFault, match="wrong keys"):
        preflight.check(platform, [case], 60.0, tmp_path)
    platform.check = failing(Unreachable("no answer from 192.0.2.1"))
    said: list[str] = []
    preflight.check(platform, [case], 60.0, tmp_path, said.append)
    assert said == ["scripted is not well, the run goes on trying: no answer from 192.0.2.1"]
    assert not platform.jobs
    assert not platform.store.objects_
