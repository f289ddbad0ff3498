"""What is staged of a folder, what is refused, and what its address depends on."""

from __future__ import annotations

import os
import stat
import tempfile
import tracemalloc
from collections.abc import Iterator
from pathlib import Path

import pytest

from pytest_aisbench.engine import staging
from pytest_aisbench.engine.staging import read_tree
from pytest_aisbench.errors import StagingFailed, UsageFault


def fill(folder: Path, *names: str) -> Path:
    for name in names:
        file = folder / name
        file.parent.mkdir(parents=True, exist_ok=True)
        file.write_text(name)
    return folder


def paths(*folders: Path) -> list[str]:
    return [leaf.path for leaf in read_tree("code", folders).files]


def test_every_file_and_nothing_that_is_not_meant(tmp_path: Path) -> None:
    code = fill(tmp_path, "train.py", "net/a.py", "net/b/c.py", ".hidden", "train.pyc.txt")
    fill(tmp_path, "__pycache__/train.pyc", "net/__pycache__/x", ".git/config", "old.pyc", "net/.DS_Store")
    (tmp_path / "empty").mkdir()
    assert paths(code) == [".hidden", "net/a.py", "net/b/c.py", "train.py", "train.pyc.txt"]


def test_the_address_depends_on_content_alone(tmp_path: Path) -> None:
    one, two = fill(tmp_path / "1", "b", "a/c"), fill(tmp_path / "2", "a/c", "b")
    os.utime(two / "b", (1, 1))
    assert read_tree("code", [one]).digest == read_tree("code", [two]).digest
    (two / "b").write_text("B")
    changed = read_tree("code", [two]).digest
    assert read_tree("code", [one]).digest != changed
    assert read_tree("other", [two]).digest != changed
    (two / "b").chmod(0o755)
    assert read_tree("code", [two]).digest != changed
    renamed = fill(tmp_path / "3", "bb", "a/c")
    (renamed / "bb").write_text("b")
    assert read_tree("code", [one]).digest != read_tree("code", [renamed]).digest


def test_folders_are_laid_over_one_another(tmp_path: Path) -> None:
    one, two = fill(tmp_path / "1", "train.py", "lib/a.py"), fill(tmp_path / "2", "lib/b.py")
    assert paths(one, two) == ["lib/a.py", "lib/b.py", "train.py"]
    fill(two, "lib/a.py")
    with pytest.raises(UsageFault) as refused:
        paths(one, two)
    assert str(one / "lib/a.py") in str(refused.value)
    assert str(two / "lib/a.py") in str(refused.value)


def test_a_file_here_and_a_folder_there_are_refused(tmp_path: Path) -> None:
    with pytest.raises(UsageFault, match="lib is a file"):
        paths(fill(tmp_path / "1", "lib"), fill(tmp_path / "2", "lib/a.py"))


def test_links_inside_count_as_what_they_lead_to(tmp_path: Path) -> None:
    code = fill(tmp_path / "code", "a.py", "net/b.py")
    shared = fill(tmp_path / "shared", "c.py")
    (code / "also.py").symlink_to("a.py")
    (code / "model").symlink_to(code / "net", target_is_directory=True)
    (code / "c0.py").symlink_to(shared / "c.py")  # into another of the folders given
    (shared / "c2.py").symlink_to("c.py")
    (shared / "from").symlink_to(code / "net")
    found = {leaf.path: Path(leaf.source).read_text() for leaf in read_tree("code", [code, shared]).files}
    assert found["also.py"] == "a.py"
    assert found["model/b.py"] == "net/b.py"
    assert found["c0.py"] == found["c2.py"] == "c.py"
    assert found["from/b.py"] == "net/b.py"


def test_a_given_folder_may_itself_be_a_link(tmp_path: Path) -> None:
    fill(tmp_path / "real", "a.py")
    (tmp_path / "link").symlink_to("real")
    assert paths(tmp_path / "link") == ["a.py"]


@pytest.mark.parametrize(
    ("name", "target", "why"),
    [
        ("passwd", "/etc/passwd", "leads outside"),
        ("beside", "../code-beside/secret", "leads outside"),
        ("broken", "missing", "leads nowhere"),
        ("self", "self", "leads nowhere"),
        ("sub/up", "..", "reached again"),
        ("here", ".", "reached again"),
    ],
)
def test_links_that_lead_astray_are_refused(tmp_path: Path, name: str, target: str, why: str) -> None:
    code = fill(tmp_path / "code", "a.py", "sub/b.py")
    fill(tmp_path / "code-beside", "secret")
    (code / name).symlink_to(target)
    with pytest.raises(UsageFault, match=why) as refused:
        paths(code)
    assert name in str(refused.value)
    assert ";" in str(refused.value)  # and says what to do


