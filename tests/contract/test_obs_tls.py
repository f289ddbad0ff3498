"""The OBS client trusts a certificate only if a known authority signed it for the host of the request."""

from __future__ import annotations

import ssl
import threading
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

import pytest
from centre import Authority

from pytest_aisbench.errors import UsageFault
from pytest_aisbench.model.job import StoreUrl
from pytest_aisbench.model.ports import Upload
from pytest_aisbench.secret import Secret
from pytest_aisbench.stores.obs import Obs

URL = StoreUrl("bucket", "object")


class Handler(BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"

    def do_HEAD(self) -> None:
        self.server.asked += 1  # type: ignore[attr-defined]
        self.send_response(200)
        self.send_header("Content-Length", "4")
        self.send_header("x-obs-request-id", "1")
        self.end_headers()

    do_PUT = do_HEAD  # noqa: N815

    def log_message(self, *_: Any) -> None:
        pass


class Server(ThreadingHTTPServer):
    daemon_threads = True
    asked = 0

    def handle_error(self, *_: Any) -> None:
        """A client that does not trust us hangs up in the middle of the handshake."""


@pytest.fixture(scope="module")
def certificates(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """`ca.pem` signed `address.pem` for 127.0.0.1 and `name.pem` for another host; `stranger.pem` signed nothing."""
    folder = tmp_path_factory.mktemp("certificates")
    authority = Authority(folder)
    authority.certificate("address", "IP:127.0.0.1")
    authority.certificate("name", "DNS:obs.example.com")
    Authority(folder, "stranger")
    return folder


@pytest.fixture
def server(request: pytest.FixtureRequest, certificates: Path) -> Iterator[Server]:
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.load_cert_chain(certificates / f"{request.param}.pem", certificates / f"{request.param}.key")
    with Server(("127.0.0.1", 0), Handler) as server:
        # The handshake in the thread of the request, so that a client that hangs up harms only itself.
        server.socket = context.wrap_socket(server.socket, server_side=True, do_handshake_on_connect=False)
        threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.01}, daemon=True).start()
        yield server
        server.shutdown()


def head(server: Server, ca_file: Path | str) -> int:
    store = Obs(f"https://127.0.0.1:{server.server_port}", Secret("a"), Secret("b"), ca_file=str(ca_file), patience=5.0)
    try:
        head = store.head(URL)
        return head.size if head else -1
    finally:
        store.close()


@pytest.mark.parametrize("server", ["address"], indirect=True)
def test_the_right_host_of_a_known_authority_is_trusted(server: Server, certificates: Path) -> None:
    assert head(server, certificates / "ca.pem") == 4


@pytest.mark.parametrize("server", ["name"], indirect=True)
def test_another_host_is_not_trusted(server: Server, certificates: Path) -> None:
    with pytest.raises(UsageFault, match=r"not trusted.*127\.0\.0\.1.*ca_file"):
        head(server, certificates / "ca.pem")
    assert server.asked == 0


@pytest.mark.parametrize("server", ["address"], indirect=True)
@pytest.mark.parametrize("ca_file", ["stranger.pem", ""])
def test_an_unknown_authority_is_not_trusted(server: Server, certificates: Path, ca_file: str) -> None:
    with pytest.raises(UsageFault, match=r"not trusted.*ca_file"):
        head(server, certificates / ca_file if ca_file else "")
    assert server.asked == 0


@pytest.mark.slow
@pytest.mark.parametrize("server", ["address"], indirect=True)
def test_nobody_else_trusts_it_when_many_files_are_uploaded(server: Server, tmp_path: Path) -> None:
    """obstore, where it is installed, sends the first of them."""
    (tmp_path / "a").write_bytes(b"1")
    store = Obs(f"https://127.0.0.1:{server.server_port}", Secret("a"), Secret("b"), patience=5.0)
    try:
        with pytest.raises(UsageFault, match=r"not trusted.*ca_file"):
            store.upload([Upload(str(tmp_path / "a"), StoreUrl("bucket", str(number)), 1) for number in range(100)])
    finally:
        store.close()
    assert server.asked == 0


def test_a_ca_file_that_is_none_is_refused(tmp_path: Path) -> None:
    (tmp_path / "ca.pem").write_text("no certificate")
    for ca_file in (tmp_path / "ca.pem", tmp_path / "missing.pem"):
        with pytest.raises(UsageFault, match=str(ca_file)):
            Obs("https://127.0.0.1:9", Secret("a"), Secret("b"), ca_file=str(ca_file))
