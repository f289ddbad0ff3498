"""Reads the tables `[access]`, `[hosts]` and `[tester]` of aisbench.toml: addresses and keys of servers."""

from __future__ import annotations

import dataclasses
import json
import os
import re
import stat
from collections.abc import Collection, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any

from pytest_aisbench.errors import UsageFault
from pytest_aisbench.secret import NO_SECRET, Secret, quoted

if TYPE_CHECKING:
    from pytest_aisbench.config.toml_document import Document

# [hosts]: addresses of names, for our own connections, because writing /etc/hosts needs root

_LABEL = r"[a-z0-9_](?:[a-z0-9_-]*[a-z0-9_])?"
_NAME = re.compile(rf"{_LABEL}(?:\.{_LABEL})*")


@dataclass(frozen=True)
class Hosts:
    """Works as /etc/hosts: a name has one address, which does not apply to the names below it."""

    addresses: Mapping[str, str] = field(default_factory=dict)

    def address(self, name: str, *, above: str = "") -> str:
        """The address of a name; empty if the table has none.

        A name below `above` without an entry of its own gets the address of `above`: buckets are hosts below the
        endpoint of OBS.
        """
        name, above = _normalized(name), _normalized(above)
        address = self.addresses.get(name, "")
        if not address and above and name.endswith(f".{above}"):
            address = self.addresses.get(above, "")
        return address


NO_HOSTS = Hosts()


def read_hosts(document: Document | None) -> Hosts:
    if document is None or "hosts" not in document.data:
        return NO_HOSTS
    raw = document.data["hosts"]
    if not isinstance(raw, dict):
        raise document.fault("hosts is a table", "hosts", advice="write [hosts] on a line of its own")
    addresses: dict[str, str] = {}
    for name, address in raw.items():
        if fault := _entry_fault(name, address):
            raise document.fault(f"hosts: {fault[0]}", "hosts", name, advice=fault[1])
        if _normalized(name) in addresses:
            raise document.fault(f"hosts: {name} has two addresses", "hosts", name, advice="one is enough")
        addresses[_normalized(name)] = address
    return Hosts(addresses)


def _entry_fault(name: str, address: Any) -> tuple[str, str] | None:
    """What is wrong with an entry, and the advice; None for a good entry."""
    if isinstance(address, dict):  # a.b = "…" without quotes is a table in a table
        return f"{name}. … is not a name in quotes", 'write "obs.centre.example" = "192.0.2.7"'
    if name.startswith("*."):
        return f"{name!r} is not a name", "write the endpoint of OBS: its entry serves the buckets below it too"
    if not _NAME.fullmatch(_normalized(name)) or _is_address(name):
        return f"{name!r} is not the name of a host", "write it without https://, port and path"
    if not isinstance(address, str) or not _is_address(address):
        return f"{address!r} is not an address", "write one IPv4 or IPv6 address, without port"
    return None


def _is_address(text: str) -> bool:
    import ipaddress

    try:
        address = ipaddress.ip_address(text)
    except ValueError:
        return False
    return not (address.is_unspecified or address.is_multicast)


def _normalized(name: str) -> str:
    return name.lower().rstrip(".")


# The table [access]

ACCESS_SECRETS = ("access_key", "secret_access_key", "security_token")
OBS_SIGNATURES = ("obs", "v2", "v4")
LOOPBACK = re.compile(r"127\.[0-9.]+|localhost|\[::1\]")  # where plain http is no risk


@dataclass(frozen=True)
class Access:
    """The table `[access]`, with the names of ais-bench-stubs; and `hosts`, which is a table of its own."""

    access_key: Secret = NO_SECRET
    secret_access_key: Secret = NO_SECRET
    region_name: str = ""
    project_id: str = ""
    bucket: str = ""
    folder: str = ""  # in the bucket; everything that is staged goes below it
    iam_endpoint: str = ""
    obs_endpoint: str = ""
    modelarts_endpoint: str = ""
    ca_file: str = ""
    security_token: Secret = NO_SECRET  # of temporary keys
    obs_signature: str = ""  # one of SIGNATURES; empty: the vendor's client asks the server
    hosts: Hosts = NO_HOSTS


