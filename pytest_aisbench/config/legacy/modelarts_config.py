"""Reads `modelarts_config.py` and `config.sh` of ais-bench-stubs: keys, API version, mode, and the job's settings.

Begin with `read_legacy_files`. A file is parsed; only with `--aisbench-trust-config` a file that cannot be parsed is
executed, in a child process.
"""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Collection, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from pytest_aisbench.config.access import Access, address_fault, exposure_warnings
from pytest_aisbench.config.legacy import python_file, shell_file
from pytest_aisbench.config.legacy.python_file import Table, Unreadable
from pytest_aisbench.errors import UsageFault
from pytest_aisbench.secret import NO_SECRET, Secret

CONFIG = Path("code/config/modelarts_config.py")
SHELL = Path("code/config/config.sh")
ACCESS = "access_config"
SESSIONS = {"V1": "session_config", "V2": "session_config_v2"}
_SECRETS = ("access_key", "secret_access_key")
_ENDPOINTS = ("iam_endpoint", "obs_endpoint", "modelarts_endpoint")
_ACCESS_KEYS = frozenset({*_SECRETS, *_ENDPOINTS, "server", "region_name", "project_id"})
_SESSION_KEYS = frozenset({
    *("inputs", "code_dir", "boot_file", "train_instance_type", "train_instance_count", "out_base_url"),
})  # fmt: skip
_PARAMETERS = {"V1": ("hyperparameters", "label"), "V2": ("parameters", "name")}
_TRUST = "write the value itself, or let the file be executed: --aisbench-trust-config"


@dataclass(frozen=True)
class LegacySettings:
    """Options with their values and sources, the access, and notes for the user."""

    options: Mapping[str, tuple[str, str]] = field(default_factory=dict)
    access: Access | None = None  # None: the run does not connect
    notes: tuple[str, ...] = ()


def read_legacy_files(
    config: Path | None,
    package: Path | None,
    version: str,
    *,
    trusted: bool,
    connects: bool,
    written: Collection[str] = (),
) -> LegacySettings:
    """`version` is the user's choice, or empty. Reads keys only if the run `connects` to a platform, and none that is
    `written` in [access]."""
    options = _options(package) if package else {}
    if not connects and config is None:
        return LegacySettings(options)
    file = open_config(config, package, trusted=trusted)
    if not connects:
        return LegacySettings(options)
    access, notes = file.access(version or options.get("modelarts_version", ("V2", ""))[0], written)
    if file.executed:
        notes.insert(0, f"{file.path} was executed, as --aisbench-trust-config allows")
    elif access.access_key or access.secret_access_key:
        notes.extend(exposure_warnings(file.path))
    return LegacySettings(options, access, tuple(notes))


def open_config(config: Path | None, package: Path | None, *, trusted: bool) -> Config:
    """The configuration that the user named, else the package's own."""
    return read(config or (package or Path()) / CONFIG, trusted=trusted)


def _options(package: Path) -> dict[str, tuple[str, str]]:
    if not (package / "code").is_dir():
        advice = "name the folder that holds ais-bench-stubs and code/"
        raise UsageFault(
            f"{package} is not an unpacked ais-bench package: there is no folder code in it", advice=advice
        )
    shell = shell_file.read(package / SHELL)
    version = shell.choice("MODELARTS_VERSION", "V1", "V2", default="V1")
    single_server = shell.choice("SINGLESERVER_MODE", "True", "False", default="False")
    return {
        "modelarts_version": (version, shell.location("MODELARTS_VERSION")),
        **({"single_server": ("true", shell.location("SINGLESERVER_MODE"))} if single_server == "True" else {}),
    }


