"""The way to a ModelArts, step by step: names, answers, clocks, keys, project, bucket. Nothing is signed before the
service is known to answer, and nothing costs anything."""

from __future__ import annotations

import ipaddress
import socket
import time
import uuid
from collections.abc import Iterator
from datetime import datetime, timezone
from functools import partial
from urllib.parse import urlsplit

from pytest_aisbench.adapters.modelarts import ModelArts
from pytest_aisbench.domain.checkup import Check, Health, failure, fine, looked, warning
from pytest_aisbench.errors import AisbenchError
from pytest_aisbench.net.http import parse_date
from pytest_aisbench.settings.access import Access

_CHECK_S = 10.0  # for one answer
_SKEW_S = 60.0  # worth a word; from 15 minutes on services refuse, and we date requests by their clock


def connection(platform: ModelArts) -> Iterator[Check]:
    """Ends where nothing further can be known."""
    reached = True
    for service, endpoint in platform.endpoints.items():
        resolved = _resolved(service, endpoint, platform.access)
        yield resolved
        if resolved.failed:
            reached = False
            continue
        found = list(_answered(service, endpoint, platform.access))
        yield from found
        reached = reached and not any(check.failed for check in found)
    if not reached:
        return
    for name, look in (("credentials", partial(_accepted, platform)), ("project", partial(_project, platform))):
        known = looked(name, look)
        yield known
        if known.failed:
            return
    bucket = looked("bucket", partial(_listed, platform))
    yield bucket
    if not bucket.failed:
        yield _region(platform)
        yield looked("write access", partial(_written, platform))


def _resolved(service: str, endpoint: str, access: Access) -> Check:
    """The name of the service; of OBS that of the bucket, since that is the host which is asked."""
    name, above = urlsplit(endpoint).hostname or "", ""
    what = f"name of {service}"
    if _is_address(name):
        return fine(what, f"{name} is an address")
    if service == "obs" and access.bucket:
        name, above = f"{access.bucket}.{name}", name
    if address := access.hosts.address(name, above=above):
        return fine(what, f"{name} is {address}, by [hosts]")
    if _proxied(endpoint):
        return fine(what, f"{name} is left to the proxy")
    try:
        found = socket.getaddrinfo(name, None, type=socket.SOCK_STREAM)
    except OSError as error:
        fix = f'check [access], or write "{above or name}" with its address to [hosts] in aisbench.toml'
        return Check(what, Health.FAILURE, f"{name} has no address: {error.strerror or error}", fix, lasting=False)
    return fine(what, f"{name} is {found[0][4][0]}")


def _answered(service: str, endpoint: str, access: Access) -> Iterator[Check]:
    """Any answer will do: it was not asked for anything."""
    from pytest_aisbench.adapters.vendor_http import knock

    what, began = f"answer of {service}", time.monotonic()
    try:
        date = knock(endpoint, access.ca_file, access.hosts, _CHECK_S)
    except AisbenchError as error:
        yield looked(what, partial(_raise, error))
        return
    yield fine(what, f"{endpoint} answers within {1000 * (time.monotonic() - began):.0f} ms")
    yield _clock(service, date)


def _clock(service: str, date: str) -> Check:
    what, told = f"clock of {service}", parse_date(date)
    if told is None:
        return warning(what, "it does not tell the time")
    ahead = (told - datetime.now(timezone.utc)).total_seconds()
    if abs(ahead) < _SKEW_S:
        return fine(what, "it agrees with this machine's")
    text = f"this machine's is {abs(ahead):.0f} s {'behind' if ahead > 0 else 'ahead'}"
    return warning(what, text, "set this machine's clock; until then requests are dated by the server's")


def _accepted(platform: ModelArts) -> str:
    platform.jobs.check(_CHECK_S)
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
    return fine(what, there or "not told")


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
