"""ModelArts: where it is, who we are there, and which of its APIs runs the jobs."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping, Sequence
from typing import Any, Protocol
from urllib.parse import quote

from pytest_aisbench.adapters import image_rules, jobs_wheel, jobs_wheel_v1, prestart, training_job
from pytest_aisbench.adapters.endpoints import endpoint
from pytest_aisbench.adapters.jobs_v1 import JobsV1
from pytest_aisbench.adapters.jobs_v2 import JobsV2
from pytest_aisbench.adapters.modelarts_kind import OPTIONS, ModelArtsKind
from pytest_aisbench.adapters.obs import Obs
from pytest_aisbench.adapters.signed import Session
from pytest_aisbench.adapters.wheel import Wheel
from pytest_aisbench.domain.case import Workload
from pytest_aisbench.domain.checkup import Check
from pytest_aisbench.domain.job import Job, JobSpec, LogPart, Request
from pytest_aisbench.domain.stage import StoreUrl
from pytest_aisbench.settings import Settings

_CONSOLE = "https://console.huaweicloud.com/modelarts/"
_CHECK_S = 10.0  # somebody waits for the prompt


class Jobs(Protocol):
    """Everything about jobs, by one of the ways there are to ModelArts."""

    takes_environment: bool

    def check(self, patience_s: float) -> None: ...
    def vet(self, spec: JobSpec) -> Iterable[Check]: ...
    def render(self, spec: JobSpec) -> Request: ...
    def submit(self, request: Request) -> str: ...
    def find(self, request: Request) -> str | None: ...
    def named(self, name: str) -> str | None: ...
    def inspect(self, job_ids: Iterable[str]) -> Mapping[str, Job]: ...
    def logs(self, job_id: str, node: int = 0, since: int = 0) -> LogPart: ...
    def usage(self, job_id: str, node: int = 0) -> Mapping[str, Sequence[float]]: ...
    def events(self, job_id: str) -> Sequence[str]: ...
    def cancel(self, job_id: str) -> None: ...


class ModelArts:
    """Platform."""

    name = ModelArtsKind.name
    options: Collection[str] = OPTIONS
    max_jobs = 8
    poll_s = 5.0
    patience_s = 60.0  # how long an outage is sat out within one call

    def __init__(self, settings: Settings) -> None:
        self._wheel = self._prepared(settings) if settings.modelarts_client == "wheel" else None
        access = self._wheel.lend() if self._wheel else settings.access
        self._devices_source = settings.sources.get("devices", "--aisbench-devices") if settings.devices else ""
        self.access = access
        self.root = StoreUrl(access.bucket, access.folder.strip("/")) / "aisbench/"
        self.store = Obs.of(access, self.patience_s, self._gone)
        self.session = Session(
            endpoint("modelarts", access),
            access.access_key,
            access.secret_access_key,
            region=access.region_name,
            project_id=access.project_id,
            iam_endpoint=endpoint("iam", access),
            ca_file=access.ca_file,
            security_token=access.security_token,
            hosts=access.hosts,
            patience_s=self.patience_s,
        )
        self.jobs = self._jobs(settings)

    @property
    def takes_environment(self) -> bool:
        return self.jobs.takes_environment

    @property
    def place(self) -> str:
        # The APIs know each other's jobs by no id: what one began the other cannot go on with.
        version = " V1" if isinstance(self.jobs, JobsV1) else ""
        return f"{self.name} {self.session.endpoint} {self.root}{version}"

    @property
    def endpoints(self) -> dict[str, str]:
        """The addresses that are used, by the services' names."""
        found = {service: endpoint(service, self.access) for service in ("iam", "obs", "modelarts")}
        return {service: endpoint for service, endpoint in found.items() if endpoint}

    def share(self) -> Mapping[str, Any]:
        return {}

    def check(self) -> None:
        self.jobs.check(_CHECK_S)
        self.store.check(self.root)

    def vet(self, spec: JobSpec) -> Iterable[Check]:
        return self.jobs.vet(spec)

    def connection_checks(self) -> Iterable[Check]:
        from pytest_aisbench.adapters.connection import connection

        return connection(self)

    def additions(self, workload: Workload, variables: Mapping[str, str]) -> Mapping[str, str | bytes]:
        return prestart.files(workload, variables)

    def check_code(self, workload: Workload, scripts: Iterable[tuple[str, str]]) -> None:
        image_rules.check_code(workload, scripts)

    def render(self, spec: JobSpec) -> Request:
        return self.jobs.render(spec)

    def submit(self, request: Request) -> str:
        return self.jobs.submit(request)

    def find(self, request: Request) -> str | None:
        return self.jobs.find(request)

    def named(self, name: str) -> str | None:
        return self.jobs.named(name)

    def inspect(self, job_ids: Iterable[str]) -> Mapping[str, Job]:
        return self.jobs.inspect(job_ids)

    def logs(self, job_id: str, node: int = 0, since: int = 0) -> LogPart:
        return self.jobs.logs(job_id, node, since)

    def usage(self, job_id: str, node: int = 0) -> Mapping[str, Sequence[float]]:
        return self.jobs.usage(job_id, node)

    def events(self, job_id: str) -> Sequence[str]:
        return self.jobs.events(job_id)

    def console(self, job_id: str) -> str:
        """The page of a job, which only a region of the public cloud has at an address that is known; V1 has a list."""
        if self.access.modelarts_endpoint or not self.access.region_name:
            return ""
        page = "trainingJobs" if isinstance(self.jobs, JobsV1) else f"training/detail/{quote(job_id, safe='')}"
        return f"{_CONSOLE}?region={quote(self.access.region_name, safe='')}#/{page}"

    def cancel(self, job_id: str) -> None:
        self.jobs.cancel(job_id)

    def close(self) -> None:
        if self._wheel:
            self._wheel.close()
        self.session.close()
        self.store.close()

    def _gone(self) -> str:
        """Why nobody will ever answer again; empty while somebody may."""
        return ""

    def _prepared(self, settings: Settings) -> Wheel:
        access, services = settings.access, ("iam", "obs", "modelarts")
        endpoints = {}
        if any(getattr(access, f"{service}_endpoint") for service in services):
            endpoints = {f"{service}_endpoint": endpoint(service, access) for service in services}
            endpoints |= {"region_name": access.region_name}
        modules = jobs_wheel_v1.MODULES if settings.modelarts_version == "V1" else jobs_wheel.MODULES
        python = str(settings.modelarts_python or "")
        return Wheel(python, modules, access, endpoints, lambda: self.session.project_id)

    def _jobs(self, settings: Settings) -> Jobs:
        first, session = settings.modelarts_version == "V1", self.session
        if self._wheel is None:
            return JobsV1(session, self._placement, self.store) if first else JobsV2(session, self._placement)
        way = self._wheel, session.endpoint, self.patience_s
        if first:
            return jobs_wheel_v1.WheelJobsV1(jobs_wheel_v1.WheelSessionV1(*way), self._placement, self.store)
        return JobsV2(jobs_wheel.WheelSessionV2(*way), self._placement)

    def _placement(self, spec: JobSpec) -> training_job.Placement:
        return training_job.placement(spec, self._devices_source)
