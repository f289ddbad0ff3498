"""The `[access]` table of `aisbench.toml`: how the platform is reached, and with which keys."""

from __future__ import annotations

import dataclasses
import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from pytest_aisbench.hosts import NO_HOSTS, Hosts
from pytest_aisbench.secret import NO_SECRET, Secret

if TYPE_CHECKING:
    from pytest_aisbench import places

SECRETS = ("access_key", "secret_access_key", "security_token")
SIGNATURES = ("obs", "v2", "v4")
_REFERENCE = re.compile(r"\$\{([A-Za-z_][A-Za-z0-9_]*)\}")


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
    document: places.Document, environment: Mapping[str, str], *, used: bool
) -> tuple[Access, frozenset[str]]:
    """The `[access]` table with `${NAME}` taken from the environment, and the names that were taken.

    Where the table is not `used`, as on the local cloud, a name that is not set is no error.
    """
    raw = document.data.get("access", {})
    if not isinstance(raw, dict):
        raise document.fault("access is a table", "access", advice="write [access] on a line of its own")
    known = [row.name for row in dataclasses.fields(Access) if row.name != "hosts"]
    values: dict[str, Any] = {}
    taken: set[str] = set()
    for key, value in raw.items():
        if key not in known:
            raise document.fault(f"unknown key {key!r} in [access]", "access", key, advice=perhaps(key, known))
        if not isinstance(value, str):
            raise document.fault(f"access.{key} is not text", "access", key, advice="put it in quotes")
        for wanted in _REFERENCE.findall(value):
            taken.add(wanted)
            if used and wanted not in environment:
                advice = f"export {wanted}, or write the value"
                raise document.fault(
                    f"access.{key} takes ${{{wanted}}}, which is not set", "access", key, advice=advice
                )
        text = _REFERENCE.sub(lambda match: environment.get(match[1], ""), value)
        if key.endswith("_endpoint") and text:
            _endpoint(document, key, text)
        if key == "ca_file" and text:
            text = str(document.path.parent / Path(text).expanduser())
            if not Path(text).is_file():
                raise document.fault(f"access.ca_file: there is no file {text}", "access", key)
        if key == "obs_signature" and text not in ("", *SIGNATURES):
            advice = f"write one of {', '.join(SIGNATURES)}, or leave it out"
            raise document.fault(f"access.obs_signature {text!r} is not known", "access", key, advice=advice)
        values[key] = Secret(text) if key in SECRETS else text
    return Access(**values), frozenset(taken)


def spells_secrets(document: places.Document) -> bool:
    """Whether a key stands in the file itself, and not just the name of a variable."""
    tables = [
        (document.data.get("access"), SECRETS),
        (document.data.get("tester"), ("token",)),
        (document.data.get("apulis"), ("password", "token")),
    ]
    return any(
        isinstance(table, dict) and bool(_REFERENCE.sub("", str(table.get(key, ""))).strip())
        for table, keys in tables
        for key in keys
    )


def _endpoint(document: places.Document, key: str, text: str) -> None:
    if fault := address_fault(text):
        raise document.fault(f"access.{key} {fault[0]}", "access", key, advice=fault[1])


def address_fault(text: str) -> tuple[str, str] | None:
    """What is wrong with the address of a service, and what to write."""
    match = re.fullmatch(r"(https?)://(\[[0-9a-fA-F:]+\]|[^/:@\s]+)(:[0-9]+)?/?", text)
    if not match:
        return "is not an address", "write https://host[:port]"
    if match[1] == "http" and not re.fullmatch(r"127\.[0-9.]+|localhost|\[::1\]", match[2]):
        return "would send keys over plain http", "write https; plain http is accepted for loopback only"
    return None


def perhaps(key: str, known: Iterable[str]) -> str:
    import difflib

    close = difflib.get_close_matches(key, names := list(known), n=1)
    return f"did you mean {close[0]!r}?" if close else f"known: {', '.join(sorted(names))}"
