"""Folders of this machine, put into a Store as a run puts them."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from pytest_aisbench.domain.ports import Store
from pytest_aisbench.domain.stage import StoreUrl
from pytest_aisbench.services.staging import of_code, put
from pytest_aisbench.services.tree import plant


def stage_code(store: Store, root: StoreUrl, folders: Sequence[Path], name: str) -> StoreUrl:
    return put(store, of_code(root, plant(name, folders)))
