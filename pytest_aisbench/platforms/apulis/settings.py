"""What Apulis needs, before anything connects to it: `[apulis]` of aisbench.toml, and `[apulis]` of workload.toml.

The table of aisbench.toml has the address, the user and the shared folder: `ApulisAccess`. The section of workload.toml
has what one workload needs: `Options`.
"""

from __future__ import annotations

import dataclasses
import re
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from pytest_aisbench.config.access import NO_HOSTS, Access, Hosts, address_fault, read_hosts
from pytest_aisbench.config.settings import NODE_PATH, RESULTS, WORKDIRS, PlatformKind
from pytest_aisbench.errors import UsageFault
from pytest_aisbench.secret import NO_SECRET, Secret

if TYPE_CHECKING:
    from pytest_aisbench.config.settings import Settings
    from pytest_aisbench.config.toml_document import Document
    from pytest_aisbench.platforms.apulis.platform import Apulis

NAME = "apulis"
SECRETS = ("password", "token")
_PLAIN = re.compile(r"http://[^/:@\s]+(:[0-9]+)?/?")
_PATH = re.compile(r"(/[A-Za-z0-9_.~-]+)*")
_YES = {"yes": True, "no": False}
_METRICS = "/endpoints/grafana/api/datasources/proxy/1/api/v1/query_range"
NPU = "huawei_npu_arm64"
LAUNCHERS = ("ranks", "horovod")
ENDPOINTS = ("ssh", "ipython", "tensorboard", "vscode")
_LAST_SLEEP = re.compile(r"\s*(?:&&|;)\s*sleep\s+infinity\s*(['\"]?)\s*\Z")  # the quote ends `bash -c '…'`
_ENDLESS = re.compile(r"\bsleep\s+inf|\btail\s+-[fF]\s+/dev/null")
_NAME = re.compile(r"[A-Za-z0-9_.-]+")


@dataclass(frozen=True)
class Options:
    """The section of one workload."""

    image: str
    device_type: str = NPU
    preemptible: bool = False
    endpoints: tuple[str, ...] = ()
    launcher: str = LAUNCHERS[0]
    command: str = ""  # once per node, instead of the entry once per card
    done: str = ""  # the beginning of the log line that means success, for a command that does not end
    code_dir: str = ""  # the code is on the pods already
    data_dir: str = ""  # the data is on the pods already
    workdir: str = WORKDIRS[0]
    network_interface: str = ""

    @property
    def is_npu(self) -> bool:
        return "npu" in self.device_type


OPTION_KEYS = frozenset(Options.__dataclass_fields__)


@dataclass(frozen=True)
class ApulisAccess:
    """The table of aisbench.toml; and `hosts`, which is a table of its own."""

    endpoint: str = ""
    api: str = "/apis"  # empty for DLWorkspace, the origin of Apulis
    user: str = ""
    password: Secret = NO_SECRET
    token: Secret = NO_SECRET  # instead of a login
    vc: str = ""
    share: str = ""  # the folder, as this machine sees it
    share_in_pods: str = ""  # as the pods see it; empty: under the same path
    results: str = ""  # one of RESULTS; empty: the share, where there is one
    send_obs_keys: bool = False  # to the pods, which have none of their own
    metrics: str = _METRICS
    ca_file: str = ""
    hosts: Hosts = NO_HOSTS

    @property
    def by_obs(self) -> bool:
        return (self.results or ("share" if self.share else "obs")) == "obs"


class ApulisKind(PlatformKind):
    name = NAME
    options = OPTION_KEYS
    training_options = frozenset({"command", "done", "code_dir", "data_dir"})
    table_keys = tuple(row.name for row in dataclasses.fields(ApulisAccess) if row.name != "hosts")
    table_secrets = SECRETS

    def connect(self, settings: Settings) -> Apulis:
        from pytest_aisbench.platforms.apulis.platform import Apulis

        return Apulis(settings)

    def read_table(
        self, document: Document, environment: Mapping[str, str], *, used: bool
    ) -> tuple[ApulisAccess, frozenset[str]]:
        texts, taken = document.texts(NAME, self.table_keys, environment, used=used)
        values = {key: _value(document, key, text, used=used) for key, text in texts.items()}
        access = ApulisAccess(**values, hosts=read_hosts(document))
        if used:
            _check_endpoint(document, access)
        return access, taken

    def uses_access(self, table: ApulisAccess | None, *, on_local_cloud: bool) -> bool:
        return not on_local_cloud and (table or ApulisAccess()).by_obs

    def check(self, settings: Settings) -> None:
        if settings.cloud is None:
            require_apulis(apulis_access(settings), settings.access, settings.sources["platform"])


def apulis_access(settings: Settings) -> ApulisAccess:
    access: ApulisAccess = settings.tables.get(NAME, ApulisAccess())
    return access


