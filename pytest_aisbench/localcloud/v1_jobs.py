"""The jobs of V1: each has a name and versions, and each version is one run, a `Job` among those of V2."""

from __future__ import annotations

import itertools
import uuid
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from pytest_aisbench.localcloud import rules
from pytest_aisbench.localcloud.fault import Fault
from pytest_aisbench.localcloud.refusal import Refusal
from pytest_aisbench.localcloud.v1_status import REVIEW

if TYPE_CHECKING:
    from pytest_aisbench.localcloud.accounts import Account
    from pytest_aisbench.localcloud.job import Job
    from pytest_aisbench.localcloud.jobs import Jobs
    from pytest_aisbench.localcloud.launch import Launch
    from pytest_aisbench.localcloud.v1_rules import V1Rules

_OCCUPYING = {"Creating", "Pending", "Running"}


@dataclass(frozen=True, eq=False)
class Version:
    id: int
    name: str
    previous: int  # 0 for the first one
    job: Job


@dataclass(eq=False)
class Series:
    """A job of V1, that is, its versions."""

    id: int
    name: str
    project_id: str
    numbers: itertools.count[int] = field(default_factory=lambda: itertools.count(1))
    _versions: list[Version] = field(default_factory=list)

    def add(self, version: Version) -> None:
        self._versions.append(version)

    @property
    def versions(self) -> list[Version]:
        """Those that were neither deleted nor lost, the oldest first."""
        return [version for version in self._versions if not version.job.gone]

    @property
    def newest(self) -> Version:
        return self.versions[-1]


class V1Jobs:
    """What does not take the lock of `Jobs` itself is called under it."""

    def __init__(self, jobs: Jobs, rules: V1Rules) -> None:
        self._jobs = jobs
        self._rules = rules
        self._series: dict[int, Series] = {}
        self._series_ids = itertools.count(1001)
        self._version_ids = itertools.count(5001)
        self._reviewed: set[str] = set()  # images

    def create(self, account: Account, body: dict[str, Any]) -> tuple[Series, Version]:
        name = rules.job_name({"name": body.get("job_name")})
        launch = self._launch(name, body)
        with self._jobs.lock:
            if self._jobs.named(account.project_id, name, "V1"):
                raise Refusal(400, "0103", f"Job name:{name} is existed.")
            series = Series(next(self._series_ids), name, account.project_id)
            version = self._accept(account, series, launch, body, previous=0)
            self._series[series.id] = series
            return series, version

    def create_version(self, account: Account, series: Series, body: dict[str, Any]) -> Version:
        given = rules.section(body, "config").get("pre_version_id", body.get("pre_version_id"))
        if not given:
            raise rules.invalid("pre_version_id is missing")
        launch = self._launch(series.name, body)
        with self._jobs.lock:
            previous = self.version(series, str(given))
            return self._accept(account, series, launch, body, previous.id)

    def get(self, project_id: str, job_id: str) -> Series:
        series = self._series.get(int(job_id)) if job_id.isdigit() else None
        if series is None or series.project_id != project_id or not series.versions:
            raise Refusal(400, "2775", f"Training job {job_id} not found.")
        return series

    def version(self, series: Series, version_id: str) -> Version:
        for version in series.versions:
            if str(version.id) == version_id:
                return version
        raise Refusal(400, "2775", f"Training job {series.id}/{version_id} not found.")

    def of(self, project_id: str) -> list[Series]:
        return [series for series in self._series.values() if series.project_id == project_id and series.versions]

    def describe(self, series: Series, description: object) -> None:
        for version in series.versions:
            self._jobs.describe(version.job, description)

    def _launch(self, name: str, body: dict[str, Any]) -> Launch:
        rules.description(body.get("job_desc"))
        return self._rules.version(str(uuid.uuid4()), name, rules.section(body, "config"))

    def _accept(self, account: Account, series: Series, launch: Launch, body: dict[str, Any], previous: int) -> Version:
        self._check_output(launch)
        number = next(self._version_ids)
        description = rules.description(body.get("job_desc"))
        alias = f"{series.id}/{number}"
        job = self._jobs.accept(account, launch, body, series.name, description, alias=alias)
        if launch.image and launch.image not in self._reviewed and job.drawn is None:
            job.struck(Fault(phases=REVIEW))
        self._reviewed.add(launch.image)
        version = Version(number, f"V{next(series.numbers):04d}", previous, job)
        series.add(version)
        return version

    def _check_output(self, launch: Launch) -> None:
        """Two runs never write to one place; stopping ones are thought to have stopped writing."""
        place = launch.outputs[0].place
        for series in self._series.values():
            for version in series.versions:
                job = version.job
                if job.phase in _OCCUPYING and job.launch.outputs[0].place == place:
                    raise Refusal(400, "0105", f"Operation failed. Other running job contain train_url: {place}")
