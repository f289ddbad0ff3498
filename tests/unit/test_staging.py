"""Staging: once per content, committed last, and nothing committed that is not what was read."""

from __future__ import annotations

import hashlib
import os
import threading
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest
from staged import stage_code

from pytest_aisbench.engine import staging
from pytest_aisbench.engine.staging import Stager, code_placement, data_placement, read_tree, upload_tree
from pytest_aisbench.errors import StagingFailed
from pytest_aisbench.model.job import StoreUrl
from pytest_aisbench.model.ports import Head, Store, Upload

ROOT = StoreUrl("bucket", "aisbench/")


class Shelf:
    """A Store in memory that counts, and lets a test step in while it uploads."""

    def __init__(self) -> None:
        self.kept: dict[str, tuple[bytes, dict[str, str]]] = {}
        self.asked: list[str] = []
        self.meanwhile: Callable[[Upload], None] = lambda _: None

    def check(self, url: StoreUrl) -> None: ...

    def close(self) -> None: ...

    def head(self, url: StoreUrl) -> Head | None:
        self.asked.append(f"HEAD {url.key}")
        return self._head(url.key) if url.key in self.kept else None

    def read(self, url: StoreUrl) -> bytes | None:
        return self.kept.get(url.key, (None, {}))[0]

    def write(self, url: StoreUrl, data: bytes, metadata: Mapping[str, str] | None = None) -> None:
        self.asked.append(f"PUT {url.key}")
        self.kept[url.key] = (data, dict(metadata or {}))

    def upload(self, uploads: Sequence[Upload]) -> None:
        for upload in uploads:
            self.write(upload.url, Path(upload.path).read_bytes())
            self.meanwhile(upload)

    def objects(self, url: StoreUrl) -> Iterator[Head]:
        self.asked.append(f"LIST {url.key}")
        return iter([self._head(key) for key in sorted(self.kept) if key.startswith(url.key)])

    def download(self, url: StoreUrl, folder: str) -> list[str]:
        return [f"{url} to {folder}"]

    def delete(self, url: StoreUrl) -> None:
        del self.kept[url.key]

    def _head(self, key: str) -> Head:
        data, metadata = self.kept[key]
        return Head(StoreUrl("bucket", key), len(data), hashlib.md5(data).hexdigest(), metadata)

    def markers(self) -> list[str]:
        return [key for key in self.kept if key.endswith(".ok")]


@pytest.fixture
def shelf() -> Shelf:
    return Shelf()


@pytest.fixture
def code(tmp_path: Path) -> Path:
    for name in ("train.py", "net/a.py", "net/b.py"):
        file = tmp_path / "code" / name
        file.parent.mkdir(parents=True, exist_ok=True)
        file.write_text(f"print({name!r})")
    return tmp_path / "code"


def test_the_tree_lies_under_its_content_and_name(shelf: Shelf, code: Path) -> None:
    store: Store = shelf  # it is one
    place = stage_code(store, ROOT, [code], "resnet50")
    assert place.is_folder
    above, identity, name, _ = place.key.rsplit("/", 3)
    assert (above, name) == ("aisbench/code", "resnet50")
    assert shelf.markers() == [f"aisbench/code/{identity}/.ok"]
    there = {key.removeprefix(place.key): data for key, (data, _) in shelf.kept.items() if key not in shelf.markers()}
    assert there == {name: f"print({name!r})".encode() for name in ("train.py", "net/a.py", "net/b.py")}


def test_the_marker_is_written_last(shelf: Shelf, code: Path) -> None:
    stage_code(shelf, ROOT, [code], "resnet50")
    assert shelf.asked[-1] == f"PUT {shelf.markers()[0]}"


def test_an_unchanged_tree_costs_one_question(shelf: Shelf, code: Path) -> None:
    first = stage_code(shelf, ROOT, [code], "resnet50")
    shelf.asked.clear()
    os.utime(code / "train.py", (1, 1))  # touched, not changed
    assert stage_code(shelf, ROOT, [code], "resnet50") == first
    assert shelf.asked == [f"HEAD {shelf.markers()[0]}"]


def test_a_changed_tree_lies_elsewhere_and_the_first_stays(shelf: Shelf, code: Path) -> None:
    first = stage_code(shelf, ROOT, [code], "resnet50")
    before = dict(shelf.kept)
    (code / "train.py").write_text("PRINT('train.py')")
    assert stage_code(shelf, ROOT, [code], "resnet50") != first
    assert before.items() <= shelf.kept.items()


def test_the_same_code_under_two_names_is_two_trees(shelf: Shelf, code: Path) -> None:
    stage_code(shelf, ROOT, [code], "resnet50")
    second = stage_code(shelf, ROOT, [code], "resnet101")
    assert f"{second.key}train.py" in shelf.kept


@pytest.mark.parametrize("deed", ["append", "rewrite", "replace", "vanish"])
def test_a_file_that_changes_meanwhile_is_not_committed(shelf: Shelf, code: Path, deed: str) -> None:
    victim = code / "net/a.py"

    def interfere(upload: Upload) -> None:
        if Path(upload.path) != victim:
            return
        old = victim.stat()
        if deed == "append":
            victim.write_text(victim.read_text() + "#")
        elif deed == "rewrite":  # as long as before
            victim.write_text(victim.read_text().upper())
            os.utime(victim, ns=(old.st_atime_ns, old.st_mtime_ns + 1))
        elif deed == "replace":  # as long and as old as before
            other = code.parent / "other"
            other.write_text(victim.read_text().upper())
            os.utime(other, ns=(old.st_atime_ns, old.st_mtime_ns))
            other.replace(victim)
        else:
            victim.unlink()

    shelf.meanwhile = interfere
    with pytest.raises(StagingFailed, match=r"net/a\.py (changed|vanished)"):
        stage_code(shelf, ROOT, [code], "resnet50")
    assert shelf.markers() == []


