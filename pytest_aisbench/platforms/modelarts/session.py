"""Sends signed requests to ModelArts, repeats those that do no harm twice, and returns JSON or raises our errors."""

from __future__ import annotations

import threading
from collections.abc import Callable, Collection, Mapping
from typing import TYPE_CHECKING, Any
from urllib.parse import quote

from pytest_aisbench.config.access import NO_HOSTS, Hosts
from pytest_aisbench.errors import AisbenchError, BadAnswer, Refused, UsageFault
from pytest_aisbench.net import retry
from pytest_aisbench.net.http import ServerClock
from pytest_aisbench.secret import NO_SECRET, Secret

if TYPE_CHECKING:
    from pytest_aisbench.net.huawei import Answer
    from pytest_aisbench.platforms.modelarts.vendor_http import VendorHttp

_PROJECT = "{project_id}"
_LOADING = threading.Lock()  # two sessions may load the SDK at once, and pytest's importer is not thread-safe
_PATIENCE_S = 60.0
_TIMEOUT = (10.0, 60.0)  # to connect, to wait for the next byte


def load_vendor_http() -> type[VendorHttp]:
    """The class that sends requests with the vendor's SDK, which the first call imports."""
    with _LOADING:
        from pytest_aisbench.platforms.modelarts.vendor_http import VendorHttp

        return VendorHttp


class Session:
    """Requests of one account. All threads share one HTTP client; the first call opens it."""

    def __init__(
        self,
        endpoint: str,
        access_key: Secret,
        secret_key: Secret,
        *,
        region: str = "",
        project_id: str = "",
        iam_endpoint: str = "",
        ca_file: str = "",
        security_token: Secret = NO_SECRET,
        hosts: Hosts = NO_HOSTS,
        patience_s: float = _PATIENCE_S,
        timeout: tuple[float, float] = _TIMEOUT,
    ) -> None:
        self.endpoint = endpoint.rstrip("/")
        self.region = region
        self._iam_endpoint = iam_endpoint.rstrip("/")
        self._keys = (access_key, secret_key, security_token)
        self._ca_file = ca_file
        self._hosts = hosts
        self.patience_s = patience_s
        self._timeout = timeout
        self._project_id = project_id
        self._clock = ServerClock()
        self._keys_were_accepted = False
        self._client: VendorHttp | None = None
        self._lock = threading.RLock()

    def __repr__(self) -> str:
        return f"<Session {self.endpoint} as {self._keys[0]}>"

    @property
    def project_id(self) -> str:
        """As configured, else the id that IAM has for the region's project."""
        return self._project(self.patience_s, None)

    def call(
        self,
        method: str,
        path: str,
        body: Mapping[str, Any] | None = None,
        query: Mapping[str, Any] | None = None,
        *,
        patience_s: float | None = None,
        timeout_s: float | None = None,
        ignore: Collection[str] = (),
    ) -> dict[str, Any]:
        """The answer of the service. Fills in `{project_id}` in the path.

        Sends an unanswered or throttled request again for `patience_s`: by default a GET for a minute, and others
        never, since the first may have been carried out. The same for refused keys, if the service accepted them
        before. `timeout_s` limits each attempt. An error with a code in `ignore` is an empty answer.
        """
        if "?" in path:
            raise UsageFault(f"{path}: a query in the path breaks the signature", advice="pass it as query={…}")
        patience_s = retry.patience_for(method, patience_s, self.patience_s)
        project_id = self._project(patience_s or self.patience_s, timeout_s) if _PROJECT in path else ""
        url = self.endpoint + path.replace(_PROJECT, quote(project_id, safe=""))
        return self._send_patiently(
            lambda http: http.send(method, url, body, query, project_id=project_id, timeout_s=timeout_s),
            patience_s,
            ignore,
        )

    def close(self) -> None:
        with self._lock:
            if self._client:
                self._client.close()
            self._client = None

    def _send_patiently(
        self, send: Callable[[VendorHttp], Answer], patience_s: float, ignore: Collection[str] = ()
    ) -> dict[str, Any]:
        answer: Answer | None = None

        def attempt() -> dict[str, Any]:
            nonlocal answer
            answer = None
            answer = self._send(send)
            content = {} if answer.code in ignore else answer.read()
            self._keys_were_accepted = True
            return content

        def is_transient(error: AisbenchError) -> bool:
            return error.retryable or (self._keys_were_accepted and answer is not None and answer.doubts_keys)

        return retry.call(attempt, patience_s=patience_s, is_transient=is_transient)

    def _send(self, send: Callable[[VendorHttp], Answer]) -> Answer:
        """Send once; and again if the service refused the date: then it carried out nothing, not even a create."""
        ahead = self._clock.ahead
        answer = send(self._http())
        if answer.doubts_keys and self._clock.explains_refusal(answer.date, ahead):
            answer = send(self._http())
        return answer

    def _http(self) -> VendorHttp:
        with self._lock:
            if self._client is None:
                self._client = load_vendor_http()(
                    *self._keys, ca_file=self._ca_file, hosts=self._hosts, timeout=self._timeout, clock=self._clock
                )
            return self._client

    def _project(self, patience_s: float, timeout_s: float | None) -> str:
        with self._lock:
            if not self._project_id:
                self._project_id = self._ask_iam(patience_s, timeout_s)
            return self._project_id

    def _ask_iam(self, patience_s: float, timeout_s: float | None) -> str:
        advice = "write project_id to [access]"
        if not (self._iam_endpoint and self.region):
            raise UsageFault(
                "access.project_id is missing, and without region_name it cannot be looked up", advice=advice
            )
        url = f"{self._iam_endpoint}/v3/projects"
        query = {"name": self.region}
        answer = self._send_patiently(lambda http: http.send("GET", url, query=query, timeout_s=timeout_s), patience_s)
        try:
            ids = [project["id"] for project in answer["projects"] if project["name"] == self.region]
        except (KeyError, TypeError):
            raise BadAnswer(f"{url} did not list projects", advice=advice) from None
        if len(ids) != 1:
            raise Refused(f"this account has no project in region {self.region}", advice=advice)
        return str(ids[0])
