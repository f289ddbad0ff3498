"""Putting code and data where the nodes reach them: once per content, committed last.

A tree lies at `<root>code/<tree-id>/<name>/`, and `<root>code/<tree-id>/.ok` says that it is whole: beside the tree,
so that whoever deletes the folder deletes the marker too. A tree that is there already costs one question; one that was
interrupted is completed.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

from pytest_aisbench.domain.case import Workload
from pytest_aisbench.domain.ports import AddsFiles, Store, Upload
from pytest_aisbench.domain.stage import StoreUrl
from pytest_aisbench.logs import get_logger
from pytest_aisbench.services.tree import Tree, plant

_LOG = get_logger("store")
_ID_DIGITS = 32


@dataclass(frozen=True)
class Placement:
    """A tree, and the folder of the Store that it goes to by its content: known before anything is uploaded."""

    tree: Tree
    root: StoreUrl

    @property
    def place(self) -> StoreUrl:
        return self.root / f"{self._identity}/{self.tree.name}/"

    @property
    def marker(self) -> StoreUrl:
        return self.root / f"{self._identity}/.ok"

    @property
    def _identity(self) -> str:
        return self.tree.digest[:_ID_DIGITS]


def code_tree(workload: Workload, platform: object, variables: Mapping[str, str] | None = None) -> Tree:
    """A workload's code as its nodes get it: its folders, and what the platform adds to them.

    `variables` are those that the platform's requests cannot carry.
    """
    added = platform.additions(workload, variables or {}) if isinstance(platform, AddsFiles) else {}
    more = {path: Path(content) if isinstance(content, str) else content for path, content in added.items()}
    return plant(workload.code_name, [Path(workload.folder) / part for part in workload.code], more)


def of_code(root: StoreUrl, tree: Tree) -> Placement:
    """ModelArts names the folder on its nodes as the tree is called."""
    return Placement(tree, root / "code/")


def of_data(root: StoreUrl, folder: Path) -> Placement:
    return Placement(plant(folder.resolve().name or "data", [folder]), root / "data/")


def put(store: Store, placement: Placement) -> StoreUrl:
    """Its place, once everything is there."""
    tree = placement.tree
    head = store.head(placement.marker)
    if head is None or (head.metadata or {}).get("manifest") != tree.digest:
        missing = _missing(store, placement.place, tree)
        _LOG.info("%s: %d of %d files are uploaded", placement.place, len(missing), len(tree.leaves))
        store.upload([upload for upload in missing if upload.path])
        for leaf in tree.leaves:
            if leaf.written is not None:
                store.write(placement.place / leaf.path, leaf.written)
        for leaf in tree.leaves:
            leaf.check_unchanged()
        store.write(placement.marker, tree.manifest, {"manifest": tree.digest})
    else:
        _LOG.debug("%s is whole already", placement.place)
    return placement.place


def _missing(store: Store, place: StoreUrl, tree: Tree) -> list[Upload]:
    """What an interrupted staging of the same tree has not left there; usually everything."""
    there = {head.url: (head.size, head.md5) for head in store.objects(place)}
    uploads = [Upload(leaf.source, place / leaf.path, leaf.size, leaf.md5) for leaf in tree.leaves]
    return [each for each in uploads if there.get(each.url) != (each.size, each.md5)]
