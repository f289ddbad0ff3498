"""What the local ModelArts offers, by the numbers of V1: they count through the catalog, from 1."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from pytest_aisbench.localcloud.catalog import ASCEND, POOL, POOL_FLAVOR

if TYPE_CHECKING:
    from pytest_aisbench.localcloud.catalog import Catalog, Engine, Flavor

_ASCEND_TYPE = 13  # the vendor's engine_type


class Numbers:
    def __init__(self, catalog: Catalog) -> None:
        self._flavors = catalog.flavors()
        self._engines = catalog.engines()
        self._pool_flavor = catalog.flavor(POOL_FLAVOR)  # V1 has no smaller ones there

    def flavor(self, spec_id: object) -> Flavor | None:
        return _numbered(self._flavors, spec_id)

    def pool_flavor(self, pool_id: str) -> Flavor | None:
        return self._pool_flavor if pool_id == POOL else None

    def engine(self, engine_id: object) -> Engine | None:
        return _numbered(self._engines, engine_id)

    def specs(self) -> list[dict[str, Any]]:
        return [{"spec_id": number} | spec(flavor) for number, flavor in enumerate(self._flavors, 1)]

    def engines(self) -> list[dict[str, Any]]:
        return [{"engine_id": number} | engine(found) for number, found in enumerate(self._engines, 1)]


def spec(flavor: Flavor) -> dict[str, Any]:
    return {
        "spec_code": flavor.id,
        "core": str(24 * flavor.cards),
        "cpu": str(96 * flavor.cards),
        "gpu_num": 0,
        "gpu_type": "",
        "npu_info": {"npu": str(flavor.cards), "type": "ascend-snt9"},
        "max_num": flavor.max_nodes,
        "unit_num": 1,
        "storage": "",
        "interface_type": 1,
        "no_resource": False,
    }


def engine(found: Engine) -> dict[str, Any]:
    return {"engine_type": _ASCEND_TYPE, "engine_name": ASCEND, "engine_version": found.version}


def _numbered(entries: list[Any], number: object) -> Any | None:
    """Numbers may come as texts."""
    text = str(number)
    return entries[int(text) - 1] if text.isdigit() and 0 < int(text) <= len(entries) else None