@dataclass(frozen=True)
class Section:
    """One of the file's tables. Its errors name the line."""

    path: Path
    name: str
    table: Table

    def location(self, key: str = "") -> str:
        line = self.table.lines.get(key, 0)
        return f"{self.path}:{line}" if line else str(self.path)

    def fault(self, key: str, message: str, advice: str = "") -> UsageFault:
        return UsageFault(f"{self.location(key)}: {self.name}.{key} {message}", advice=advice)

    def value(self, key: str) -> Any:
        """None also for an empty text, as in ais-bench-stubs."""
        value = self.table.get(key)
        if isinstance(value, Unreadable):
            raise _unreadable(self.path, f"{self.name}.{key}", value)
        return None if value == "" else value

    def text(self, key: str) -> str:
        value = self.value(key)
        if value is not None and not isinstance(value, str):
            raise self.fault(key, "is not text", "put it in quotes")
        return value or ""

    def need(self, key: str) -> str:
        if not self.text(key):
            raise self.fault(key, "is missing")
        return self.text(key)

    def count(self, key: str, most: int) -> int:
        value = self.value(key)
        if isinstance(value, str) and value.isdecimal() and value.isascii():
            value = int(value[:9])
        if value is None:
            return 1
        if isinstance(value, bool) or not isinstance(value, int) or not 1 <= value <= most:
            raise self.fault(key, f"is not a whole number from 1 to {most}")
        return value

    def store_path(self, key: str) -> str:
        """`/bucket/folder/…`, also from other common forms; empty if it is not set."""
        text = self.text(key)
        for scheme in ("obs://", "s3://", "obs:/", "s3:/"):
            text = text.removeprefix(scheme)
        text = text.lstrip("/")
        if self.text(key) and not text.partition("/")[0]:
            raise self.fault(key, "is not a place in OBS", "write /bucket/folder/")
        return f"/{text}" if text else ""

    def parameters(self, version: str) -> dict[str, str]:
        key, word = _PARAMETERS[version]
        rows = self.value(key) or []
        parameters: dict[str, str] = {}
        for row in rows if isinstance(rows, list) else [rows]:
            if isinstance(row, Unreadable):
                raise _unreadable(self.path, f"{self.name}.{key}", row)
            if not isinstance(row, Table) or set(row) != {word, "value"}:
                raise self.fault(key, f"has a row that is not {{'{word}': …, 'value': …}}")
            line = Section(self.path, f"{self.name}.{key}", row)
            name, value = line.need(word), line.table["value"]
            if isinstance(value, Unreadable):
                raise _unreadable(self.path, f"{self.name}.{key} {name}", value)
            if not isinstance(value, (str, int, float)):
                raise line.fault("value", f"of {name} is neither text nor a number")
            if name in parameters:
                raise line.fault(word, f"{name} is there twice", "remove one of the two")
            parameters[name] = str(value)
        return parameters

    def unused_keys(self, used: frozenset[str]) -> list[str]:
        return [f"{self.location(key)}: {self.name}.{key} is not used" for key in self.table if key not in used]


@dataclass(frozen=True)
class Config:
    """The whole file `modelarts_config.py`."""

    path: Path
    names: Table
    executed: bool = False

    def section(self, name: str) -> Section:
        table = self.names.get(name)
        if isinstance(table, Unreadable):
            raise _unreadable(self.path, name, table)
        if not isinstance(table, Table):
            raise UsageFault(f"{self.path}: there is no {name}", advice=f"write {name} = {{…}}")
        return Section(self.path, name, table)

    def session(self, version: str) -> Section:
        return self.section(SESSIONS[version])

    def access(self, version: str, written: Collection[str] = ()) -> tuple[Access, list[str]]:
        """The access, and notes about keys that are not used. Keys that are `written` elsewhere need not be here, and
        need not be readable."""
        absent = bool(written) and ACCESS not in self.names
        whole = Section(self.path, ACCESS, Table()) if absent else self.section(ACCESS)
        notes = whole.unused_keys(_ACCESS_KEYS)
        section = Section(self.path, ACCESS, _without(whole.table, written))
        server, endpoint = _address(section, "server"), _address(section, "obs_endpoint")
        if server and endpoint and server != endpoint:
            notes.append(f"{section.location('server')}: server is not used, since obs_endpoint is another")
        bucket, _, folder = ("" if "bucket" in written else self._output(version)).lstrip("/").partition("/")
        access = Access(
            access_key=section.value("access_key") or NO_SECRET,
            secret_access_key=section.value("secret_access_key") or NO_SECRET,
            region_name=section.text("region_name"),
            project_id=section.text("project_id"),
            bucket=bucket,
            folder=folder,
            iam_endpoint=_address(section, "iam_endpoint"),
            obs_endpoint=endpoint or server,
            modelarts_endpoint=_address(section, "modelarts_endpoint"),
        )
        return access, notes

    def _output(self, version: str) -> str:
        """The path for outputs; the file may have a session of only one version."""
        for name in (SESSIONS[version], *SESSIONS.values()):
            if isinstance(self.names.get(name), Table) and (path := self.section(name).store_path("out_base_url")):
                return path
        return ""

    def unused_keys(self, version: str, options: Collection[str] = ()) -> list[str]:
        """`options` are the keys that the session shares with workload.toml."""
        key, _ = _PARAMETERS[version]
        return self.session(version).unused_keys(_SESSION_KEYS | {key, *options})


