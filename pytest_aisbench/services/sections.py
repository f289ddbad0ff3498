"""Which sections of workload.toml count for a run beside its top."""

from __future__ import annotations

from collections.abc import Callable, Collection
from dataclasses import dataclass
from typing import Any

from pytest_aisbench.settings import LOCAL, Settings, option_types, places
from pytest_aisbench.settings.platform_kind import PlatformKind

_DEVICES = "devices"
KEYS = frozenset({
    *("name", "code", "entry"),
    *("framework", _DEVICES, "parameters", "environment", "data", "data_contains", "expected", "metrics", "update"),
})  # fmt: skip


@dataclass(frozen=True)
class StandIn:
    """The platform that plays the chosen one, such as the local cloud for Apulis.

    The chosen one's section still says how a job is made; what is trained, and what is claimed, is the stand-in's.
    """

    name: str
    replaces: Collection[str]  # options of the chosen one that say what is trained

    def leaves(self, key: str) -> bool:
        """To the section of the chosen one."""
        return key == _DEVICES or key not in {*KEYS, *self.replaces}


def stand_in(settings: Settings, kind: PlatformKind) -> StandIn | None:
    """None unless `--aisbench-cloud` names a local cloud that plays the chosen platform, whose `kind` is given."""
    if settings.cloud is None or kind.emulation:
        return None
    return StandIn(LOCAL, kind.training_options)


@dataclass(frozen=True)
class Sections:
    """Which sections of a workload count beside its top."""

    frameworks: Collection[str]
    stand_in: StandIn | None

    def of(self, document: places.Document, platform: str) -> tuple[Callable[[str], tuple[str, ...]], dict[str, Any]]:
        """Their keys, the later replacing the earlier; and where each of them stands."""
        found = self._keys(document, platform)
        if self.stand_in and self.stand_in.name in document.data:
            pods = {key: row for key, row in found.items() if self.stand_in.leaves(key)}
            trained = self._keys(document, self.stand_in.name)
            found = pods | {key: row for key, row in trained.items() if key in KEYS - {_DEVICES}}
        return lambda key: found[key][0] if key in found else (), {key: value for key, (_, value) in found.items()}

    def _keys(self, document: places.Document, platform: str) -> dict[str, tuple[tuple[str, ...], Any]]:
        """Those of the platform, replaced by those of the framework to train with."""
        common: dict[str, tuple[tuple[str, ...], Any]] = {}
        chosen: dict[str, tuple[tuple[str, ...], Any]] = {}
        for key, value in document.data.get(platform, {}).items():
            if key not in option_types.FRAMEWORKS:
                common[key] = (platform,), value
            elif not isinstance(value, dict):
                raise document.fault(f"{platform}.{key} is a section", platform, key)
            elif key in self.frameworks and not chosen:
                chosen = {name: ((platform, key), told) for name, told in {"framework": key, **value}.items()}
        return common | chosen
