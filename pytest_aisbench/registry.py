"""Platforms, reporters and power sources by name. pytest and the `aisbench` commands look them up here.

Each is named as `"module:Class"` by a hook (see `hookspecs`) and imported when it is asked for. The built-in ones come
by the same hooks: they are listed below, and the platforms in `config.options`, where the help names them.
"""

from __future__ import annotations

import importlib
import sys
from collections.abc import Callable, Collection, Iterable, Mapping
from types import MappingProxyType
from typing import TYPE_CHECKING, Any, NamedTuple, Protocol, runtime_checkable

from pytest_aisbench.config import options
from pytest_aisbench.config.settings import PlatformKind
from pytest_aisbench.errors import UsageFault, perhaps
from pytest_aisbench.logs import get_logger, log_ignored

if TYPE_CHECKING:
    import pytest

    from pytest_aisbench.config.settings import Settings
    from pytest_aisbench.engine.collect import PowerMeter
    from pytest_aisbench.model.ports import Platform

_LOG = get_logger("platform")

PLATFORMS = options.PLATFORMS
REPORTERS = {
    "html": "pytest_aisbench.report.page:Html",
    "junit": "pytest_aisbench.report.ci:Junit",
    "allure": "pytest_aisbench.report.allure:Allure",
    "ci": "pytest_aisbench.report.ci:Files",
    "github": "pytest_aisbench.report.ci:GitHub",
    "fields": "pytest_aisbench.report.results:Fields",
    "tester": "pytest_aisbench.session.reporters:Tester",
    "index": "pytest_aisbench.session.reporters:Index",
    "transcript": "pytest_aisbench.session.reporters:TestRecorder",
}
POWER_FILE = "file"  # the power source that `--aisbench-power` names
POWER_SOURCES = {POWER_FILE: "pytest_aisbench.platforms.power_file:PowerFile"}

_NONE: Mapping[str, str] = MappingProxyType({})


class ReporterKind(NamedTuple):
    """A reporter's class, and what the class says about its use; see `model.ports`."""

    name: str
    build: Callable[..., Any]
    order: int
    on_workers: bool
    once: bool


class _PlainKind(PlatformKind):
    """The kind of a platform whose hook names its class: the defaults, with the class's own `options`."""

    def __init__(self, name: str, platform: Any) -> None:
        self.name = name
        self._platform = platform
        self.options = platform.options if isinstance(platform, _HasOptions) else frozenset()

    def connect(self, settings: Settings) -> Any:
        platform = self._platform(settings)
        if isinstance(platform, _HasPlace) and not isinstance(platform, _HasPlatformId):
            platform.platform_id = platform.place  # type: ignore[attr-defined]  # its name before
        return platform


@runtime_checkable
class _HasOptions(Protocol):
    options: Collection[str]


@runtime_checkable
class _HasPlace(Protocol):
    place: str


@runtime_checkable
class _HasPlatformId(Protocol):
    platform_id: str


class Registry:
    """The names that hooks give, and the classes behind them.

    `more_platforms` is called at most once, when a platform is asked for that is not among `platforms`.
    """

    def __init__(
        self,
        platforms: Mapping[str, str],
        reporters: Mapping[str, str] = _NONE,
        power_sources: Mapping[str, str] = _NONE,
        more_platforms: Callable[[], Mapping[str, str]] | None = None,
    ) -> None:
        self._platforms = platforms
        self._reporters = reporters
        self._power_sources = power_sources
        self._more_platforms = more_platforms

    @property
    def platforms(self) -> Collection[str]:
        """The names of all platforms that are known so far."""
        return self._platforms.keys()

    def kind(self, name: str) -> PlatformKind:
        """What the platform says of itself before it is connected."""
        self.require_platform(name)
        target = _load("platform", name, self._platforms)
        if isinstance(target, type) and issubclass(target, PlatformKind):
            return target()
        return _PlainKind(name, target)

    def find_kind(self, name: str) -> PlatformKind | None:
        """None where no platform of this name is known, or where it cannot be imported."""
        try:
            return self.kind(name)
        except UsageFault as fault:
            log_ignored(_LOG, fault, "what platform %s brings for its settings", name)
            return None

    def require_platform(self, name: str) -> None:
        """Raise UsageFault unless the name is known. Nothing of the platform is imported."""
        if name not in self._platforms and self._more_platforms:
            self._platforms = {**self._more_platforms(), **self._platforms}
            self._more_platforms = None
        _target("platform", name, self._platforms)

    def connect(self, settings: Settings) -> Platform:
        """The platform that the settings name, connected."""
        platform: Platform = self.kind(settings.platform).connect(settings)
        return platform

    @property
    def reporters(self) -> Collection[str]:
        return self._reporters.keys()

    def reporter(self, name: str) -> ReporterKind:
        from pytest_aisbench.model.ports import ActsOnce, OnWorkers, Ordered

        reporter = _load("reporter", name, self._reporters)
        return ReporterKind(
            name,
            reporter,
            order=reporter.order if isinstance(reporter, Ordered) else 0,
            on_workers=isinstance(reporter, OnWorkers) and reporter.on_workers,
            once=isinstance(reporter, ActsOnce) and reporter.once,
        )

    def meter(self, settings: Settings) -> PowerMeter:
        """Every power source, built; the one that reads a file only where the settings name a file."""
        from pytest_aisbench.engine.collect import PowerMeter

        used = [name for name in self._power_sources if name != POWER_FILE or settings.power]
        return PowerMeter({name: _load("power source", name, self._power_sources)(settings) for name in used})


def of_session(config: pytest.Config) -> Registry:
    """What the plugins of this pytest session offer, conftest.py files among them."""
    hook = config.hook
    return Registry(
        _merged("platform", hook.pytest_aisbench_platforms()),
        _merged("reporter", hook.pytest_aisbench_reporters()),
        _merged("power source", hook.pytest_aisbench_power_sources()),
    )


def of_commands() -> Registry:
    """What is installed: the built-in platforms, and for any other name those of the installed pytest plugins."""
    return Registry(PLATFORMS, REPORTERS, POWER_SOURCES, more_platforms=_installed_platforms)


def _installed_platforms() -> Mapping[str, str]:
    from importlib.metadata import entry_points

    platforms: dict[str, str] = {}
    for entry in entry_points(group="pytest11"):
        try:
            plugin = entry.load()
        except Exception as error:  # noqa: BLE001 - any plugin of pytest's: most are no concern of ours
            sys.stderr.write(f"aisbench: the plugin {entry.name} cannot be imported: {error}\n")
            continue
        offer = getattr(plugin, "pytest_aisbench_platforms", None)
        platforms = {**(offer() if offer else {}), **platforms}
    return platforms


def _merged(kind: str, offers: Iterable[Mapping[str, str]]) -> dict[str, str]:
    merged: dict[str, str] = {}
    for offer in offers:
        for name, target in offer.items():
            if merged.setdefault(name, target) != target:
                raise UsageFault(f"two plugins offer the {kind} {name!r}: {merged[name]} and {target}")
    return merged


def _target(kind: str, name: str, targets: Mapping[str, str]) -> str:
    if name not in targets:
        raise UsageFault(f"unknown {kind} {name!r}", advice=perhaps(name, targets))
    return targets[name]


def _load(kind: str, name: str, targets: Mapping[str, str]) -> Any:
    target = _target(kind, name, targets)
    module, _, attribute = target.partition(":")
    try:
        return getattr(importlib.import_module(module), attribute)
    except Exception as error:
        raise UsageFault(f"{kind} {name!r} cannot be loaded from {target!r}: {error}") from error
