"""Folders of this machine, put into a Store as a run puts them."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from pytest_aisbench.engine.staging import code_placement, read_tree, upload_tree
from pytest_aisbench.model.job import StoreUrl
from pytest_aisbench.model.ports import Store


def stage_code(store: Store, root: StoreUrl, folders: Sequence[Path], name: str) -> StoreUrl:
    return upload_tree(store, code_placement(root, read_tree(name, folders)))
