"""The table of all options, the frozen value that holds them, and what a platform brings before it is connected.

Each field of `Settings` with `option(…)` is an option of the command line, an ini name, an environment variable and a
key of aisbench.toml. To add an option, add a field. `loading.py` reads them. Settings, suites and commands ask a
`PlatformKind` instead of comparing the platform's name; it is cheap to import, and `connect` imports the clients.
"""

from __future__ import annotations

import dataclasses
import os
import re
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple, Protocol

from pytest_aisbench.config.access import Access, TesterAccess, parse_tester_address
from pytest_aisbench.i18n import SOURCE, languages
from pytest_aisbench.secret import Secret

if TYPE_CHECKING:
    from pytest_aisbench.config.toml_document import Document
CONFIG_FILE = "aisbench.toml"
LEGACY_FILE = ".py"  # the suffix of a modelarts_config.py
# The default platform, which needs no keys. A local cloud that stands in for another platform uses its sections too.
LOCAL = "local"
PLATFORMS = {  # the built-in ones by name: module and class of their PlatformKind
    LOCAL: "pytest_aisbench.platforms.local_kind:LocalKind",
    "modelarts": "pytest_aisbench.platforms.modelarts.kind:ModelArtsKind",
    "apulis": "pytest_aisbench.platforms.apulis.settings:ApulisKind",
}
MOST_CARDS = 128  # of one node: no machine has more, and a typing error should not ask for a million ranks
FRAMEWORKS = ("mindspore", "paddle", "torch", "horovod", "tensorflow")  # as an import names them
_DECIMAL = r"[0-9]{1,9}(?:\.[0-9]+)?"  # enough digits for any time or budget, and not for infinity
_UNITS = {"s": 1, "m": 60, "h": 3600, "d": 86400}


# The value of one option: each function reads a text, or says in a ValueError what is wrong with it.


def parse_node_counts(text: str) -> tuple[int, ...]:
    return tuple(sorted({parse_positive(part.strip()) for part in text.split(",")}))


def parse_positive(text: str) -> int:
    if not re.fullmatch(r"[0-9]{1,6}", text) or int(text) < 1:
        raise ValueError(f"{text!r} is not a whole number of 1 or more")
    return int(text)


def parse_cards(text: str) -> int:
    if parse_positive(text) > MOST_CARDS:
        raise ValueError(f"{text} is more cards than the {MOST_CARDS} that a node may have")
    return parse_positive(text)


def parse_duration(text: str) -> float:
    """Seconds of `90`, `45s`, `30m`, `3h` or `2d`."""
    match = re.fullmatch(rf"({_DECIMAL})([smhd]?)", text)
    if not match or float(match[1]) == 0:
        raise ValueError(f"{text!r} is not a length of time such as 45s, 30m, 3h or 2d")
    return float(match[1]) * _UNITS[match[2] or "s"]


def parse_card_hours(text: str) -> float:
    if not re.fullmatch(_DECIMAL, text) or float(text) == 0:
        raise ValueError(f"{text!r} is not a number of card-hours above 0")
    return float(text)


def parse_switch(text: str) -> bool:
    words = {"1": True, "true": True, "yes": True, "0": False, "false": False, "no": False}
    if text.lower() not in words:
        raise ValueError(f"{text!r} is neither true nor false")
    return words[text.lower()]


def one_of(*words: str) -> Callable[[str], str]:
    def parse(text: str) -> str:
        if text not in words:
            raise ValueError(f"{text!r} is neither {' nor '.join(words)}")
        return text

    return parse


def parse_path(text: str) -> Path:
    if not text:
        raise ValueError("a path is needed")
    return Path(text).expanduser()


def parse_frameworks(text: str) -> tuple[str, ...]:
    """Such as `mindspore=/venv/bin/python,paddle`."""
    parts = tuple(part.strip() for part in text.split(","))
    for part in parts:
        framework, equals, python = part.partition("=")
        if framework not in FRAMEWORKS or (equals and not Path(python).is_absolute()):
            names = ", ".join(FRAMEWORKS)
            raise ValueError(f"{part!r} is not a framework ({names}) with the absolute path of its Python")
    return parts