def read(path: Path, *, trusted: bool = False) -> Config:
    """Parse a file. Execute a `trusted` one that cannot be parsed; the result says whether that happened."""
    names = [ACCESS, *SESSIONS.values()]
    config = Config(path, _hide_keys(python_file.read(path)))
    wanted = [config.names.get(name) for name in names]
    if not trusted or not (_has_unreadable(wanted) or all(value is None for value in wanted)):
        return config
    return Config(path, _hide_keys(execute_file(path, names)), executed=True)


def _has_unreadable(value: Any) -> bool:
    if isinstance(value, Table):
        return any(_has_unreadable(item) for item in value.values())
    if isinstance(value, list):
        return any(_has_unreadable(item) for item in value)
    return isinstance(value, Unreadable)


def _hide_keys(names: Table) -> Table:
    """Replace keys by Secrets, before any other function sees the table."""
    access = names.get(ACCESS)
    if isinstance(access, Table):
        for key in _SECRETS:
            if isinstance(access.get(key), str):
                access[key] = Secret(access[key]) if access[key] else None
            elif not isinstance(access.get(key), (Unreadable, type(None))):
                access[key] = Unreadable(access.lines[key], "not text")
    return names


def _without(table: Table, keys: Collection[str]) -> Table:
    """The table without these keys; `server` is another name of `obs_endpoint`."""
    left = Table()
    for key, value in table.items():
        if ("obs_endpoint" if key == "server" else key) not in keys:
            left.put(key, value, table.lines.get(key, 0))
    return left


def _address(section: Section, key: str) -> str:
    text = section.text(key).rstrip("/")
    if text and "://" not in text:
        text = f"https://{text}"  # the vendor's old SDK takes names without a scheme
    if text and (fault := address_fault(text)):
        raise section.fault(key, *fault)
    return text


def _unreadable(path: Path, name: str, value: Unreadable) -> UsageFault:
    where = f"{path}:{value.line}" if value.line else str(path)
    return UsageFault(f"{where}: {name} cannot be read without executing the file: it is {value.what}", advice=_TRUST)


# Executing a file that cannot be parsed, in a child process

_PATIENCE_S = 60.0
# What the file prints goes to stderr, our answer to stdout. A dict with attributes will do without `easydict`.
_CHILD = """
import json, os, runpy, sys, types
answer = os.fdopen(os.dup(1), "w", encoding="utf-8")
os.dup2(2, 1)
try:
    import easydict
except ImportError:
    class EasyDict(dict):
        __getattr__ = dict.__getitem__
        __setattr__ = dict.__setitem__
    sys.modules["easydict"] = easydict = types.ModuleType("easydict")
    easydict.EasyDict = EasyDict
path, names = sys.argv[1], sys.argv[2:]
sys.path.insert(0, os.path.dirname(path))
names_bound = runpy.run_path(path)
def plain(value):
    if isinstance(value, type):
        return {key: item for key, item in vars(value).items() if not key.startswith("__")}
    raise TypeError(f"a {type(value).__name__} is no setting")
json.dump({name: names_bound[name] for name in names if name in names_bound}, answer, default=plain)
answer.close()
"""


def execute_file(path: Path, names: list[str]) -> Table:
    """Execute the file, and return the values of these names, without lines."""
    command = [sys.executable, "-c", _CHILD, str(path.resolve()), *names]
    try:
        done = subprocess.run(
            command,
            cwd=path.resolve().parent,
            capture_output=True,
            encoding="utf-8",
            errors="replace",
            timeout=_PATIENCE_S,
            check=False,
        )
    except subprocess.TimeoutExpired:
        raise UsageFault(f"{path}: executed, and did not end within {_PATIENCE_S:g} s") from None
    if done.returncode:
        # Only the class of the error: its text may quote a key.
        last = (done.stderr.strip().splitlines() or ["no word"])[-1].partition(":")[0]
        raise UsageFault(f"{path}: executed, and ended with exit code {done.returncode}: {last}")
    if not done.stdout:
        raise UsageFault(f"{path}: executed, and ended before its last line", advice="take sys.exit out of it")
    return _table(json.loads(done.stdout))


def _table(data: dict[str, Any]) -> Table:
    table = Table()
    for key, value in data.items():
        table.put(key, _plain(value), 0)
    return table


def _plain(value: Any) -> Any:
    if isinstance(value, dict):
        return _table(value)
    return [_plain(item) for item in value] if isinstance(value, list) else value
