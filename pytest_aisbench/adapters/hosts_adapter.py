"""`requests` with a `[hosts]` table: other addresses, the same names.

The pool connects to the address, while the name stays what TLS asks for and checks the certificate against, and what
the header `Host` says. Nothing is patched: other users of `requests` and `socket` in this process see no difference.
"""

from __future__ import annotations

from typing import Any
from urllib.parse import urlsplit

from requests.adapters import HTTPAdapter
from requests.utils import select_proxy

from pytest_aisbench.settings.hosts import Hosts


class HostsAdapter(HTTPAdapter):
    """Where a proxy is used, it is the one that resolves names, as it does for those of /etc/hosts."""

    def __init__(self, hosts: Hosts, **options: Any) -> None:
        self._hosts = hosts
        super().__init__(**options)

    def get_connection_with_tls_context(self, request: Any, verify: Any, proxies: Any = None, cert: Any = None) -> Any:
        if select_proxy(request.url, proxies):
            return super().get_connection_with_tls_context(request, verify, proxies, cert)
        host, pool = self.build_connection_pool_key_attributes(request, verify, cert)
        name = str(host["host"])
        if not (address := self._hosts.address(name)):
            return super().get_connection_with_tls_context(request, verify, proxies, cert)
        host = {**host, "host": address}
        return self.poolmanager.connection_from_host(**host, pool_kwargs={**pool, "server_hostname": name})

    def add_headers(self, request: Any, **_: Any) -> None:
        """The name, which the connection no longer knows; what is signed has it already."""
        request.headers.setdefault("Host", urlsplit(request.url).netloc)
