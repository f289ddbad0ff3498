"""What every Store must do."""

from __future__ import annotations

import hashlib
import itertools
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

from pytest_aisbench.domain.ports import Store, Upload
from pytest_aisbench.domain.stage import StoreUrl
from pytest_aisbench.errors import AisbenchError, Blame, StagingFailed


class StoreContract:
    """Needs two fixtures: `store`, and `place`, a folder in it that is this test's alone."""

    HOSTILE = ("../outside", "a/../../outside", "/absolute", "a\\..\\outside", "a//b", "./c")

    @pytest.fixture
    def store(self) -> Store:
        raise AssertionError("the test class that inherits StoreContract has a fixture `store`")

    @pytest.fixture
    def place(self) -> StoreUrl:
        raise AssertionError("the test class that inherits StoreContract has a fixture `place`")

    def test_what_is_written_is_read(self, store: Store, place: StoreUrl) -> None:
        store.write(place / "a.json", b"14151.0")
        assert store.read(place / "a.json") == b"14151.0"
        head = store.head(place / "a.json")
        assert head is not None
        assert (head.url, head.size) == (place / "a.json", 7)
        assert head.md5 in {None, hashlib.md5(b"14151.0").hexdigest()}  # noqa: S324

    def test_a_second_write_replaces_the_first(self, store: Store, place: StoreUrl) -> None:
        store.write(place / "a", b"first and longer")
        store.write(place / "a", b"second")
        assert store.read(place / "a") == b"second"

    def test_what_is_missing_is_none(self, store: Store, place: StoreUrl) -> None:
        assert store.head(place / "missing") is None
        assert store.read(place / "missing") is None
        assert list(store.objects(place / "missing/")) == []
        store.delete(place / "missing")
        store.delete(place / "missing/")

    def test_a_bucket_that_is_not_there_is_the_users_to_mend(self, store: Store, place: StoreUrl) -> None:
        store.check(place)
        nowhere = StoreUrl("no-such-bucket-here", "a")
        asks: list[Callable[[], object]] = [
            lambda: store.check(nowhere),
            lambda: store.read(nowhere),
            lambda: store.write(nowhere, b"1"),
            lambda: list(store.objects(nowhere)),
        ]
        for ask in asks:
            with pytest.raises(AisbenchError, match="no-such-bucket-here") as refused:
                ask()
            assert refused.value.blame is Blame.USER

    def test_metadata_comes_back(self, store: Store, place: StoreUrl) -> None:
        store.write(place / "marked", b"1", {"manifest": "0123abcd", "note": "50 % of α & ω"})
        head = store.head(place / "marked")
        assert head is not None
        assert dict(head.metadata or {}) == {"manifest": "0123abcd", "note": "50 % of α & ω"}

    @pytest.mark.parametrize("name", ["模型/训练.py", "a b+c&d=e?f#g%h.txt", "ü~(1)*'!;@,$.txt", "a%2Fb"])
    def test_any_name_is_a_key(self, store: Store, place: StoreUrl, tmp_path: Path, name: str) -> None:
        store.write(place / name, name.encode())
        assert store.read(place / name) == name.encode()
        assert [head.url for head in store.objects(place)] == [place / name]
        assert store.download(place, str(tmp_path)) == [name]
        assert (tmp_path / name).read_text() == name

    def test_nothing_is_something(self, store: Store, place: StoreUrl, tmp_path: Path) -> None:
        (tmp_path / "empty").touch()
        store.upload([Upload(str(tmp_path / "empty"), place / "empty", 0)])
        assert store.read(place / "empty") == b""
        store.download(place, str(tmp_path / "home"))
        assert (tmp_path / "home/empty").read_bytes() == b""

    def test_a_listing_is_whole_and_in_key_order(self, store: Store, place: StoreUrl) -> None:
        """Beyond the 1,000 keys that one answer holds."""
        names = [f"{number:04d}" for number in range(1000)] + ["a/b", "a/c/d"]
        with ThreadPoolExecutor(16) as pool:
            list(pool.map(lambda name: store.write(place / name, name.encode()), reversed(names)))
        found = list(store.objects(place))
        assert [head.url for head in found] == [place / name for name in names]
        assert [head.size for head in found] == [len(name) for name in names]
        store.delete(place / "a/")
        assert [head.url for head in store.objects(place / "a/")] == []
        store.delete(place)
        assert list(store.objects(place)) == []

    def test_a_folder_is_not_its_namesakes(self, store: Store, place: StoreUrl) -> None:
        for name in ("run/1", "run-2/1", "running"):
            store.write(place / name, b"1")
        assert [head.url for head in store.objects(place / "run/")] == [place / "run/1"]
        store.delete(place / "run/")
        assert {head.url for head in store.objects(place)} == {place / "run-2/1", place / "running"}

    def test_files_go_up_and_come_home(self, store: Store, place: StoreUrl, tmp_path: Path) -> None:
        content = {f"d{number % 3}/f{number}": bytes([number]) * (number * 7001) for number in range(40)}
        uploads = []
        for (name, data), with_md5 in zip(content.items(), itertools.cycle([True, False])):
            file = tmp_path / "from" / name
            file.parent.mkdir(parents=True, exist_ok=True)
            file.write_bytes(data)
            md5 = hashlib.md5(data).hexdigest() if with_md5 else None  # noqa: S324
            uploads.append(Upload(str(file), place / name, len(data), md5))
        store.upload(uploads)
        assert sorted(store.download(place, str(tmp_path / "to"))) == sorted(content)
        landed = {str(file.relative_to(tmp_path / "to")) for file in (tmp_path / "to").rglob("*") if file.is_file()}
        assert landed == set(content)
        assert all((tmp_path / "to" / name).read_bytes() == data for name, data in content.items())

    def test_bytes_that_changed_on_the_way_are_noticed(self, store: Store, place: StoreUrl, tmp_path: Path) -> None:
        (tmp_path / "a").write_bytes(b"what is there")
        other = hashlib.md5(b"what was meant").hexdigest()  # noqa: S324
        with pytest.raises(StagingFailed):
            store.upload([Upload(str(tmp_path / "a"), place / "a", 13, other)])

    def test_a_file_that_is_not_as_long_as_it_was_is_noticed(
        self, store: Store, place: StoreUrl, tmp_path: Path
    ) -> None:
        (tmp_path / "a").write_bytes(b"short")
        with pytest.raises(StagingFailed, match=str(tmp_path / "a")):
            store.upload([Upload(str(tmp_path / "a"), place / "a", 50_000_000)])
        with pytest.raises(StagingFailed, match=str(tmp_path / "gone")):
            store.upload([Upload(str(tmp_path / "gone"), place / "a", 1)])
        assert store.head(place / "a") is None

    @pytest.mark.parametrize("key", HOSTILE)
    def test_no_key_leads_out_of_the_folder(self, store: Store, place: StoreUrl, tmp_path: Path, key: str) -> None:
        hostile = StoreUrl(place.bucket, place.key + key)
        try:
            store.write(hostile, b"evil")
        except AisbenchError:
            pytest.skip(f"this store takes no key such as {key!r}")
        store.write(place / "good", b"good")
        if hostile not in [head.url for head in store.objects(place)]:
            pytest.skip(f"this store keeps {key!r} under another key")
        with pytest.raises(StagingFailed) as refused:
            store.download(place, str(tmp_path / "home"))
        assert repr(hostile.key) in str(refused.value)
        assert not [file for file in tmp_path.rglob("*") if file.is_file()]

    def test_no_link_leads_out_of_the_folder(self, store: Store, place: StoreUrl, tmp_path: Path) -> None:
        store.write(place / "sub/file", b"1")
        (tmp_path / "home").mkdir()
        (tmp_path / "outside").mkdir()
        (tmp_path / "home/sub").symlink_to(tmp_path / "outside")
        with pytest.raises(StagingFailed, match="sub/file"):
            store.download(place, str(tmp_path / "home"))
        assert list((tmp_path / "outside").iterdir()) == []

    def test_closing_twice_is_fine(self, store: Store, place: StoreUrl) -> None:
        store.write(place / "a", b"1")
        store.close()
        store.close()
        with pytest.raises(AisbenchError, match="closed"):
            store.read(place / "a")