def read_access(
    document: Document | None, environment: Mapping[str, str], *, used: bool
) -> tuple[Access, frozenset[str]]:
    """The table `[access]`, and the names of environment variables in it."""
    if not document:
        return Access(), frozenset()
    keys = [row.name for row in dataclasses.fields(Access) if row.name != "hosts"]
    texts, taken = document.texts("access", keys, environment, used=used)
    return Access(**{key: _value(document, key, text) for key, text in texts.items()}), taken


def merge_access(table: Access, written: Collection[str], package: Access) -> Access:
    """The keys that are `written` in the table; all others as the package has them. A folder goes with its bucket."""
    own = {*written, "hosts", *(["folder"] if "bucket" in written else [])}
    rest = {row.name: getattr(package, row.name) for row in dataclasses.fields(Access) if row.name not in own}
    return dataclasses.replace(table, **rest)


def _value(document: Document, key: str, text: str) -> Any:
    if key in ACCESS_SECRETS:
        return Secret(text)
    if key.endswith("_endpoint") and text and (fault := address_fault(text)):
        raise document.fault(f"access.{key} {fault[0]}", "access", key, advice=fault[1])
    if key == "ca_file" and text:
        text = str(document.path.parent / Path(text).expanduser())
        if not Path(text).is_file():
            raise document.fault(f"access.ca_file: there is no file {text}", "access", key)
    if key == "obs_signature" and text not in ("", *OBS_SIGNATURES):
        advice = f"write one of {', '.join(OBS_SIGNATURES)}, or leave it out"
        raise document.fault(f"access.obs_signature {quoted(text)} is not known", "access", key, advice=advice)
    return text


def address_fault(text: str) -> tuple[str, str] | None:
    """What is wrong with the address of a service, and the advice; None for a good one."""
    match = re.fullmatch(r"(https?)://(\[[0-9a-fA-F:]+\]|[^/:@\s]+)(:[0-9]+)?/?", text)
    if not match:
        return "is not an address", "write https://host[:port]"
    if match[1] == "http" and not LOOPBACK.fullmatch(match[2]):
        return "would send keys over plain http", "write https; plain http is accepted for loopback only"
    return None


def service_endpoint(service: str, access: Access) -> str:
    """The address of one of the vendor's services: as configured, else that of the region."""
    given = str(getattr(access, f"{service}_endpoint"))
    if given or access.region_name:
        return given or f"https://{service}.{access.region_name}.myhuaweicloud.com"
    if service == "iam" and access.project_id:
        return ""  # IAM is only asked for the project
    advice = "write one of the two to [access]"
    raise UsageFault(f"access.{service}_endpoint is missing, and so is region_name", advice=advice)


# Keys: those of [access], else of the environment, else of the vendor's profile file

_AK, _SK = "HUAWEICLOUD_SDK_AK", "HUAWEICLOUD_SDK_SK"
_TOKEN, _PROJECT = "HUAWEICLOUD_SDK_SECURITY_TOKEN", "HUAWEICLOUD_SDK_PROJECT_ID"
_FILE = "HUAWEICLOUD_SDK_CREDENTIALS_FILE"
_PROFILE = Path(".huaweicloud/credentials")  # in the home folder
_SECTION = "basic"

WAYS_TO_GIVE_KEYS = (
    "write access_key and secret_access_key to [access] in {config}, "
    f"export {_AK} and {_SK}, or write ak and sk to [{_SECTION}] in ~/{_PROFILE}"
)


def add_keys(access: Access, environment: Mapping[str, str]) -> tuple[Access, tuple[str, ...]]:
    """The access with keys, if there are any, and notes for the user."""
    if access.access_key or access.secret_access_key:
        return access, ()
    if access.security_token:
        raise UsageFault("access.security_token stands there without its keys", advice="write the three of them")
    if environment.get(_AK) or environment.get(_SK):
        return _with_environment(access, environment), (f"keys: {_AK}",)
    file = _profile_file(environment)
    if file is None:
        return access, ()
    return _with_profile(access, file), (f"keys: {file}", *exposure_warnings(file))


def exposure_warnings(file: Path) -> tuple[str, ...]:
    """A warning, if others than its owner may read a file that holds keys."""
    if os.name == "nt" or not stat.S_IMODE(file.stat().st_mode) & 0o077:
        return ()
    return (f"{file} holds keys and others may read it: chmod 600 {file}",)


