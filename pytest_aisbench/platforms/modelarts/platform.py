"""ModelArts: where it is, who we are there, and which of its APIs runs the jobs."""

from __future__ import annotations

import ipaddress
import socket
import time
import uuid
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from datetime import datetime, timezone
from functools import partial
from typing import Any, Protocol
from urllib.parse import quote, urlsplit

from pytest_aisbench.config.access import Access, service_endpoint
from pytest_aisbench.config.settings import Settings
from pytest_aisbench.errors import AisbenchError
from pytest_aisbench.model.case import Workload
from pytest_aisbench.model.job import Job, JobSpec, LogPart, Request, StoreUrl
from pytest_aisbench.model.ports import Check, Health, checked, failure, ok, warning
from pytest_aisbench.net.http import parse_date
from pytest_aisbench.net.retry import CHECK_S
from pytest_aisbench.platforms.modelarts import image_rules
from pytest_aisbench.platforms.modelarts.image_rules import pre_start_files
from pytest_aisbench.platforms.modelarts.jobs import JobsV1, JobsV2
from pytest_aisbench.platforms.modelarts.kind import OPTIONS, ModelArtsKind
from pytest_aisbench.platforms.modelarts.request import Placement, placement
from pytest_aisbench.platforms.modelarts.session import Session
from pytest_aisbench.platforms.modelarts.wheel import (
    MODULES_V1,
    MODULES_V2,
    Wheel,
    WheelJobsV1,
    WheelSessionV1,
    WheelSessionV2,
)
from pytest_aisbench.stores.obs import Obs

_CONSOLE = "https://console.huaweicloud.com/modelarts/"


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
            service_endpoint("modelarts", access),
            access.access_key,
            access.secret_access_key,
            region=access.region_name,
            project_id=access.project_id,
            iam_endpoint=service_endpoint("iam", access),
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
    def platform_id(self) -> str:
        # The APIs know each other's jobs by no id: what one began the other cannot go on with.
        version = " V1" if isinstance(self.jobs, JobsV1) else ""
        return f"{self.name} {self.session.endpoint} {self.root}{version}"

    @property
    def endpoints(self) -> dict[str, str]:
        """The addresses that are used, by the services' names."""
        found = {service: service_endpoint(service, self.access) for service in ("iam", "obs", "modelarts")}
        return {service: address for service, address in found.items() if address}

    def share(self) -> Mapping[str, Any]:
        return {}

    def check(self) -> None:
        self.jobs.check(CHECK_S)
        self.store.check(self.root)

    def vet(self, spec: JobSpec) -> Iterable[Check]:
        return self.jobs.vet(spec)

    def connection_checks(self) -> Iterable[Check]:

        return check_connection(self)

    def additions(self, workload: Workload, variables: Mapping[str, str]) -> Mapping[str, str | bytes]:
        return pre_start_files(workload, variables)

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
            endpoints = {f"{service}_endpoint": service_endpoint(service, access) for service in services}
            endpoints |= {"region_name": access.region_name}
        modules = MODULES_V1 if settings.modelarts_version == "V1" else MODULES_V2
        python = str(settings.modelarts_python or "")
        return Wheel(python, modules, access, endpoints, lambda: self.session.project_id)

    def _jobs(self, settings: Settings) -> Jobs:
        first, session = settings.modelarts_version == "V1", self.session
        if self._wheel is None:
            return JobsV1(session, self._placement, self.store) if first else JobsV2(session, self._placement)
        way = self._wheel, session.endpoint, self.patience_s
        if first:
            return WheelJobsV1(WheelSessionV1(*way), self._placement, self.store)
        return JobsV2(WheelSessionV2(*way), self._placement)

    def _placement(self, spec: JobSpec) -> Placement:
        return placement(spec, self._devices_source)


# -- The way to a ModelArts, step by step: names, answers, clocks, keys, project, bucket. Nothing is signed before the

_ANSWER_S = 10.0  # for one answer
_SKEW_S = 60.0  # worth a word; from 15 minutes on services refuse, and we date requests by their clock


