"""All that a run can be told, frozen into one value.

The fields of `Settings` are the option table: each drives `--help`, an ini name, an environment variable and a key
of `aisbench.toml`. Precedence: command line > environment > ini > file > default.
"""

from __future__ import annotations

import dataclasses
import os
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

from pytest_aisbench.access import Access, perhaps, read_access, spells_secrets
from pytest_aisbench.apulis_access import ApulisAccess, read_apulis, require_apulis
from pytest_aisbench.credentials import WAYS, complete, exposed
from pytest_aisbench.errors import UsageFault
from pytest_aisbench.hosts import read_hosts
from pytest_aisbench.option_types import (
    card_hours,
    cards,
    duration,
    frameworks,
    name,
    node_counts,
    one_of,
    path,
    positive,
    switch,
)
from pytest_aisbench.tester_access import TesterAccess, expanded, read_tester, tester_address

if TYPE_CHECKING:
    from pytest_aisbench import places
    from pytest_aisbench.legacy.take import Taken

CONFIG_FILE = "aisbench.toml"
LEGACY_FILE = ".py"  # how the name of a modelarts_config.py ends


def option(parse: Callable[[str], Any], metavar: str, text: str, *, default: Any = None, flag: str = "") -> Any:
    return field(default=default, metadata={"parse": parse, "metavar": metavar, "help": text, "flag": flag})


@dataclass(frozen=True)
class Settings:
    """`sources` names where each value that is not a default came from."""

    nodes: tuple[int, ...] = option(
        node_counts, "N,N", "Select these node counts; other shapes are deselected", default=(), flag="--nodes"
    )
    platform: str = option(
        name, "NAME", "Where jobs run: local, modelarts, apulis, or one of a plugin's", default="local"
    )
    cloud: Path | None = option(path, "FILE", "A local cloud that already runs: what `aisbench cloud --json` printed")
    frameworks: tuple[str, ...] = option(
        frameworks, "NAME=PYTHON", "Train with these on the local cloud, not in miniature", default=()
    )
    config: Path | None = option(
        path, "FILE", f"Settings in TOML, or a modelarts_config.py (default: {CONFIG_FILE} where pytest's root is)"
    )
    package: Path | None = option(path, "DIR", "An unpacked ais-bench package, read as it is")
    modelarts_version: str = option(one_of("V1", "V2"), "V1|V2", "Which training-job API", default="V2")
    modelarts_client: str = option(
        one_of("sdk", "wheel"), "sdk|wheel", "The SDK from PyPI, or the vendor's modelarts wheel", default="sdk"
    )
    modelarts_python: Path | None = option(
        path, "FILE", "The Python in which the modelarts wheel is installed (default: this one)"
    )
    single_server: bool = option(switch, "", "Every node trains alone with its own cards", default=False)
    devices: int | None = option(cards, "N", "Cards per node (default: the workload's own number)")
    max_jobs: int | None = option(positive, "K", "Jobs in flight at once (default: local: cores; elsewhere 8)")
    max_trials: int = option(positive, "K", "Trials that may decide one case, lost jobs included", default=3)
    queue_timeout: float = option(duration, "TIME", "How long a job may wait, such as 30m or 3h", default=86400.0)
    run_timeout: float = option(duration, "TIME", "How long a job may run, such as 30m or 3h", default=86400.0)
    stall: float = option(
        duration, "TIME", "Report a running job that shows no sign of life for so long", default=900.0
    )
    heartbeat: float = option(duration, "TIME", "Where there is no terminal, say how it goes so often", default=60.0)
    on_interrupt: str = option(
        one_of("stop", "leave"), "stop|leave", "What becomes of running jobs at Ctrl-C or SIGTERM", default="stop"
    )
    fresh: bool = option(switch, "", "Do not take over jobs that an earlier, killed run left behind", default=False)
    budget: float | None = option(card_hours, "CARD_HOURS", "Refuse to start, or stop, past this cost")
    dry_run: bool = option(switch, "", "Show the plan, its requests and its cost; submit nothing", default=False)
    drift: str = option(
        one_of("warn", "fail"), "warn|fail", "What a slow decline through the history of a case does", default="warn"
    )
    power: Path | None = option(path, "FILE", "Samples of power (time, node, watts) to reckon energy from")
    require: Path | None = option(path, "FILE", "The manifest of cases that must have run; one missing is exit 11")
    lang: str = option(one_of("en", "zh"), "en|zh", "The language of reports and summary", default="en")
    tester: str | None = option(tester_address, "URL", "Upload the results to this Tester, or none")
    tester_required: bool = option(
        switch, "", "A result that the Tester has not got by the end of the run is exit 12", default=False
    )
    trust_config: bool = option(switch, "", "Execute a legacy configuration that cannot be parsed", default=False)
    reports: Path = option(path, "DIR", "Where each run gets a folder of its own", default=Path("reports"))
    ledger: Path | None = option(path, "FILE", "The record of all runs (default: ledger.db among the reports)")
    access: Access = Access()
    tester_access: TesterAccess = TesterAccess()
    apulis: ApulisAccess = ApulisAccess()
    sources: Mapping[str, str] = field(default_factory=dict)
    notes: tuple[str, ...] = ()  # worth a line before the run
    required: tuple[str, ...] = ()  # the cases of the manifest that `require` names

    def public(self) -> dict[str, Any]:
        """What a report may show: no secret, no account, no path of this machine."""
        return {
            "platform": self.platform,
            "nodes": list(self.nodes),
            "devices": self.devices,
            "max_jobs": self.max_jobs,
            "max_trials": self.max_trials,
            "budget_card_hours": self.budget,
            "queue_timeout_s": self.queue_timeout,
            "run_timeout_s": self.run_timeout,
            "region": self.access.region_name,
            **({"required": list(self.required)} if self.required else {}),
        }


