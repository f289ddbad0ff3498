"""The platform `slurm` on a real Slurm of two nodes, by the contract of Platform and beyond it."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator

import pytest
from slurm import Cluster

from pytest_aisbench import Settings
from pytest_aisbench.platforms.slurm.platform import Slurm
from pytest_aisbench.platforms.slurm.settings import SlurmSite
from pytest_aisbench.testing import PlatformContract

pytestmark = pytest.mark.slow


def platform_on(cluster: Cluster, **defaults: str) -> Slurm:
    import sys

    given = {"python": sys.executable, "exclusive": "no", **defaults}
    site = SlurmSite(share=str(cluster.share), poll_s=0.1, miniature=True, defaults=given)
    return Slurm(Settings(platform="slurm", tables={"slurm": site}))


class TestSlurm(PlatformContract):
    @pytest.fixture
    def platform(self, slurm: Cluster) -> Iterator[Slurm]:
        with contextlib.closing(platform_on(slurm)) as platform:
            yield platform
