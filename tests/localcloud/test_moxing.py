"""`moxing.file` as scripts of jobs find it: files here and in OBS by the same functions."""

from __future__ import annotations

import importlib
import json
import os
import subprocess
import sys
import time
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest
from cloud_client import CloudClient
from waiting import wait_until

from pytest_aisbench.localcloud.engine.container import PACKAGES
from pytest_aisbench.localcloud.faults import Fault
from pytest_aisbench.localcloud.server import LocalCloud

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

pytestmark = [
    pytest.mark.filterwarnings(r"ignore:datetime\.datetime\.utcnow:DeprecationWarning"),
    pytest.mark.filterwarnings(r"ignore:.*invalid escape sequence"),
    pytest.mark.filterwarnings(r"ignore:.*'return' in a 'finally' block:SyntaxWarning"),
]

BASE = "s3://aisbench/place"


def forget() -> None:
    for name in [name for name in sys.modules if name.partition(".")[0] == "moxing"]:
        del sys.modules[name]


@pytest.fixture(scope="module")
def cloud(tmp_path_factory: pytest.TempPathFactory) -> Iterator[LocalCloud]:
    with LocalCloud(tmp_path_factory.mktemp("cloud")) as cloud:
        yield cloud


@pytest.fixture
def mox(cloud: LocalCloud, monkeypatch: pytest.MonkeyPatch) -> Iterator[Any]:
    """In this process, by the account's own keys."""
    card = cloud.card()
    monkeypatch.setenv("S3_ENDPOINT", card["obs_endpoint"])
    monkeypatch.setenv("ACCESS_KEY_ID", card["access_key"])
    monkeypatch.setenv("SECRET_ACCESS_KEY", card["secret_key"])
    monkeypatch.syspath_prepend(str(PACKAGES))
    forget()
    moxing = importlib.import_module("moxing")
    yield moxing
    moxing.file.remove(BASE, recursive=True)
    sys.modules["moxing.framework.file.store"].close()
    forget()


def test_it_is_imported_in_every_way_that_scripts_do(mox: Any) -> None:
    names = ("moxing.file", "moxing.framework.file")
    assert [importlib.import_module(name) for name in names] == [mox.file, mox.file]
    assert importlib.import_module("moxing.framework").file is mox.file


def test_a_text_is_written_read_and_continued(mox: Any) -> None:
    mox.file.write(f"{BASE}/throughput_0.json", str(12.5))
    assert mox.file.read(f"obs{BASE[2:]}/throughput_0.json") == "12.5"
    mox.file.append(f"{BASE}/throughput_0.json", "\nzwölf")
    assert mox.file.read(f"{BASE}/throughput_0.json", binary=True) == "12.5\nzwölf".encode()
    mox.file.write(f"{BASE}/b.bin", b"\0\1", binary=True)
    mox.file.append_remote(f"{BASE}/b.bin", f"{BASE}/throughput_0.json")
    assert mox.file.get_size(f"{BASE}/throughput_0.json") == 13


def test_names_may_hold_anything(mox: Any, tmp_path: Path) -> None:
    name = "ü + %20 & a=b?c#d~(1).txt"
    mox.file.write(f"{BASE}/{name}", "x")
    assert mox.file.list_directory(BASE) == [name]
    mox.file.copy(f"{BASE}/{name}", f"{BASE}/again {name}")
    mox.file.copy_parallel(BASE, str(tmp_path / "here"))
    assert sorted(path.name for path in (tmp_path / "here").iterdir()) == sorted([name, f"again {name}"])


def test_a_folder_goes_to_obs_and_back(mox: Any, tmp_path: Path) -> None:
    files = {f"{index % 7}/deep/{index}.txt": os.urandom(index) for index in range(200)}
    for name, content in files.items():
        (tmp_path / "out" / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / "out" / name).write_bytes(content)
    mox.file.copy_parallel(src_url=str(tmp_path / "out"), dst_url=f"{BASE}/data/")
    mox.file.copy_parallel(f"{BASE}/data", f"{BASE}/twin", threads=4, is_processing=False)
    mox.file.copy_parallel(f"{BASE}/twin/", str(tmp_path / "in"))
    found = {path.relative_to(tmp_path / "in").as_posix(): path for path in (tmp_path / "in").rglob("*.*")}
    assert {name: path.read_bytes() for name, path in found.items()} == files
    mox.file.copy_parallel(f"{BASE}/twin", str(tmp_path / "some"), file_list=["1/deep/1.txt", "2/deep/2.txt"])
    assert len(list((tmp_path / "some").rglob("*.txt"))) == 2


def test_an_empty_folder_is_one_too(mox: Any, tmp_path: Path) -> None:
    mox.file.make_dirs(f"{BASE}/empty/deeper")
    assert mox.file.is_directory(f"{BASE}/empty")
    assert mox.file.list_directory(f"{BASE}/empty/deeper") == []
    mox.file.copy_parallel(f"{BASE}/empty", str(tmp_path / "here"))
    assert [path.name for path in (tmp_path / "here").iterdir()] == ["deeper"]
    mox.file.copy_parallel(str(tmp_path / "here/deeper"), f"{BASE}/other")
    assert mox.file.is_directory(f"{BASE}/other")


