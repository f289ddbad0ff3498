"""Putting code and data where the nodes reach them: once per content, committed last.

A tree lies at `<root>code/<tree-id>/<name>/`, and `<root>code/<tree-id>.ok` says that it is whole. A tree that is
there already costs one question; one that was interrupted is completed.
"""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from pytest_aisbench.domain.ports import Store, Upload
from pytest_aisbench.domain.stage import StoreUrl
from pytest_aisbench.services.tree import Tree, plant

_ID_DIGITS = 32


def stage_code(store: Store, root: StoreUrl, folders: Sequence[Path], name: str) -> StoreUrl:
    """Where `folders`, laid over one another, are in the Store; ModelArts names the folder on its nodes `name`."""
    return _stage(store, root / "code/", plant(name, folders))


def stage_data(store: Store, root: StoreUrl, folder: Path) -> StoreUrl:
    return _stage(store, root / "data/", plant(folder.resolve().name or "data", [folder]))


def _stage(store: Store, root: StoreUrl, tree: Tree) -> StoreUrl:
    identity = tree.digest[:_ID_DIGITS]
    place, marker = root / f"{identity}/{tree.name}/", root / f"{identity}.ok"
    head = store.head(marker)
    if head is None or (head.metadata or {}).get("manifest") != tree.digest:
        store.upload(_missing(store, place, tree))
        for leaf in tree.leaves:
            leaf.check_unchanged()
        store.write(marker, tree.manifest, {"manifest": tree.digest})
    return place


def _missing(store: Store, place: StoreUrl, tree: Tree) -> list[Upload]:
    """What an interrupted staging of the same tree has not left there; usually everything."""
    there = {head.url: (head.size, head.md5) for head in store.objects(place)}
    uploads = [Upload(leaf.source, place / leaf.path, leaf.size, leaf.md5) for leaf in tree.leaves]
    return [each for each in uploads if there.get(each.url) != (each.size, each.md5)]
