"""Jobs of the platform `slurm` for tests: how to make one, submit it and wait for its end."""

from __future__ import annotations

import sys
import textwrap
import uuid
from dataclasses import replace
from typing import Any

from slurm import Cluster
from waiting import wait_until

from pytest_aisbench import Settings
from pytest_aisbench.model.case import Shape
from pytest_aisbench.model.job import Job, JobSpec
from pytest_aisbench.platforms.slurm.platform import Slurm
from pytest_aisbench.platforms.slurm.settings import SlurmSite


def platform_on(cluster: Cluster, **defaults: str) -> Slurm:
    """With nodes that several jobs may use at once."""
    given = {"python": sys.executable, "exclusive": "no", **defaults}
    site = SlurmSite(share=str(cluster.share), poll_s=0.1, miniature=True, defaults=given)
    return Slurm(Settings(platform="slurm", tables={"slurm": site}))


def make_spec(platform: Slurm, code: str = "pass", shape: Shape | None = None, **changed: Any) -> JobSpec:
    """A job of a name of its own that runs this code."""
    name = f"own-{uuid.uuid4().hex[:12]}"
    place = platform.root / f"{name}/"
    platform.store.write(place / "code/train.py", textwrap.dedent(code).encode())
    spec = JobSpec(name, shape or Shape(1, 1), place / "code/", "train.py", place / "outputs/", place / "logs/")
    return replace(spec, **changed)


def submit(platform: Slurm, spec: JobSpec) -> str:
    return platform.submit(platform.render(spec))


def look(platform: Slurm, job_id: str) -> Job:
    return platform.inspect([job_id])[job_id]


def ended(platform: Slurm, job_id: str) -> Job:
    return wait_until(lambda: look(platform, job_id), lambda job: job.phase.is_final, 120)