def test_what_is_no_file_is_never_opened(tmp_path: Path) -> None:
    code = fill(tmp_path, "a.py")
    os.mkfifo(code / "pipe")
    with pytest.raises(UsageFault, match="pipe is neither"):
        paths(code)
    (code / "pipe").unlink()
    os.mknod(code / "s", stat.S_IFSOCK)
    with pytest.raises(UsageFault, match="s is neither"):
        paths(code)
    (code / "s").unlink()
    (code / "link").symlink_to("a.py")
    assert paths(code) == ["a.py", "link"]


@pytest.mark.parametrize("name", [b"latin-\xe9.py", b"line\nfeed", b"back\\slash", b"bell\x07", b"d/" * 400 + b"deep"])
def test_names_that_a_key_cannot_have_are_refused(tmp_path: Path, name: bytes) -> None:
    file = Path(os.fsdecode(os.fsencode(tmp_path) + b"/" + name))
    file.parent.mkdir(parents=True, exist_ok=True)
    file.touch()
    with pytest.raises(UsageFault, match=r"rename it|shorten it") as refused:
        paths(tmp_path)
    str(refused.value).encode()  # can be printed


def test_names_of_all_the_world_are_fine(tmp_path: Path) -> None:
    assert paths(fill(tmp_path, "资料　一/训练.py", "a b.txt")) == ["a b.txt", "资料　一/训练.py"]


def test_nothing_to_stage_is_refused(tmp_path: Path) -> None:
    fill(tmp_path / "code", "__pycache__/a.pyc")
    with pytest.raises(UsageFault, match="no file"):
        paths(tmp_path / "code")
    with pytest.raises(UsageFault, match="missing"):
        paths(tmp_path / "missing")
    with pytest.raises(UsageFault, match="not a folder"):
        paths(fill(tmp_path, "file") / "file")


@pytest.fixture
def nobody() -> Iterator[Path]:
    """A folder, and nobody's rights in it: root would be let read everything."""
    with tempfile.TemporaryDirectory() as folder:
        Path(folder).chmod(0o755)
        yield Path(folder)
        if os.getuid() == 0:
            os.seteuid(0)


def test_what_cannot_be_read_is_refused(nobody: Path) -> None:
    one, two = fill(nobody / "1", "a.py"), fill(nobody / "2", "sub/a.py")
    (one / "a.py").chmod(0)
    (two / "sub").chmod(0)
    if os.getuid() == 0:
        os.seteuid(65534)
    with pytest.raises(UsageFault, match=r"a\.py; make it readable"):
        paths(one)
    with pytest.raises(UsageFault, match=r"sub.*; make it readable"):
        paths(two)
    if os.getuid() == 0:
        os.seteuid(0)
    (two / "sub").chmod(0o700)


def test_a_file_that_becomes_a_pipe_before_it_is_read_does_not_hang(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    code = fill(tmp_path, "a.py")
    monkeypatch.setattr(staging, "_walk", lambda *_: [("a.py", str(code / "a.py"))])
    (code / "a.py").unlink()
    os.mkfifo(code / "a.py")
    with pytest.raises(StagingFailed, match=r"a\.py changed"):
        paths(code)
    (code / "a.py").unlink()
    with pytest.raises(StagingFailed, match=r"a\.py vanished"):
        paths(code)


def test_memory_does_not_grow_with_the_files(tmp_path: Path) -> None:
    with (tmp_path / "large").open("wb") as file:
        file.truncate(64 * 1024 * 1024)
    tracemalloc.start()
    try:
        read_tree("code", [tmp_path])
        _, peak = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()
    assert peak < 8 * 1024 * 1024


def test_a_tree_is_the_same_however_its_files_are_read(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for number in range(20):
        (tmp_path / str(number)).write_bytes(bytes([number]) * 100 * number)
    before = read_tree("code", [tmp_path])
    monkeypatch.setattr(staging, "_LARGE", 500)  # by threads
    monkeypatch.setattr(staging, "_MD5_UP_TO", 1000)
    after = read_tree("code", [tmp_path])
    assert after.digest == before.digest
    assert [file.md5 for file in after.files] == [file.md5 if file.size <= 1000 else None for file in before.files]