def python_by_framework(frameworks: Iterable[str]) -> dict[str, str]:
    """The Python of each framework; empty for the Python that runs pytest."""
    return {framework: python for framework, _, python in (part.partition("=") for part in frameworks)}


def parse_name(text: str) -> str:
    if not re.fullmatch(r"[A-Za-z0-9_.-]+", text):
        raise ValueError(f"{text!r} is not a name")
    return text


def machine_cores() -> int:
    """The cores that this process may use: in a container, fewer than the machine has."""
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1


# The table


def option(parse: Callable[[str], Any], metavar: str, text: str, *, default: Any = None, flag: str = "") -> Any:
    return field(default=default, metadata={"parse": parse, "metavar": metavar, "help": text, "flag": flag})


@dataclass(frozen=True)
class Settings:
    """All settings of a run. `sources` names where each value came from that is not a default."""

    nodes: tuple[int, ...] = option(
        parse_node_counts, "N,N", "Select these node counts; other shapes are deselected", default=(), flag="--nodes"
    )
    platform: str = option(
        parse_name, "NAME", f"Where jobs run: {', '.join(PLATFORMS)}, or one of a plugin's", default=LOCAL
    )
    cloud: Path | None = option(
        parse_path, "FILE", "A local cloud that already runs: what `aisbench cloud --json` printed"
    )
    frameworks: tuple[str, ...] = option(
        parse_frameworks, "NAME=PYTHON", "Train with these on the local cloud, not in miniature", default=()
    )
    config: Path | None = option(
        parse_path,
        "FILE",
        f"Settings in TOML, or a modelarts_config.py (default: {CONFIG_FILE} where pytest's root is)",
    )
    package: Path | None = option(parse_path, "DIR", "An unpacked ais-bench package, read as it is")
    modelarts_version: str = option(one_of("V1", "V2"), "V1|V2", "Which training-job API", default="V2")
    modelarts_client: str = option(
        one_of("sdk", "wheel"), "sdk|wheel", "The SDK from PyPI, or the vendor's modelarts wheel", default="sdk"
    )
    modelarts_python: Path | None = option(
        parse_path, "FILE", "The Python in which the modelarts wheel is installed (default: this one)"
    )
    single_server: bool = option(parse_switch, "", "Every node trains alone with its own cards", default=False)
    devices: int | None = option(parse_cards, "N", "Cards per node (default: the workload's own number)")
    max_jobs: int | None = option(parse_positive, "K", "Jobs in flight at once (default: local: cores; elsewhere 8)")
    max_trials: int = option(parse_positive, "K", "Trials that may decide one case, lost jobs included", default=3)
    queue_timeout: float = option(parse_duration, "TIME", "How long a job may wait, such as 30m or 3h", default=86400.0)
    run_timeout: float = option(parse_duration, "TIME", "How long a job may run, such as 30m or 3h", default=86400.0)
    stall: float = option(
        parse_duration, "TIME", "Report a running job that shows no sign of life for so long", default=900.0
    )
    heartbeat: float = option(
        parse_duration, "TIME", "Where there is no terminal, say how it goes so often", default=60.0
    )
    on_interrupt: str = option(
        one_of("stop", "leave"), "stop|leave", "What becomes of running jobs at Ctrl-C or SIGTERM", default="stop"
    )
    fresh: bool = option(
        parse_switch, "", "Do not take over jobs that an earlier, killed run left behind", default=False
    )
    budget: float | None = option(parse_card_hours, "CARD_HOURS", "Refuse to start, or stop, past this cost")
    dry_run: bool = option(parse_switch, "", "Show the plan, its requests and its cost; submit nothing", default=False)
    drift: str = option(
        one_of("warn", "fail"), "warn|fail", "What a slow decline through the history of a case does", default="warn"
    )
    power: Path | None = option(parse_path, "FILE", "Samples of power (time, node, watts) to reckon energy from")
    require: Path | None = option(
        parse_path, "FILE", "The manifest of cases that must have run; one missing is exit 11"
    )
    lang: str = option(
        one_of(*languages()), "|".join(languages()), "The language of reports and summary", default=SOURCE
    )
    tester: str | None = option(parse_tester_address, "URL", "Upload the results to this Tester, or none")
    tester_required: bool = option(
        parse_switch, "", "A result that the Tester has not got by the end of the run is exit 12", default=False
    )
    trust_config: bool = option(parse_switch, "", "Execute a legacy configuration that cannot be parsed", default=False)
    reports: Path = option(parse_path, "DIR", "Where each run gets a folder of its own", default=Path("reports"))
    ledger: Path | None = option(parse_path, "FILE", "The record of all runs (default: ledger.db among the reports)")
    access: Access = Access()
    tester_access: TesterAccess = TesterAccess()
    tables: Mapping[str, Any] = field(default_factory=dict)  # by the name of the platform; see PlatformKind.read_table
    sources: Mapping[str, str] = field(default_factory=dict)
    notes: tuple[str, ...] = ()  # shown before the run
    required: tuple[str, ...] = ()  # the cases of the manifest that `require` names

    @property
    def ledger_file(self) -> Path:
        return self.ledger or self.reports / "ledger.db"

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
    """One row of the option table."""

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