def test_a_staging_that_was_killed_is_completed(shelf: Shelf, code: Path) -> None:
    class KilledError(Exception):
        pass

    def kill(upload: Upload) -> None:
        if upload.url.key.endswith("b.py"):
            raise KilledError

    more = [f"more{number}.py" for number in range(6)]  # nine files are worth a look at what is there
    for name in more:
        (code / name).write_text(name)
    shelf.meanwhile = kill
    with pytest.raises(KilledError):
        stage_code(shelf, ROOT, [code], "resnet50")
    assert shelf.markers() == []
    half = next(key for key in shelf.kept if key.endswith("a.py"))
    other = next(key for key in shelf.kept if key.endswith("b.py"))
    shelf.kept[other] = (b"half of", {})
    shelf.meanwhile = lambda _: None
    shelf.asked.clear()
    place = stage_code(shelf, ROOT, [code], "resnet50")
    assert len(shelf.markers()) == 1
    assert shelf.kept[other][0] == b"print('net/b.py')"
    assert sorted(shelf.kept) == sorted(
        [*shelf.markers(), *(f"{place.key}{n}" for n in ("train.py", "net/a.py", "net/b.py", *more))]
    )
    assert f"PUT {half}" not in shelf.asked  # what arrived whole is not sent again


def test_a_marker_of_something_else_is_not_believed(shelf: Shelf, code: Path) -> None:
    stage_code(shelf, ROOT, [code], "resnet50")
    shelf.kept[shelf.markers()[0]] = (b"", {"manifest": "0" * 64})
    shelf.asked.clear()
    stage_code(shelf, ROOT, [code], "resnet50")
    assert shelf.asked[-1] == f"PUT {shelf.markers()[0]}"


def test_a_folder_that_somebody_deleted_is_staged_again(shelf: Shelf, code: Path) -> None:
    place = stage_code(shelf, ROOT, [code], "resnet50")
    before = dict(shelf.kept)
    folder = place.key.removesuffix("resnet50/")
    for key in [key for key in shelf.kept if key.startswith(folder)]:
        del shelf.kept[key]
    assert stage_code(shelf, ROOT, [code], "resnet50") == place
    assert shelf.kept == before


def test_trials_that_start_together_upload_a_tree_once(shelf: Shelf, code: Path) -> None:
    begun = threading.Barrier(4)
    stager = Stager(shelf)

    def stage() -> StoreUrl:
        placement = code_placement(ROOT, read_tree("resnet50", [code]))
        begun.wait()
        return stager.upload(placement)

    with ThreadPoolExecutor(4) as pool:
        places = [each.result() for each in [pool.submit(stage) for _ in range(4)]]
    assert len(set(places)) == 1
    methods = [asked.partition(" ")[0] for asked in shelf.asked]
    assert (methods.count("HEAD"), methods.count("PUT")) == (1, 4)  # three files and the marker


def test_a_tree_is_asked_for_once_a_minute(shelf: Shelf, code: Path) -> None:
    now = 1000.0
    stager = Stager(shelf, lambda: now)
    placement = code_placement(ROOT, read_tree("resnet50", [code]))
    stager.upload(placement)
    shelf.asked.clear()
    now += 59
    stager.upload(placement)
    assert shelf.asked == []
    now += 2
    stager.upload(placement)
    assert shelf.asked == [f"HEAD {shelf.markers()[0]}"]
    (code / "train.py").write_text("pass")
    shelf.asked.clear()
    stager.upload(code_placement(ROOT, read_tree("resnet50", [code])))
    assert shelf.asked[-1].startswith("PUT")


def test_an_upload_that_failed_is_not_taken_for_whole(shelf: Shelf, code: Path) -> None:
    stager, placement = Stager(shelf), code_placement(ROOT, read_tree("resnet50", [code]))

    def fail(_: Upload) -> None:
        raise StagingFailed("no")

    shelf.meanwhile = fail
    with pytest.raises(StagingFailed):
        stager.upload(placement)
    shelf.meanwhile = lambda _: None
    stager.upload(placement)
    assert len(shelf.markers()) == 1


def test_a_large_file_that_nobody_can_compare_is_sent_again(
    shelf: Shelf, code: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A file in parts has no MD5 in any Store, and its size proves nothing."""
    monkeypatch.setattr(staging, "_MD5_UP_TO", 5)
    monkeypatch.setattr(staging, "_LARGE", 5)  # read by threads
    place = stage_code(shelf, ROOT, [code], "resnet50")
    shelf.kept[f"{place.key}train.py"] = (b"PRINT('train.py')", {})
    del shelf.kept[shelf.markers()[0]]
    monkeypatch.setattr(shelf, "_head", lambda key: Head(StoreUrl("bucket", key), len(shelf.kept[key][0])))
    stage_code(shelf, ROOT, [code], "resnet50")
    assert shelf.kept[f"{place.key}train.py"][0] == b"print('train.py')"


def test_data_lies_beside_code_under_its_own_name(shelf: Shelf, code: Path) -> None:
    place = upload_tree(shelf, data_placement(ROOT, code / "net"))
    assert place.key.startswith("aisbench/data/")
    assert place.key.endswith("/net/")
    assert shelf.read(place / "a.py") == b"print('net/a.py')"