def test_what_is_missing_is_a_file_that_is_not_found(mox: Any, tmp_path: Path) -> None:
    calls: list[Callable[[], Any]] = [
        lambda: mox.file.read(f"{BASE}/no"),
        lambda: mox.file.stat(f"{BASE}/no"),
        lambda: mox.file.list_directory(f"{BASE}/no"),
        lambda: mox.file.copy(f"{BASE}/no", str(tmp_path / "no")),
        lambda: mox.file.copy_parallel(f"{BASE}/no/", str(tmp_path / "no")),
        lambda: mox.file.copy_parallel("s3://nobody-has-it/no/", str(tmp_path / "no")),
        lambda: mox.file.mk_dir(f"{BASE}/no/deeper"),
        lambda: mox.file.File(f"{BASE}/no", "r+"),
        lambda: mox.file.read(str(tmp_path / "no")),
    ]
    for call in calls:
        with pytest.raises(FileNotFoundError, match="no"):
            call()
    assert not list(tmp_path.iterdir())
    assert not mox.file.exists(f"{BASE}/no")
    assert not mox.file.is_directory("s3://nobody-has-it")
    mox.file.remove(f"{BASE}/no")


def test_wrong_keys_are_refused_without_another_try(mox: Any) -> None:
    mox.file.set_auth(ak="wrong", sk="wrong")
    with pytest.raises(OSError, match="InvalidAccessKeyId") as caught:
        mox.file.read(f"{BASE}/a")
    assert isinstance(caught.value, mox.file.MoxFileRespException)
    mox.file.set_auth()


def test_what_is_there_is_listed_walked_and_globbed(mox: Any) -> None:
    for name in ("a.txt", "b/c.jpg", "b/d.jpg", "b/e/f.jpg"):
        mox.file.write(f"{BASE}/{name}", name)
    assert mox.file.list_directory(BASE) == ["a.txt", "b"]
    assert mox.file.list_directory(BASE, remove_sep=False, skip_file=True) == ["b/"]
    everything = ["a.txt", "b", "b/c.jpg", "b/d.jpg", "b/e", "b/e/f.jpg"]
    assert mox.file.list_directory(f"{BASE}/", recursive=True) == everything
    assert mox.file.glob(f"{BASE}/*/*.jpg") == [f"{BASE}/b/c.jpg", f"{BASE}/b/d.jpg"]
    assert list(mox.file.walk(f"{BASE}/b")) == [
        (f"{BASE}/b", ["e"], ["c.jpg", "d.jpg"]),
        (f"{BASE}/b/e", [], ["f.jpg"]),
    ]
    assert [entry.path for entry in mox.file.scan_dir(BASE) if entry.is_dir()] == [f"{BASE}/b"]
    assert mox.file.get_size(f"{BASE}/b") == 0
    assert mox.file.get_size(f"{BASE}/b", recursive=True) == len("b/c.jpgb/d.jpgb/e/f.jpg")
    found = mox.file.stat(f"{BASE}/a.txt")
    assert (found.length, found.is_directory) == (5, False)
    assert abs(found.st_mtime - time.time()) < 60
    assert mox.file.stat(f"{BASE}/b").is_directory


def test_removing_and_renaming_take_no_more_than_they_should(mox: Any, tmp_path: Path) -> None:
    for name in ("a", "a/b", "ab", "c/d"):
        mox.file.write(f"{BASE}/{name}", name)
    mox.file.remove(f"{BASE}/c")
    assert mox.file.exists(f"{BASE}/c/d"), "a folder goes only when it is asked for"
    mox.file.rename(f"{BASE}/c", str(tmp_path / "c"))
    assert (tmp_path / "c/d").read_text() == "c/d"
    assert not mox.file.exists(f"{BASE}/c")
    mox.file.remove(f"{BASE}/a", recursive=True)
    assert mox.file.list_directory(BASE) == ["ab"]
    mox.file.rename(f"{BASE}/ab", f"{BASE}/z")
    assert mox.file.list_directory(BASE) == ["z"]


def test_a_file_object_is_one_of_pythons(mox: Any) -> None:
    with mox.file.File(f"{BASE}/lines", "w") as file:
        file.write("one\n")
        file.writelines(["zwei\n", "drei"])
        file.flush()
        assert mox.file.read(f"{BASE}/lines") == "one\nzwei\ndrei", "what is flushed is there"
    with mox.file.File(f"{BASE}/lines") as file:
        assert file.readline() == "one\n"
        assert list(file) == ["zwei\n", "drei"]
        assert file.size() == 13
    with mox.file.File(f"{BASE}/lines", "br+") as file:
        file.seek(-4, os.SEEK_END)
        file.write(b"four")
    with mox.file.File(f"{BASE}/lines", "a") as file:
        json.dump([5], file)
    assert mox.file.read(f"{BASE}/lines").splitlines()[2] == "four[5]"
    mox.file.File(f"{BASE}/dropped", "w").write("all the same")
    assert mox.file.File(f"{BASE}/dropped").read() == "all the same"
    with mox.file.File(f"{BASE}/nothing", "w"):
        pass
    assert mox.file.get_size(f"{BASE}/nothing") == 0


