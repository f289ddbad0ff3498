"""ModelArts as a Platform: connects session, store and jobs, and checks the connection for `aisbench doctor`."""

from __future__ import annotations

import ipaddress
import socket
import time
import uuid
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from datetime import datetime, timezone
from functools import partial
from typing import Any
from urllib.parse import quote, urlsplit

from pytest_aisbench.config.access import Access, service_endpoint
from pytest_aisbench.config.settings import Settings
from pytest_aisbench.errors import AisbenchError, Unreachable, UsageFault
from pytest_aisbench.model.case import Workload
from pytest_aisbench.model.job import Job, JobSpec, LogPart, Request, StoreUrl
from pytest_aisbench.model.ports import Check, Health, checked, failure, ok, warning
from pytest_aisbench.net import retry
from pytest_aisbench.net.http import parse_date
from pytest_aisbench.net.retry import CHECK_S
from pytest_aisbench.platforms.modelarts import LABEL_OPTIONS, OPTIONS, ModelArtsKind, image_rules
from pytest_aisbench.platforms.modelarts.image_rules import pre_start_files
from pytest_aisbench.platforms.modelarts.jobs import Jobs, JobsV1, JobsV2
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

_SERVICES = ("iam", "obs", "modelarts")
_CONSOLE = "https://console.huaweicloud.com/modelarts/"


class ModelArts:
    """Platform."""

    name = ModelArtsKind.name
    options: Collection[str] = OPTIONS
    label_options: Collection[str] = LABEL_OPTIONS
    max_jobs = 8
    poll_s = 5.0
    patience_s = 60.0  # how long one call waits for the end of an outage

    def __init__(self, settings: Settings) -> None:
        self._wheel = self._make_wheel(settings) if settings.modelarts_client == "wheel" else None
        access = self._wheel.lend() if self._wheel else settings.access
        self._devices_source = settings.sources.get("devices", "--aisbench-devices") if settings.devices else ""
        self.access = access
        self.root = StoreUrl(access.bucket, access.folder.strip("/")) / "aisbench/"
        self.store = Obs.of(access, self.patience_s, self._why_gone)
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
        self.jobs = self._make_jobs(settings)

    @property
    def takes_environment(self) -> bool:
        return self.jobs.takes_environment

    @property
    def platform_id(self) -> str:
        # The APIs have different ids for a job: one cannot resume what the other began.
        version = " V1" if isinstance(self.jobs, JobsV1) else ""
        return f"{self.name} {self.session.endpoint} {self.root}{version}"

    @property
    def endpoints(self) -> dict[str, str]:
        """Addresses by the names of the services."""
        addresses = {service: service_endpoint(service, self.access) for service in _SERVICES}
        return {service: address for service, address in addresses.items() if address}

    def share(self) -> Mapping[str, Any]:
        return {}

    def check(self) -> None:
        self._require_names()
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

    def to_send(self, request: Request) -> Request:
        return self.jobs.to_send(request)

    def sent(self, request: Request) -> Request:
        return self.jobs.sent(request)

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
        """The page of a job; V1 has only a list. Empty outside the public cloud, whose address alone is known."""
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

    def _require_names(self) -> None:
        """Raise for a host name without an address: it will not have one in a minute either."""
        for service, address in self.endpoints.items():
            if service != "iam" or not self.access.project_id:  # IAM is only asked for the project
                name = _check_name(service, address, self.access)
                if name.failed:
                    raise UsageFault(name.text, advice=name.fix)

    def _why_gone(self) -> str:
        """Why the platform will never answer again; empty while it may."""
        return ""

    def _make_wheel(self, settings: Settings) -> Wheel:
        access, endpoints = settings.access, {}
        if any(getattr(access, f"{service}_endpoint") for service in _SERVICES):
            endpoints = {f"{service}_endpoint": service_endpoint(service, access) for service in _SERVICES}
            endpoints |= {"region_name": access.region_name}
        modules = MODULES_V1 if settings.modelarts_version == "V1" else MODULES_V2
        python = str(settings.modelarts_python or "")
        return Wheel(python, modules, access, endpoints, lambda: self.session.project_id)

    def _make_jobs(self, settings: Settings) -> Jobs:
        first, session = settings.modelarts_version == "V1", self.session
        if self._wheel is None:
            return JobsV1(session, self._placement, self.store) if first else JobsV2(session, self._placement)
        way = self._wheel, session.endpoint, self.patience_s
        if first:
            return WheelJobsV1(WheelSessionV1(*way), self._placement, self.store)
        return JobsV2(WheelSessionV2(*way), self._placement)

    def _placement(self, spec: JobSpec) -> Placement:
        return placement(spec, self._devices_source)


# Checks of the connection, step by step: names, answers, clocks, keys, project, bucket

_ANSWER_S = 10.0  # for one answer
_NAME_S = 3.0  # for the address of a name
_SKEW_S = 60.0  # a warning; services refuse 15 minutes, and then we date requests by their clock


