"""What the hooks offer: names of platforms, reporters and sources of power, and the classes behind them."""

from __future__ import annotations

import importlib
from collections.abc import Iterable, Mapping
from typing import TYPE_CHECKING, Any

import pytest

from pytest_aisbench.errors import UsageFault
from pytest_aisbench.stash import SETTINGS

if TYPE_CHECKING:
    from pytest_aisbench.domain.ports import Platform
    from pytest_aisbench.services.sampling import Meter
    from pytest_aisbench.settings import Settings

# Our own, which come by the same hook as everybody's.
PLATFORMS = {
    "local": "pytest_aisbench.adapters.local:Local",
    "modelarts": "pytest_aisbench.adapters.modelarts:ModelArts",
    "apulis": "pytest_aisbench.adapters.apulis:Apulis",
}
FILE_OF_POWER = "file"  # the source that `--aisbench-power` names


def platforms(config: pytest.Config) -> dict[str, str]:
    return _merged("platform", config.hook.pytest_aisbench_platforms())


def reporters(config: pytest.Config) -> dict[str, str]:
    return _merged("reporter", config.hook.pytest_aisbench_reporters())


def power_sources(config: pytest.Config) -> dict[str, str]:
    return _merged("power source", config.hook.pytest_aisbench_power_sources())


def _merged(kind: str, offers: Iterable[Mapping[str, str]]) -> dict[str, str]:
    merged: dict[str, str] = {}
    for offer in offers:
        for name, target in offer.items():
            if merged.setdefault(name, target) != target:
                raise UsageFault(f"two plugins offer the {kind} {name!r}: {merged[name]} and {target}")
    return merged


def connected(config: pytest.Config, settings: Settings | None = None) -> Platform:
    """The platform that the settings name, or those of the session."""
    settings = settings or config.stash[SETTINGS]
    platform: Platform = load("platform", settings.platform, platforms(config))(settings)
    return platform


def meter(config: pytest.Config) -> Meter:
    """All sources of power; that of a file only if there is one."""
    from pytest_aisbench.services.sampling import Meter

    found, settings = power_sources(config), config.stash[SETTINGS]
    asked = [name for name in found if name != FILE_OF_POWER or settings.power]
    return Meter({name: load("power source", name, found)(settings) for name in asked})


def load(kind: str, name: str, offers: Mapping[str, str]) -> Any:
    """The class of that name."""
    if name not in offers:
        raise UsageFault(f"unknown {kind} {name!r}", advice=f"known: {', '.join(sorted(offers))}")
    module, _, attribute = offers[name].partition(":")
    try:
        return getattr(importlib.import_module(module), attribute)
    except (ImportError, AttributeError) as error:
        raise UsageFault(f"{kind} {name!r} cannot be loaded from {offers[name]!r}: {error}") from error
