"""The `[hosts]` table of `aisbench.toml`: addresses of names, for our own connections, where /etc/hosts needs root."""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from pytest_aisbench.settings import places

_LABEL = r"[a-z0-9_](?:[a-z0-9_-]*[a-z0-9_])?"
_NAME = re.compile(rf"{_LABEL}(?:\.{_LABEL})*")


@dataclass(frozen=True)
class Hosts:
    """Read as /etc/hosts is: a name has one address, and says nothing of the names below it."""

    addresses: Mapping[str, str] = field(default_factory=dict)

    def address(self, name: str, *, above: str = "") -> str:
        """Empty where the table does not know the name. One that lies directly or deeper below the name `above` is
        served by the entry of that, unless it has one of its own: buckets are hosts below the endpoint of OBS."""
        name, above = _plain(name), _plain(above)
        found = self.addresses.get(name, "")
        if not found and above and name.endswith(f".{above}"):
            found = self.addresses.get(above, "")
        return found


NO_HOSTS = Hosts()


def read_hosts(document: places.Document | None) -> Hosts:
    if document is None or "hosts" not in document.data:
        return NO_HOSTS
    raw = document.data["hosts"]
    if not isinstance(raw, dict):
        raise document.fault("hosts is a table", "hosts", advice="write [hosts] on a line of its own")
    addresses: dict[str, str] = {}
    for name, address in raw.items():
        if fault := _fault(name, address):
            raise document.fault(f"hosts: {fault[0]}", "hosts", name, advice=fault[1])
        if _plain(name) in addresses:
            raise document.fault(f"hosts: {name} has two addresses", "hosts", name, advice="one is enough")
        addresses[_plain(name)] = address
    return Hosts(addresses)


def _fault(name: str, address: Any) -> tuple[str, str] | None:
    """What is wrong with an entry, and what to write."""
    if isinstance(address, dict):  # a.b = "…" without quotes is a table in a table
        return f"{name}. … is not a name in quotes", 'write "obs.centre.example" = "192.0.2.7"'
    if name.startswith("*."):
        return f"{name!r} is not a name", "write the endpoint of OBS: its entry serves the buckets below it too"
    if not _NAME.fullmatch(_plain(name)) or _is_address(name):
        return f"{name!r} is not the name of a host", "write it without https://, port and path"
    if not isinstance(address, str) or not _is_address(address):
        return f"{address!r} is not an address", "write one IPv4 or IPv6 address, without port"
    return None


def _is_address(text: str) -> bool:
    import ipaddress

    try:
        found = ipaddress.ip_address(text)
    except ValueError:
        return False
    return not (found.is_unspecified or found.is_multicast)


def _plain(name: str) -> str:
    return name.lower().rstrip(".")