def require_apulis(apulis: ApulisAccess, access: Access, source: str) -> None:
    """Raise unless there is an address, a user and a store. The message names the `source` that chose the platform."""
    missing = [key for key in ("endpoint", "user", "vc") if not getattr(apulis, key)]
    if missing:
        advice = "write them to [apulis] in aisbench.toml, or name a local cloud with --aisbench-cloud"
        raise UsageFault(f"{source}: platform apulis needs {', '.join(missing)}", advice=advice)
    if apulis.by_obs and not (access.access_key and access.bucket):
        advice = "write share to [apulis], or access_key, secret_access_key and bucket to [access]"
        raise UsageFault(f"{source}: platform apulis has neither a shared folder nor a bucket", advice=advice)


def _value(document: Document, key: str, text: str, *, used: bool) -> Any:
    def wrong(what: str, advice: str) -> UsageFault:
        return document.fault(f"apulis.{key} {text!r} {what}", NAME, key, advice=advice)

    if key in SECRETS:
        return Secret(text)
    if key == "send_obs_keys":
        if text not in _YES:
            raise wrong("is neither yes nor no", "write yes to hand access_key and secret_access_key to the pods")
        return _YES[text]
    if key == "results" and text not in RESULTS:
        raise wrong("is not known", f"write one of {', '.join(RESULTS)}, or leave it out")
    if key in {"api", "metrics"}:
        text = text.rstrip("/")
        if not _PATH.fullmatch(text):
            raise wrong("is not a path", "write such as /apis")
    if key == "share_in_pods" and text and not NODE_PATH.fullmatch(text):
        raise wrong("is not an absolute path without blanks", "write such as /data/aisbench")
    if key in {"share", "ca_file"} and text:
        path = document.path.parent / Path(text).expanduser()
        if used and not path.exists():
            raise document.fault(f"apulis.{key}: there is no {path}", NAME, key)
        return str(path)
    return text


def _check_endpoint(document: Document, access: ApulisAccess) -> None:
    if not access.endpoint:
        return
    fault = address_fault(access.endpoint)
    if fault and _PLAIN.fullmatch(access.endpoint):
        keys = ("password", "token", "send_obs_keys")
        given = [key for key in keys if getattr(access, key)]
        if not given:
            return  # the API asks only for a user's name, and many installations have no TLS
        fault = "would send secrets over plain http", f"write https, or leave {' and '.join(given)} out"
    if fault:
        raise document.fault(f"apulis.endpoint {fault[0]}", NAME, "endpoint", advice=fault[1])


# The section [apulis] of workload.toml


def read_options(given: Mapping[str, Any]) -> Options:
    values: dict[str, Any] = dict(given)
    endpoints = values.pop("endpoints", [])
    preemptible = values.pop("preemptible", False)
    for key, value in values.items():
        if not isinstance(value, str):
            raise _fault(key, "is not text", "put it in quotes")
    if not isinstance(preemptible, bool):
        raise _fault("preemptible", "is neither true nor false", "write it without quotes")
    if not isinstance(endpoints, list) or not set(map(str, endpoints)) <= set(ENDPOINTS):
        raise _fault("endpoints", "is not a list of endpoints", f"choose among {', '.join(ENDPOINTS)}")
    if not values.get("image"):
        raise UsageFault("[apulis] image is missing in workload.toml", advice="add the image that pods are made of")
    for key, allowed in (("launcher", LAUNCHERS), ("workdir", WORKDIRS)):
        if values.get(key, allowed[0]) not in allowed:
            raise _fault(key, f"{values[key]!r} is not known", f"write one of {', '.join(allowed)}")
    for key in ("code_dir", "data_dir"):
        if values.get(key) and not str(values[key]).startswith("/"):
            raise _fault(key, f"{values[key]!r} is not an absolute path", "write it as the pods see it")
    for key in ("device_type", "network_interface"):
        if values.get(key) and not _NAME.fullmatch(str(values[key])):
            raise _fault(key, f"{values[key]!r} is not a name", "write it as the platform shows it")
    if "\n" in str(values.get("command", "")).strip():
        raise _fault("command", "has several lines", "join them with &&, or use a script")
    if values.get("command"):
        # The platform's guide ends commands so, to keep the pods for inspection; the job would never end.
        values["command"] = _LAST_SLEEP.sub(r"\1", str(values["command"])).strip()
        if not values["command"]:
            raise _fault("command", "trains nothing", "write what the pods are to run")
        if _ENDLESS.search(values["command"]) and not values.get("done"):
            raise _fault("command", "never ends", "write done too: how the line begins that says that it is done")
    return Options(preemptible=preemptible, endpoints=tuple(map(str, endpoints)), **values)


def _fault(key: str, what: str, advice: str) -> UsageFault:
    return UsageFault(f"[apulis] {key} in workload.toml {what}", advice=advice)