def check_connection(platform: ModelArts) -> Iterator[Check]:
    """Ends where nothing further can be known."""
    reached = True
    for service, address in platform.endpoints.items():
        resolved = _resolved(service, address, platform.access)
        yield resolved
        if resolved.failed:
            reached = False
            continue
        found = list(_answered(service, address, platform.access))
        yield from found
        reached = reached and not any(check.failed for check in found)
    if not reached:
        return
    for name, look in (("credentials", partial(_accepted, platform)), ("project", partial(_project, platform))):
        known = checked(name, look)
        yield known
        if known.failed:
            return
    bucket = checked("bucket", partial(_listed, platform))
    yield bucket
    if not bucket.failed:
        yield _region(platform)
        yield checked("write access", partial(_written, platform))


def _resolved(service: str, endpoint: str, access: Access) -> Check:
    """The name of the service; of OBS that of the bucket, since that is the host which is asked."""
    name, above = urlsplit(endpoint).hostname or "", ""
    what = f"name of {service}"
    if _is_address(name):
        return ok(what, f"{name} is an address")
    if service == "obs" and access.bucket:
        name, above = f"{access.bucket}.{name}", name
    if address := access.hosts.address(name, above=above):
        return ok(what, f"{name} is {address}, by [hosts]")
    if _proxied(endpoint):
        return ok(what, f"{name} is left to the proxy")
    try:
        found = socket.getaddrinfo(name, None, type=socket.SOCK_STREAM)
    except OSError as error:
        fix = f'check [access], or write "{above or name}" with its address to [hosts] in aisbench.toml'
        return Check(what, Health.FAILURE, f"{name} has no address: {error.strerror or error}", fix, lasting=False)
    return ok(what, f"{name} is {found[0][4][0]}")


def _answered(service: str, endpoint: str, access: Access) -> Iterator[Check]:
    """Any answer will do: it was not asked for anything."""
    from pytest_aisbench.platforms.modelarts.vendor_http import server_date

    what, began = f"answer of {service}", time.monotonic()
    try:
        date = server_date(endpoint, access.ca_file, access.hosts, _ANSWER_S)
    except AisbenchError as error:
        yield checked(what, partial(_raise, error))
        return
    yield ok(what, f"{endpoint} answers within {1000 * (time.monotonic() - began):.0f} ms")
    yield _clock(service, date)


def _clock(service: str, date: str) -> Check:
    what, told = f"clock of {service}", parse_date(date)
    if told is None:
        return warning(what, "it does not tell the time")
    ahead = (told - datetime.now(timezone.utc)).total_seconds()
    if abs(ahead) < _SKEW_S:
        return ok(what, "it agrees with this machine's")
    text = f"this machine's is {abs(ahead):.0f} s {'behind' if ahead > 0 else 'ahead'}"
    return warning(what, text, "set this machine's clock; until then requests are dated by the server's")


def _accepted(platform: ModelArts) -> str:
    platform.jobs.check(_ANSWER_S)
    return "the keys are accepted, and may list what is offered"


def _project(platform: ModelArts) -> str:
    """IAM is asked where it is not configured."""
    found, region = platform.session.project_id, platform.access.region_name
    return f"{found[:6]}…" + (f" of region {region}" if region else "")


def _listed(platform: ModelArts) -> str:
    platform.store.check(platform.root)
    return f"{platform.root} can be listed"


def _region(platform: ModelArts) -> Check:
    """A job reads and writes buckets of its own region only."""
    what, ours = "bucket's region", platform.access.region_name
    try:
        there = platform.store.location(platform.root)
    except AisbenchError as error:
        return warning(what, f"not known: {error.message}", error.advice)
    if ours and there and there != ours:
        fix = f"name a bucket of {ours} in [access], or region_name = '{there}'"
        return failure(what, f"{platform.root.bucket} is in {there}, and jobs run in {ours}", fix)
    return ok(what, there or "not told")


def _written(platform: ModelArts) -> str:
    mark = platform.root / f"doctor-{uuid.uuid4().hex}"
    platform.store.write(mark, b"written and deleted by aisbench doctor\n")
    platform.store.delete(mark)
    return f"below {platform.root} a small object was written and deleted"


def _proxied(endpoint: str) -> bool:
    from urllib.request import getproxies, proxy_bypass

    parts = urlsplit(endpoint)
    return parts.scheme in getproxies() and not proxy_bypass(parts.hostname or "")


def _is_address(name: str) -> bool:
    try:
        ipaddress.ip_address(name)
    except ValueError:
        return False
    return True


def _raise(error: AisbenchError) -> str:
    raise error