def test_shifted_functions_of_python_take_paths_of_obs(mox: Any, tmp_path: Path) -> None:
    import shutil

    before = (open, os.listdir, os.stat)
    mox.file.shift("os", "mox")
    try:
        os.makedirs(f"{BASE}/new", exist_ok=True)  # noqa: PTH103
        with open(f"{BASE}/new/hello.txt", "w") as file:  # noqa: PTH123
            file.write("hello")
        assert os.listdir(f"{BASE}/new") == ["hello.txt"]  # noqa: PTH208
        assert os.path.getsize(f"{BASE}/new/hello.txt") == 5  # noqa: PTH202
        shutil.copytree(f"{BASE}/new", tmp_path / "new")
        with open(tmp_path / "new/hello.txt") as file:  # noqa: PTH123
            assert file.read() == "hello"
        assert os.path.isdir(tmp_path / "new")  # noqa: PTH112
    finally:
        mox.file.shift("mox", "os")
    assert before == (open, os.listdir, os.stat)


@pytest.mark.parametrize(
    "fault",
    [
        Fault(service="obs", times=2, status=503),
        Fault(service="obs", operation="get-object", times=1, truncate=1000),
        Fault(service="obs", times=1, drop="answer"),
    ],
)
def test_a_bad_minute_is_sat_out(cloud: LocalCloud, mox: Any, tmp_path: Path, fault: Fault) -> None:
    content = os.urandom(3 << 20)
    (tmp_path / "big").write_bytes(content)
    cloud.faults.set([fault])
    try:
        mox.file.copy(str(tmp_path / "big"), f"{BASE}/big")
        mox.file.copy(f"{BASE}/big", str(tmp_path / "back"))
    finally:
        cloud.faults.clear()
    assert (tmp_path / "back").read_bytes() == content


def test_a_forked_child_has_connections_of_its_own(mox: Any) -> None:
    """As the workers of a data loader do: a child must not read from its parent's connection."""
    for index in range(20):
        mox.file.write(f"{BASE}/{index}", str(index) * 1000)
    child = os.fork()
    expected = [str(index) * 1000 for index in range(20)]
    seen = [mox.file.read(f"{BASE}/{index}") for index in range(20)]
    if child == 0:
        os._exit(0 if seen == expected else 1)
    assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 0
    assert seen == expected


@pytest.mark.skipif(sys.platform != "linux", reason="looks into /proc")
@pytest.mark.slow
def test_large_files_are_streamed(mox: Any, cloud: LocalCloud, tmp_path: Path) -> None:
    with (tmp_path / "large").open("wb") as file:
        file.truncate(120 << 20)
    program = """
import sys, moxing as mox
mox.file.copy(sys.argv[1], "s3://aisbench/place/large")
mox.file.copy("s3://aisbench/place/large", sys.argv[1] + ".back")
[peak] = [line.split()[1] for line in open("/proc/self/status") if line.startswith("VmHWM")]
print(int(peak) // 1024)
"""
    command = [sys.executable, "-c", program, str(tmp_path / "large")]
    environment = os.environ | {"PYTHONPATH": str(PACKAGES)}
    done = subprocess.run(command, env=environment, capture_output=True, text=True, check=True)
    assert (tmp_path / "large.back").stat().st_size == 120 << 20
    assert int(done.stdout) < 80, "megabytes of memory"


SCRIPT = """
import os
import moxing as mox
local = os.environ["MA_HOME"] + "/data/" + os.environ["DEVICE_ID"]
mox.file.copy_parallel(src_url="s3://aisbench/dataset/", dst_url=local)
with open(local + "/train/data.bin") as file:
    mox.file.write("s3://aisbench/result/%s.txt" % os.environ["RANK_ID"], file.read())
mox.file.write("s3://aisbench/result/keys", os.environ["ACCESS_KEY_ID"] + " " + os.environ["SECRET_ACCESS_KEY"])
"""


def test_a_job_copies_its_data_and_its_results_with_keys_that_end_with_it(cloud: LocalCloud, mox: Any) -> None:
    with CloudClient(cloud.card()) as client:
        client.put("dataset/train/data.bin", b"pictures")
        client.put("code/train.py", SCRIPT.encode())
        job = client.create(flavor="modelarts.kat1.2xlarge")
        client.until(job, {"Completed", "Failed"})
        assert client.phase(job) == "Completed", client.log(job)
    assert [mox.file.read(f"s3://aisbench/result/{rank}.txt") for rank in (0, 1)] == ["pictures", "pictures"]
    access_key, secret_key = mox.file.read("s3://aisbench/result/keys").split()
    assert access_key != cloud.card()["access_key"]
    mox.file.set_auth(ak=access_key, sk=secret_key)
    wait_until(lambda: _is_refused(mox))  # the keys of a job that has ended are good for nothing
    mox.file.set_auth()


def _is_refused(mox: Any) -> bool:
    try:
        mox.file.read("s3://aisbench/result/keys")
    except OSError as error:
        return "InvalidAccessKeyId" in str(error)
    return False
