"""The section `[apulis]` of workload.toml, checked. Pure."""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from pytest_aisbench.errors import UsageFault

NPU = "huawei_npu_arm64"
LAUNCHERS = ("ranks", "horovod")
WORKDIRS = ("local", "shared")
ENDPOINTS = ("ssh", "ipython", "tensorboard", "vscode")
_LAST_SLEEP = re.compile(r"\s*(?:&&|;)\s*sleep\s+infinity\s*(['\"]?)\s*\Z")  # the quote is that of `bash -c '…'`
_ENDLESS = re.compile(r"\bsleep\s+inf|\btail\s+-[fF]\s+/dev/null")
_NAME = re.compile(r"[A-Za-z0-9_.-]+")


@dataclass(frozen=True)
class Options:
    """Of one workload."""

    image: str
    device_type: str = NPU
    preemptible: bool = False
    endpoints: tuple[str, ...] = ()
    launcher: str = LAUNCHERS[0]
    command: str = ""  # once per node, instead of the entry once per card
    done: str = ""  # how a line of the log begins that says that the command is done, though it does not end
    code_dir: str = ""  # the code is on the pods already
    data_dir: str = ""  # so is the data
    workdir: str = WORKDIRS[0]
    network_interface: str = ""

    @property
    def is_npu(self) -> bool:
        return "npu" in self.device_type


KEYS = frozenset(Options.__dataclass_fields__)


def read(given: Mapping[str, Any]) -> Options:
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
    for key, known in (("launcher", LAUNCHERS), ("workdir", WORKDIRS)):
        if values.get(key, known[0]) not in known:
            raise _fault(key, f"{values[key]!r} is not known", f"write one of {', '.join(known)}")
    for key in ("code_dir", "data_dir"):
        if values.get(key) and not str(values[key]).startswith("/"):
            raise _fault(key, f"{values[key]!r} is not an absolute path", "write it as the pods see it")
    for key in ("device_type", "network_interface"):
        if values.get(key) and not _NAME.fullmatch(str(values[key])):
            raise _fault(key, f"{values[key]!r} is not a name", "write it as the platform shows it")
    if "\n" in str(values.get("command", "")).strip():
        raise _fault("command", "has several lines", "join them with &&, or use a script")
    if values.get("command"):
        # As the platform's guide has it, so that somebody may look at the pods; the job would never end.
        values["command"] = _LAST_SLEEP.sub(r"\1", str(values["command"])).strip()
        if not values["command"]:
            raise _fault("command", "trains nothing", "write what the pods are to run")
        if _ENDLESS.search(values["command"]) and not values.get("done"):
            raise _fault("command", "never ends", "write done too: how the line begins that says that it is done")
    return Options(preemptible=preemptible, endpoints=tuple(map(str, endpoints)), **values)


def _fault(key: str, what: str, advice: str) -> UsageFault:
    return UsageFault(f"[apulis] {key} in workload.toml {what}", advice=advice)