def _with_environment(access: Access, environment: Mapping[str, str]) -> Access:
    for given, missing in ((_AK, _SK), (_SK, _AK)):
        if not environment.get(missing):
            raise UsageFault(f"{given} is set, and {missing} is not", advice=f"export {missing}")
    return _with_keys(access, *(environment.get(name, "") for name in (_AK, _SK, _TOKEN, _PROJECT)))


def _profile_file(environment: Mapping[str, str]) -> Path | None:
    if named := environment.get(_FILE):
        if not Path(named).is_file():
            raise UsageFault(f"{_FILE}: there is no file {named}")
        return Path(named)
    home = environment.get("HOME") or environment.get("USERPROFILE")
    file = Path(home) / _PROFILE if home else None
    return file if file and file.is_file() else None


def _with_profile(access: Access, file: Path) -> Access:
    """Read the vendor's format. The SDK's own reader would write an id of this machine beside the file."""
    import configparser

    parser = configparser.ConfigParser(interpolation=None)
    try:
        parser.read_string(file.read_text(encoding="utf-8"))
    except (configparser.Error, UnicodeDecodeError):  # the message quotes the line, which may contain a key
        raise UsageFault(f"{file}: not a profile file", advice=f"write [{_SECTION}], then ak = … and sk = …") from None
    except OSError as error:
        raise UsageFault(f"{file}: cannot be read ({error.strerror})") from None
    profile = parser[_SECTION] if parser.has_section(_SECTION) else {}
    missing = [key for key in ("ak", "sk") if not profile.get(key)]
    if missing:
        raise UsageFault(f"{file}: [{_SECTION}] has no {' and no '.join(missing)}", advice="write ak = … and sk = …")
    return _with_keys(access, *(profile.get(key, "") for key in ("ak", "sk", "security_token", "project_id")))


def _with_keys(access: Access, access_key: str, secret_key: str, token: str, project: str) -> Access:
    return dataclasses.replace(
        access,
        access_key=Secret(access_key.strip()),
        secret_access_key=Secret(secret_key.strip()),
        security_token=Secret(token.strip()),
        project_id=access.project_id or project.strip(),
    )


# [tester]: the server for results, its token, and the papers that go with them

NO_TESTER = "none"
TESTER_SECRETS = ("token",)
_KEYS = ("url", "token", "ca_file", "testid", "config", "system")
_WEB = re.compile(r"(https?)://(\[[0-9a-fA-F:]+\]|[^\s/?#@:]+)(:[0-9]+)?(/[^\s?#]*)?")
_TESTID = re.compile(r"[A-Za-z0-9][A-Za-z0-9_.:-]{0,127}")
_SECRET_WORDS = re.compile(r"token|passw|secret|credential|(^|_)(ak|sk|key)($|_)|access_?key", re.IGNORECASE)
# Layout 1.0 of a package, then 2.0.
_PAPERS = {"config": ("code/config.json", "config/config.json"), "system": ("code/system.json", "config/system.json")}


@dataclass(frozen=True)
class TesterAccess:
    """The table `[tester]`. `config` and `system` are the contents of the files of these names, without secrets."""

    url: str = ""
    token: Secret = NO_SECRET
    ca_file: str = ""
    testid: str = ""
    config: Mapping[str, Any] = field(default_factory=dict)
    system: Mapping[str, Any] = field(default_factory=dict)
    hosts: Hosts = NO_HOSTS  # a table of its own

    def token_for(self, address: str) -> Secret:
        """The token, if `address` is that of the table; other Testers do not get it."""
        return self.token if not self.url or self.url.rstrip("/") == address.rstrip("/") else NO_SECRET


def parse_tester_address(text: str) -> str:
    """An address of a Tester; empty for `none`."""
    if text == NO_TESTER:
        return ""
    if match := _WEB.fullmatch(text):
        if match[1] == "http" and not LOOPBACK.fullmatch(match[2]):
            raise ValueError(f"{quoted(text)} would send results and token over plain http: write https")
        return text
    if re.fullmatch(r"file:///[^?#]*|stubs:/.*", text):
        return text
    raise ValueError(f"{quoted(text)} is none of https://tester.example/, file:///folder, stubs:/package, {NO_TESTER}")


