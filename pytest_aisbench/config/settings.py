"""The frozen value that holds all settings, and what a platform brings before it is connected.

`options.py` has a row for each option, and `loading.py` reads them. Settings, suites and commands ask a
`PlatformKind` instead of comparing the platform's name; it is cheap to import, and `connect` imports the clients.
"""

from __future__ import annotations

import re
from collections.abc import Collection, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any, Protocol

from pytest_aisbench.config.access import Access, TesterAccess
from pytest_aisbench.config.options import LOCAL
from pytest_aisbench.i18n import SOURCE
from pytest_aisbench.secret import Secret

if TYPE_CHECKING:
    from pytest_aisbench.config.toml_document import Document

# Keys that platforms have in common whose nodes share a folder with this machine.
RESULTS = ("share", "obs")  # where trials are staged
WORKDIRS = ("local", "shared")  # where ranks run
NODE_PATH = re.compile(r"(/[A-Za-z0-9_.@+-]+)+/?")  # a path that no shell on a node can misread


@dataclass(frozen=True)
class Settings:
    """All settings of a run: one field for each option, and what the tables of the file have beside them.

    `sources` names where each value came from that is not a default.
    """

    nodes: tuple[int, ...] = ()
    platform: str = LOCAL
    cloud: Path | None = None
    frameworks: tuple[str, ...] = ()
    config: Path | None = None
    package: Path | None = None
    modelarts_version: str = "V2"
    modelarts_client: str = "sdk"
    modelarts_python: Path | None = None
    single_server: bool = False
    devices: int | None = None
    max_jobs: int | None = None
    max_trials: int = 3
    queue_timeout: float = 86400.0
    run_timeout: float = 86400.0
    stall: float = 900.0
    heartbeat: float = 60.0
    on_interrupt: str = "stop"
    fresh: bool = False
    budget: float | None = None
    dry_run: bool = False
    drift: str = "warn"
    power: Path | None = None
    require: Path | None = None
    lang: str = SOURCE
    tester: str | None = None
    tester_required: bool = False
    trust_config: bool = False
    reports: Path = Path("reports")
    ledger: Path | None = None

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

    def is_miniature(self, settings: Settings) -> bool:
        """True if a small machine without cards plays this platform: then `[local]` says what is trained and claimed,
        and the platform's own section how a job is made."""
        return settings.cloud is not None and not self.emulation

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
