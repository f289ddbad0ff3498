"""What a platform brings before anything connects to it: its settings, its keys of workload.toml, its checks.

Settings, suites and commands ask a platform's kind instead of comparing the platform's name. A kind is cheap to import:
`connect` imports the platform's clients.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping
from typing import TYPE_CHECKING, Any, Protocol

from pytest_aisbench.secret import Secret

if TYPE_CHECKING:
    from pytest_aisbench.config.access import Access
    from pytest_aisbench.config.settings import Settings
    from pytest_aisbench.config.toml_document import Document


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