def read_tester(
    document: Document | None, environment: Mapping[str, str], package: Path | None, *, used: bool
) -> tuple[TesterAccess, frozenset[str]]:
    """The table `[tester]`, and the names of environment variables in it.

    Papers that it does not name come from the package. If no Tester is `used`, a variable may be missing, and no
    paper is read.
    """
    values: dict[str, Any] = {}
    taken: frozenset[str] = frozenset()
    if document and isinstance(document.data.get("tester"), dict):  # it may be just an address
        texts, taken = document.texts("tester", _KEYS, environment, used=used)
        values = {key: _tester_value(document, key, text, used=used) for key, text in texts.items()}
    for key, paths in _PAPERS.items() if used and package else ():
        assert package is not None
        file = next((package / path for path in paths if (package / path).is_file()), None)
        if key not in values and file:
            values[key] = read_paper(file)
    if not values.get("testid"):
        values["testid"] = _testid(values.get("config", {}))
    return TesterAccess(**values), taken


@dataclass(frozen=True)
class PackageTester:
    """The Tester that config.json of a package names: its address if results go there, else a note why not."""

    address: str = ""
    source: str = ""
    note: str = ""


def tester_of_package(package: Path, *, has_token: bool, emulation: bool) -> PackageTester:
    """`has_token`: the user has a token for an open Tester, and does not say where that is."""
    file = next((package / path for path in _PAPERS["config"] if (package / path).is_file()), None)
    if file is None:
        return PackageTester()
    try:
        config = read_paper(file)
    except UsageFault as fault:
        return PackageTester(note=f"{fault}; no Tester is taken from it")
    host, port = (str(config.get(f"tester_server_{key}") or "").strip() for key in ("ip", "port"))
    if not host:
        return PackageTester()
    where = f"{file}: tester_server_ip"
    scheme = "http" if LOOPBACK.fullmatch(host) else "https"
    address = f"{scheme}://{host}{port and f':{port}'}/"
    if not _WEB.fullmatch(address):
        return PackageTester(note=f"{where} and tester_server_port are not used: {address!r} is no address")
    if has_token:
        return PackageTester(address, where)
    if emulation:
        why = "a run on the local cloud uploads to the Tester there"
    else:
        why = (
            "how ais-bench-stubs talks to its Tester is not public. If an open Tester serves there, write its token to "
            f"[tester], or name it: --aisbench-tester {address}"
        )
    return PackageTester(note=f"{where} {host}{port and f':{port}'} is not used: {why}")


def _tester_value(document: Document, key: str, text: str, *, used: bool) -> Any:
    if key in TESTER_SECRETS:
        return Secret(text)
    if key == "testid" and text and not _TESTID.fullmatch(text):
        advice = "letters, digits, '.', '_', ':' and '-', 128 at most"
        raise document.fault(f"tester.testid {quoted(text)} is not the name of a test", "tester", key, advice=advice)
    if key in {"ca_file", "config", "system"} and text:
        file = document.path.parent / Path(text).expanduser()
        if used and not file.is_file():
            raise document.fault(f"tester.{key}: there is no file {file}", "tester", key)
        if key == "ca_file":
            return str(file)
        return read_paper(file) if used else {}
    return {} if key in {"config", "system"} else text


def _testid(config: Mapping[str, Any]) -> str:
    testid = str(config.get("testid", ""))
    if testid and not _TESTID.fullmatch(testid):
        raise UsageFault(f"config.json: testid {testid[:40]!r} is not the name of a test", advice="see [tester] testid")
    return testid


def read_paper(file: Path) -> dict[str, Any]:
    """The JSON object in config.json or system.json, without values that look like secrets: uploads contain it."""
    try:
        data = json.loads(file.read_text(encoding="utf-8-sig"), parse_constant=_no_constant)
    except OSError as error:
        raise UsageFault(f"{file}: cannot be read ({error.strerror})") from None
    except (ValueError, RecursionError) as error:
        raise UsageFault(f"{file}: not JSON: {error}") from None
    if not isinstance(data, dict):
        raise UsageFault(f"{file}: not a JSON object")
    clean: dict[str, Any] = _without_secrets(data)
    return clean


def _no_constant(word: str) -> None:
    raise ValueError(f"{word} is no number of JSON")


def _without_secrets(value: Any) -> Any:
    if isinstance(value, dict):
        return {key: _without_secrets(item) for key, item in value.items() if not _SECRET_WORDS.search(key)}
    return [_without_secrets(item) for item in value] if isinstance(value, list) else value
