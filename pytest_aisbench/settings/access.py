"""The `[access]` table of `aisbench.toml`: how the platform is reached, and with which keys."""

from __future__ import annotations

import dataclasses
import re
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from pytest_aisbench.secret import NO_SECRET, Secret
from pytest_aisbench.settings.hosts import NO_HOSTS, Hosts

if TYPE_CHECKING:
    from pytest_aisbench.settings import places

SECRETS = ("access_key", "secret_access_key", "security_token")
SIGNATURES = ("obs", "v2", "v4")
LOOPBACK = re.compile(r"127\.[0-9.]+|localhost|\[::1\]")  # where plain http is no risk


@dataclass(frozen=True)
class Access:
    """The `[access]` table, in the predecessor's words; and `hosts`, which is a table of its own."""

    access_key: Secret = NO_SECRET
    secret_access_key: Secret = NO_SECRET
    region_name: str = ""
    project_id: str = ""
    bucket: str = ""
    folder: str = ""  # of the bucket, above everything that is staged
    iam_endpoint: str = ""
    obs_endpoint: str = ""
    modelarts_endpoint: str = ""
    ca_file: str = ""
    security_token: Secret = NO_SECRET  # of temporary keys
    obs_signature: str = ""  # one of SIGNATURES; empty: as the vendor's client agrees with the server
    hosts: Hosts = NO_HOSTS


def read_access(
    document: places.Document | None, environment: Mapping[str, str], *, used: bool
) -> tuple[Access, frozenset[str]]:
    """The `[access]` table, and the names that were taken from the environment."""
    if not document:
        return Access(), frozenset()
    known = [row.name for row in dataclasses.fields(Access) if row.name != "hosts"]
    texts, taken = document.texts("access", known, environment, used=used)
    return Access(**{key: _value(document, key, text) for key, text in texts.items()}), taken


def _value(document: places.Document, key: str, text: str) -> Any:
    if key in SECRETS:
        return Secret(text)
    if key.endswith("_endpoint") and text and (fault := address_fault(text)):
        raise document.fault(f"access.{key} {fault[0]}", "access", key, advice=fault[1])
    if key == "ca_file" and text:
        text = str(document.path.parent / Path(text).expanduser())
        if not Path(text).is_file():
            raise document.fault(f"access.ca_file: there is no file {text}", "access", key)
    if key == "obs_signature" and text not in ("", *SIGNATURES):
        advice = f"write one of {', '.join(SIGNATURES)}, or leave it out"
        raise document.fault(f"access.obs_signature {text!r} is not known", "access", key, advice=advice)
    return text


def address_fault(text: str) -> tuple[str, str] | None:
    """What is wrong with the address of a service, and what to write."""
    match = re.fullmatch(r"(https?)://(\[[0-9a-fA-F:]+\]|[^/:@\s]+)(:[0-9]+)?/?", text)
    if not match:
        return "is not an address", "write https://host[:port]"
    if match[1] == "http" and not LOOPBACK.fullmatch(match[2]):
        return "would send keys over plain http", "write https; plain http is accepted for loopback only"
    return None