class Option(NamedTuple):
    """One row of the table."""

    name: str
    parse: Callable[[str], Any]
    metavar: str
    help: str
    flag: str

    @property
    def ini(self) -> str:
        return f"aisbench_{self.name}"

    @property
    def environment(self) -> str:
        return f"AISBENCH_{self.name.upper()}"


class Given(NamedTuple):
    """A value as it was written, by whom, and the folder in which its relative paths begin."""

    text: str
    source: str
    folder: Path


def table() -> Iterator[Option]:
    for row in dataclasses.fields(Settings):
        if row.metadata:
            flag = row.metadata["flag"] or f"--aisbench-{row.name.replace('_', '-')}"
            yield Option(row.name, row.metadata["parse"], row.metadata["metavar"], row.metadata["help"], flag)


def freeze(
    command_line: Mapping[str, str | None],
    ini: Mapping[str, str],
    environment: Mapping[str, str],
    root: Path,
) -> Settings:
    """One value out of four sources. `root` is where the configuration file and the reports are by default.

    A relative path is read as whoever wrote it sees it: from the shell's folder, or from the file's.
    """
    options = {row.name: row for row in table()}
    given: dict[str, Given] = {}
    for row in options.values():
        if command_line.get(row.name) is not None:
            given[row.name] = Given(str(command_line[row.name]), row.flag, Path.cwd())
        elif environment.get(row.environment):
            given[row.name] = Given(environment[row.environment], row.environment, Path.cwd())
        elif ini.get(row.name):
            given[row.name] = Given(ini[row.name], f"ini {row.ini}", root)
    document = _document(given, root)
    access, used = Access(), frozenset[str]()
    data = document.data if document else {}
    platform = given["platform"].text if "platform" in given else data.get("platform", "local")
    on_apulis = platform == "apulis" and "cloud" not in given and "cloud" not in data
    apulis, for_apulis = read_apulis(document, environment, used=on_apulis)
    if document:
        elsewhere = platform not in {"local", "apulis"} or (on_apulis and apulis.by_obs)
        access, used = read_access(document, environment, used=elsewhere)
        for key, value in _flat(document, environment).items():
            if key in options and key not in given:
                place = f"{document.place(key)}: {key}"
                given[key] = Given(_text(document, key, value), place, document.path.parent)
    notes: tuple[str, ...] = ()
    if taken := _taken(options, given, keyless=not document or "access" not in document.data):
        for key, (text, source) in taken.options.items():
            given.setdefault(key, Given(text, source, root))
        access, notes = taken.access or access, taken.notes
    if document and spells_secrets(document):
        notes += exposed(document.path)
    if "platform" in given and given["platform"].text == "modelarts":
        access, about_keys = complete(access, environment)
        notes += about_keys
    hosts = read_hosts(document)
    access, apulis = dataclasses.replace(access, hosts=hosts), dataclasses.replace(apulis, hosts=hosts)
    values = {key: _parsed(options[key], told) for key, told in given.items()}
    tester, for_tester = read_tester(document, environment, values.get("package"), used=bool(values.get("tester")))
    tester = dataclasses.replace(tester, hosts=hosts)
    _no_strangers(environment, options, used | for_tester | for_apulis)
    values.setdefault("reports", root / "reports")
    sources = {key: told.source for key, told in given.items()}
    values["required"] = _required(values.get("require"), sources)
    settings = Settings(**values, access=access, tester_access=tester, apulis=apulis, sources=sources, notes=notes)
    _no_contradictions(settings)
    return settings