def option_table() -> Iterator[Option]:
    for row in dataclasses.fields(Settings):
        if row.metadata:
            flag = row.metadata["flag"] or f"--aisbench-{row.name.replace('_', '-')}"
            yield Option(row.name, row.metadata["parse"], row.metadata["metavar"], row.metadata["help"], flag)


# What a platform brings before anything connects to it


class PlatformKind:
    """The defaults. A platform with settings of its own derives a class from this one, which its hook names.

    A hook may also name the platform's class itself: then these defaults apply, with the class's own `options`.
    """

    name: str
    options: Collection[str] = frozenset()  # its own keys, in its section of workload.toml
    training_options: Collection[str] = frozenset()  # those of them that say what is trained; see `engine.suites`
    table_keys: Collection[str] = ()  # of the table `[name]` in aisbench.toml; without keys there is no such table
    table_secrets: Collection[str] = ()  # those of them that are secrets
    emulation = False  # jobs run on this machine: no keys, no data from the real platform, nothing to publish

    def connect(self, settings: Settings) -> Any:
        """The Platform, see `model.ports`."""
        raise NotImplementedError(f"the platform {self.name!r} has no connect()")

    # Reading settings, in this order.

    def read_table(
        self, document: Document, environment: Mapping[str, str], *, used: bool
    ) -> tuple[Any, frozenset[str]]:
        """The value for `settings.tables[name]`, and the names that were taken from the environment.

        `used` is false where another platform was chosen: then values may be missing, but not misspelt.
        """
        texts, taken = document.texts(self.name, self.table_keys, environment, used=used)
        return {key: Secret(text) if key in self.table_secrets else text for key, text in texts.items()}, taken

    def uses_access(self, table: Any, *, on_local_cloud: bool) -> bool:
        """True if `[access]` must be complete. `table` is the result of `read_table`, or None."""
        return True

    def complete_access(self, access: Access, environment: Mapping[str, str]) -> tuple[Access, tuple[str, ...]]:
        """The access with keys from the places where the vendor's tools look, and notes for the user."""
        return access, ()

    def check(self, settings: Settings) -> None:
        """Raise UsageFault for settings that contradict each other, or lack what the platform needs."""

    # What a suite or a command asks.

    def missing_framework(self, framework: str, settings: Settings) -> str:
        """Why jobs cannot train with this framework, in one line, so that its cases are skipped; empty if they can."""
        return ""

    def require_lasting_jobs(self, settings: Settings) -> None:
        """Raise UsageFault if no job outlives its run, so that a command would find none."""


class PlatformKinds(Protocol):
    """Looks up kinds by name; the registry is one."""

    @property
    def platforms(self) -> Collection[str]:
        """The names of all platforms."""

    def find_kind(self, name: str) -> PlatformKind | None:
        """None if there is no platform of this name, or if it cannot be imported."""
