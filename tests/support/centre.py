"""A computing centre: https before a local cloud, under names that nobody resolves, by an authority of its own."""

from __future__ import annotations

import json
import select
import shutil
import socket
import socketserver
import ssl
import subprocess
import threading
import urllib.request
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

import pytest

DOMAIN = "centre.example"
SERVICES = ("iam", "obs", "modelarts")
_NEW = ("req", "-x509", "-newkey", "ec", "-pkeyopt", "ec_paramgen_curve:prime256v1", "-nodes", "-days", "2")


class Authority:
    """`pem` is what its clients trust."""

    def __init__(self, folder: Path, name: str = "ca") -> None:
        version = shutil.which("openssl") and subprocess.check_output(["openssl", "version"], text=True)
        if not version or not version.startswith("OpenSSL 3"):
            pytest.skip("openssl 3 is not installed")
        self._folder, self._name = folder, name
        self.pem = folder / f"{name}.pem"
        self._make(name, "-addext", "keyUsage=critical,keyCertSign")

    def certificate(self, name: str, hosts: str) -> Path:
        """For `hosts` such as `DNS:obs.example,IP:127.0.0.1`; its key is beside it."""
        signed = ("-CA", self.pem.name, "-CAkey", f"{self._name}.key", "-addext", f"subjectAltName={hosts}")
        self._make(name, *signed, "-addext", "basicConstraints=critical,CA:FALSE")
        return self._folder / f"{name}.pem"

    def _make(self, name: str, *arguments: str) -> None:
        files = ("-keyout", f"{name}.key", "-out", f"{name}.pem")
        command = ["openssl", *_NEW, "-subj", f"/CN={name}", *arguments, *files]
        subprocess.run(command, check=True, capture_output=True, cwd=self._folder)


class Front(socketserver.ThreadingTCPServer):
    """Takes TLS at one port, and hands on what comes in plain to the port of the name that was asked for."""

    allow_reuse_address = True

    def __init__(
        self, certificate: Path, ports: Mapping[str, int], host: str = "127.0.0.1", *, tunnel: bool = False
    ) -> None:
        """`tunnel`: ask for one first, since a local cloud serves no other name than those of loopback."""
        self.address_family = socket.AF_INET6 if ":" in host else socket.AF_INET
        super().__init__((host, 0), _Carrier)
        self.port = self.server_address[1]
        self.ports = ports
        self.tunnel = tunnel
        self.asked: list[str] = []
        """The name of every connection that was trusted."""
        self.ended = threading.Event()
        self.context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
        self.context.load_cert_chain(certificate, certificate.with_suffix(".key"))
        self.context.sni_callback = lambda connection, name, _: setattr(connection, "asked_for", name)

    @contextmanager
    def serving(self) -> Iterator[Front]:
        with self:
            thread = threading.Thread(target=self.serve_forever, kwargs={"poll_interval": 0.01})
            thread.start()
            yield self
            self.ended.set()
            self.shutdown()
            thread.join()

    def handle_error(self, *_: Any) -> None:
        """A client that does not trust us hangs up in the middle of the handshake."""


class _Carrier(socketserver.BaseRequestHandler):
    server: Front

    def handle(self) -> None:
        with self.server.context.wrap_socket(self.request, server_side=True) as client:
            name = getattr(client, "asked_for", None) or ""
            port = next((port for suffix, port in self.server.ports.items() if f".{name}".endswith(f".{suffix}")), 0)
            if port:
                with socket.create_connection(("127.0.0.1", port)) as service:
                    if self.server.tunnel:
                        service.sendall(f"CONNECT {name}:443 HTTP/1.1\r\n\r\n".encode())
                        assert service.recv(4096).startswith(b"HTTP/1.1 200")
                    self._carry(client, service, name)

    def _carry(self, client: ssl.SSLSocket, service: socket.socket, name: str) -> None:
        other = {client: service, service: client}
        answered = False
        while not self.server.ended.is_set():
            ready = [client] if client.pending() else select.select([client, service], [], [], 0.05)[0]
            for source in ready:
                data = source.recv(65536)
                if not data:
                    return
                if not answered:  # by now it has seen our certificate, and still speaks to us
                    self.server.asked.append(name)
                    answered = True
                other[source].sendall(data)


def front_of(authority: Authority, cloud: Mapping[str, str]) -> Front:
    """The services of a local cloud as `iam.centre.example` and so on, and its buckets below `obs.centre.example`."""
    certificate = authority.certificate("centre", f"DNS:*.{DOMAIN},DNS:*.obs.{DOMAIN}")
    ports = {f"{name}.{DOMAIN}": urlsplit(cloud[f"{name}_endpoint"]).port or 0 for name in SERVICES}
    return Front(certificate, ports, tunnel=True)


def temporary_keys(cloud: Mapping[str, str]) -> dict[str, str]:
    """`access`, `secret` and `securitytoken`, which IAM gives out for a quarter of an hour."""

    def post(path: str, identity: Any, **headers: str) -> Any:
        body = json.dumps({"auth": {"identity": identity}}).encode()
        request = urllib.request.Request(cloud["iam_endpoint"] + path, body, headers)
        return urllib.request.build_opener(urllib.request.ProxyHandler({})).open(request, timeout=10)

    keys = {"access": {"key": cloud["access_key"]}, "secret": {"key": cloud["secret_key"]}}
    with post("/v3/auth/tokens", {"methods": ["hw_ak_sk"], "hw_ak_sk": keys}) as answer:
        token = answer.headers["X-Subject-Token"]
    wish = {"methods": ["token"], "token": {"duration_seconds": 900}}
    with post("/v3.0/OS-CREDENTIAL/securitytokens", wish, **{"X-Auth-Token": token}) as answer:
        return json.load(answer)["credential"]  # type: ignore[no-any-return]