def _required(manifest: Path | None, sources: Mapping[str, str]) -> tuple[str, ...]:
    if manifest is None:
        return ()
    from pytest_aisbench.manifest import read

    try:
        return read(manifest)
    except UsageFault as fault:
        raise UsageFault(f"{sources['require']}: {fault}") from None


def _taken(options: Mapping[str, Option], given: Mapping[str, Given], *, keyless: bool) -> Taken | None:
    """What the predecessor's own files say, where the run was pointed at them; keys if there are no others."""
    named = given.get("config")
    config = _parsed(options["config"], named) if named and named.text.endswith(LEGACY_FILE) else None
    package = _parsed(options["package"], given["package"]) if "package" in given else None
    if config is None and package is None:
        return None
    from pytest_aisbench.legacy.take import take

    version = given["modelarts_version"].text if "modelarts_version" in given else ""
    trusted = _parsed(options["trust_config"], given["trust_config"]) if "trust_config" in given else False
    elsewhere = "platform" in given and given["platform"].text != "local"
    return take(config, package, version, trusted=trusted, connects=keyless and elsewhere)


def _document(given: Mapping[str, Given], root: Path) -> places.Document | None:
    told, found = given.get("config"), root / CONFIG_FILE
    if told.text.endswith(LEGACY_FILE) if told else not found.is_file():
        return None
    from pytest_aisbench import places

    if told:
        try:
            return _checked(places.read(told.folder / path(told.text)))
        except (UsageFault, ValueError) as fault:
            raise UsageFault(f"{told.source}: {fault}") from None
    return _checked(places.read(found))


def _checked(document: places.Document) -> places.Document:
    known = [*(row.name for row in table() if row.name != "config"), "access", "hosts", "apulis"]
    for key in document.data:
        if key not in known:
            raise document.fault(f"unknown key {key!r}", key, advice=perhaps(key, known))
    return document


def _flat(document: places.Document, environment: Mapping[str, str]) -> dict[str, Any]:
    """With `tester` as it is on the command line, where the file has a table of that name."""
    told = document.data.get("tester")
    if not isinstance(told, dict):
        return document.data
    rest = {key: value for key, value in document.data.items() if key != "tester"}
    return {**rest, "tester": expanded(str(told["url"]), environment)} if "url" in told else rest


def _text(document: places.Document, key: str, value: Any) -> str:
    if isinstance(value, list):
        return ",".join(_text(document, key, item) for item in value)
    if isinstance(value, bool) and any(row.parse is switch for row in table() if row.name == key):
        return str(value)
    if isinstance(value, bool) or not isinstance(value, (str, int, float)):
        raise document.fault(f"{key} cannot be a {type(value).__name__}", key)
    return str(value)


def _parsed(row: Option, told: Given) -> Any:
    try:
        value = row.parse(told.text)
    except ValueError as error:
        raise UsageFault(f"{told.source}: {error}", advice=f"{row.flag} {row.metavar}: {row.help}") from None
    return told.folder / value if isinstance(value, Path) else value


def _no_strangers(environment: Mapping[str, str], options: Mapping[str, Option], used: frozenset[str]) -> None:
    known = [row.environment for row in options.values()]
    for key in environment:
        if key.startswith("AISBENCH_") and key not in known and key not in used:
            raise UsageFault(f"{key}: unknown environment variable", advice=perhaps(key, known))


def _no_contradictions(settings: Settings) -> None:
    if settings.cloud is not None and settings.platform == "modelarts":
        sources = f"{settings.sources['cloud']} and {settings.sources['platform']}"
        raise UsageFault(f"{sources} contradict each other", advice="a running local cloud is platform local")
    if settings.platform == "apulis" and settings.cloud is None:
        require_apulis(settings)
    if settings.platform == "modelarts":
        access = settings.access
        needed = ("bucket",) if settings.modelarts_client == "wheel" else ("access_key", "secret_access_key", "bucket")
        missing = [key for key in needed if not getattr(access, key)]  # a notebook's wheel has keys of its own
        if not (access.modelarts_endpoint or access.region_name):
            missing.append("region_name (or the endpoints of a computing centre)")
        if missing:
            keyless = "access_key" in missing and "secret_access_key" in missing
            rest = "; the rest belongs to [access]" if len(missing) > 2 else ""
            advice = WAYS.format(config=CONFIG_FILE) + rest if keyless else f"write them to [access] in {CONFIG_FILE}"
            raise UsageFault(
                f"{settings.sources['platform']}: platform modelarts needs {', '.join(missing)}", advice=advice
            )


def machine_cores() -> int:
    """Cores this process may use, which in a container is fewer than the machine has."""
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1
