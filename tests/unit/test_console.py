"""Where a platform shows a job to people: only what is known for certain."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest

from pytest_aisbench.config.access import Access
from pytest_aisbench.config.settings import Settings
from pytest_aisbench.platforms.apulis.platform import Apulis
from pytest_aisbench.platforms.apulis.settings import ApulisAccess
from pytest_aisbench.platforms.modelarts.platform import ModelArts
from pytest_aisbench.secret import Secret

ACCESS = Access(
    access_key=Secret("AK"), secret_access_key=Secret("SK"), region_name="cn-north-4", project_id="p", bucket="b"
)
HERE = "http://127.0.0.1:9"


def modelarts(access: Access, version: str = "V2") -> ModelArts:
    return ModelArts(Settings(platform="modelarts", modelarts_version=version, access=access))


@pytest.mark.parametrize(
    ("access", "version", "page"),
    [
        (ACCESS, "V2", "https://console.huaweicloud.com/modelarts/?region=cn-north-4#/training/detail/job%2F1"),
        (ACCESS, "V1", "https://console.huaweicloud.com/modelarts/?region=cn-north-4#/trainingJobs"),
        (replace(ACCESS, modelarts_endpoint=HERE, obs_endpoint=HERE, iam_endpoint=HERE), "V2", ""),  # a centre's own
    ],
)
def test_a_region_of_the_public_cloud_has_a_page_for_its_jobs(access: Access, version: str, page: str) -> None:
    platform = modelarts(access, version)

    assert platform.console("job/1") == page
    platform.close()


def test_apulis_shows_a_training_on_its_own_site(tmp_path: Path) -> None:
    apulis = ApulisAccess(endpoint="https://apulis.example/v1", user="u", vc="v", share=str(tmp_path))
    platform = Apulis(Settings(platform="apulis", tables={"apulis": apulis}))

    assert platform.console("1f83") == "https://apulis.example/AIarts/model-training/1f83/detail"
    platform.close()
