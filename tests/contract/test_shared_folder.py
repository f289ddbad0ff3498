"""A shared folder, by the contract of Store; and against files that jobs may have left in it."""

from __future__ import annotations

import os
from pathlib import Path

import pytest
from staged import stage_code

from pytest_aisbench.errors import AisbenchError, StagingFailed, UsageFault
from pytest_aisbench.model.job import StoreUrl
from pytest_aisbench.stores.shared_folder import BUCKET, SharedFolder
from pytest_aisbench.testing import StoreContract


@pytest.fixture
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("share")


@pytest.fixture
def store(folder: Path) -> SharedFolder:
    return SharedFolder(folder)


@pytest.fixture
def place() -> StoreUrl:
    return StoreUrl(BUCKET, "aisbench/test/")


class TestSharedFolder(StoreContract):
    @pytest.fixture
    def store(self, folder: Path) -> SharedFolder:
        return SharedFolder(folder)

    @pytest.fixture
    def place(self) -> StoreUrl:
        return StoreUrl(BUCKET, "aisbench/test/")


def test_objects_are_files_where_the_pods_look(store: SharedFolder, place: StoreUrl, folder: Path) -> None:
    store.write(place / "code/train.py", b"pass")
    assert (folder / "aisbench/test/code/train.py").read_bytes() == b"pass"
    (folder / "aisbench/test/outputs").mkdir()
    (folder / "aisbench/test/outputs/accuracy.json").write_text("0.9")
    assert store.read(place / "outputs/accuracy.json") == b"0.9"


@pytest.mark.parametrize("what", ["file", "folder"])
def test_no_link_of_a_job_shows_what_lies_outside(
    store: SharedFolder, place: StoreUrl, folder: Path, tmp_path: Path, what: str
) -> None:
    (tmp_path / "private").mkdir()
    (tmp_path / "private/accuracy.json").write_text("not yours")
    outputs = folder / "aisbench/test/outputs"
    outputs.parent.mkdir(parents=True)
    if what == "folder":
        outputs.symlink_to(tmp_path / "private")
    else:
        outputs.mkdir()
        (outputs / "accuracy.json").symlink_to(tmp_path / "private/accuracy.json")
    assert list(store.objects(place)) == []
    assert store.download(place, str(tmp_path / "home")) == []
    for ask in (store.read, store.head):
        try:
            answer = ask(place / "outputs/accuracy.json")
        except StagingFailed:
            continue
        assert answer is None
    store.delete(place)
    assert (tmp_path / "private/accuracy.json").read_text() == "not yours"


def test_no_pipe_of_a_job_holds_us(store: SharedFolder, place: StoreUrl, folder: Path) -> None:
    (folder / "aisbench/test").mkdir(parents=True)
    os.mkfifo(folder / "aisbench/test/accuracy.json")
    assert store.read(place / "accuracy.json") is None
    assert list(store.objects(place)) == []


def test_metadata_are_no_objects_and_go_with_theirs(store: SharedFolder, place: StoreUrl) -> None:
    everything = StoreUrl(BUCKET, "")
    store.write(place / "a", b"1", {"manifest": "0123"})
    assert [head.url for head in store.objects(everything)] == [place / "a"]
    with pytest.raises(AisbenchError):
        store.read(StoreUrl(BUCKET, ".aisbench-metadata/x"))
    store.delete(place)
    store.write(place / "a", b"2")
    head = store.head(place / "a")
    assert head is not None
    assert not head.metadata


def test_what_is_staged_twice_is_copied_once(
    store: SharedFolder, place: StoreUrl, folder: Path, tmp_path: Path
) -> None:
    (tmp_path / "train.py").write_text("pass")
    first = stage_code(store, place, [tmp_path], "code")
    staged = folder / f"{first.key}train.py"
    before = staged.stat().st_ino
    assert stage_code(store, place, [tmp_path], "code") == first
    assert staged.stat().st_ino == before


def test_a_folder_that_is_not_mounted_is_the_users_to_mend(tmp_path: Path, place: StoreUrl) -> None:
    with pytest.raises(UsageFault, match="there is no shared folder"):
        SharedFolder(tmp_path / "gone").check(place)