def check_connection(platform: ModelArts) -> Iterator[Check]:
    """Stops at the first step without which later ones cannot work."""
    reached = True
    for service, address in platform.endpoints.items():
        name = _check_name(service, address, platform.access)
        yield name
        if name.failed:
            reached = False
            continue
        checks = list(_check_answer(service, address, platform.access))
        yield from checks
        reached = reached and not any(check.failed for check in checks)
    if not reached:
        return
    for what, look in (("credentials", partial(_check_keys, platform)), ("project", partial(_check_project, platform))):
        check = checked(what, look)
        yield check
        if check.failed:
            return
    bucket = checked("bucket", partial(_check_bucket, platform))
    yield bucket
    if not bucket.failed:
        yield _check_region(platform)
        yield checked("write access", partial(_check_writing, platform))


def _check_name(service: str, endpoint: str, access: Access) -> Check:
    """Resolve the name of the service; for OBS that of the bucket, which is the host of its requests."""
    name, above = urlsplit(endpoint).hostname or "", ""
    what = f"name of {service}"
    if _is_address(name):
        return ok(what, f"{name} is an address")
    if service == "obs" and access.bucket and name != "localhost":
        name, above = f"{access.bucket}.{name}", name
    if address := access.hosts.address(name, above=above):
        return ok(what, f"{name} is {address}, by [hosts]")
    if _uses_proxy(endpoint):
        return ok(what, f"{name} is left to the proxy")
    try:
        address = retry.call(partial(_look_up, name), patience_s=_NAME_S)
    except AisbenchError as error:
        fix = f'check [access], or write "{above or name}" with its address to [hosts] in aisbench.toml'
        return Check(what, Health.FAILURE, f"{name} has no address: {error.message}", fix, lasting=False)
    return ok(what, f"{name} is {address}")


def _look_up(name: str) -> str:
    """The address of a host. A name server that does not answer is asked again."""
    try:
        return str(socket.getaddrinfo(name, None, type=socket.SOCK_STREAM)[0][4][0])
    except (OSError, UnicodeError) as error:
        kind = Unreachable if isinstance(error, OSError) and error.errno == socket.EAI_AGAIN else UsageFault
        raise kind(getattr(error, "strerror", None) or str(error)) from None


def _check_answer(service: str, endpoint: str, access: Access) -> Iterator[Check]:
    """Ask for nothing: any answer will do."""
    from pytest_aisbench.platforms.modelarts.vendor_http import server_date

    what, began = f"answer of {service}", time.monotonic()
    try:
        date = server_date(endpoint, access.ca_file, access.hosts, _ANSWER_S)
    except AisbenchError as error:
        yield checked(what, partial(_raise, error))
        return
    yield ok(what, f"{endpoint} answers within {1000 * (time.monotonic() - began):.0f} ms")
    yield _check_clock(service, date)


def _check_clock(service: str, date: str) -> Check:
    what, server_time = f"clock of {service}", parse_date(date)
    if server_time is None:
        return warning(what, "it does not tell the time")
    ahead = (server_time - datetime.now(timezone.utc)).total_seconds()
    if abs(ahead) < _SKEW_S:
        return ok(what, "it agrees with this machine's")
    text = f"this machine's is {abs(ahead):.0f} s {'behind' if ahead > 0 else 'ahead'}"
    return warning(what, text, "set this machine's clock; until then requests are dated by the server's")


def _check_keys(platform: ModelArts) -> str:
    platform.jobs.check(_ANSWER_S)
    return "the keys are accepted, and may list what is offered"


def _check_project(platform: ModelArts) -> str:
    """Asks IAM if the project is not configured."""
    project_id, region = platform.session.project_id, platform.access.region_name
    return f"{project_id[:6]}…" + (f" of region {region}" if region else "")


def _check_bucket(platform: ModelArts) -> str:
    platform.store.check(platform.root)
    return f"{platform.root} can be listed"


def _check_region(platform: ModelArts) -> Check:
    """Compare regions: a job reaches only buckets of its own region."""
    what, ours = "bucket's region", platform.access.region_name
    try:
        there = platform.store.location(platform.root)
    except AisbenchError as error:
        return warning(what, f"not known: {error.message}", error.advice)
    if ours and there and there != ours:
        fix = f"name a bucket of {ours} in [access], or region_name = '{there}'"
        return failure(what, f"{platform.root.bucket} is in {there}, and jobs run in {ours}", fix)
    return ok(what, there or "not told")


def _check_writing(platform: ModelArts) -> str:
    mark = platform.root / f"doctor-{uuid.uuid4().hex}"
    platform.store.write(mark, b"written and deleted by aisbench doctor\n")
    platform.store.delete(mark)
    return f"below {platform.root} a small object was written and deleted"


def _uses_proxy(endpoint: str) -> bool:
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
