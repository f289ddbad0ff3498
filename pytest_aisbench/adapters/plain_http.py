"""The way to servers that have no client of their own: a session that sends nothing which nobody wrote down, answers
that are bounded, and errors that repeat no secret."""

from __future__ import annotations

import contextlib
import re
import time
from collections.abc import Iterable, Iterator
from typing import TYPE_CHECKING
from urllib.parse import urlsplit

from pytest_aisbench.domain.messages import plain
from pytest_aisbench.errors import Unreachable
from pytest_aisbench.logs import mask_libraries
from pytest_aisbench.secret import Secret
from pytest_aisbench.settings.hosts import Hosts

if TYPE_CHECKING:
    import requests

_LOOPBACK = re.compile(r"127\.[0-9.]+|localhost|::1")
_PART = 65536


def opened(base: str, ca_file: str, hosts: Hosts) -> requests.Session:
    import requests
    from requests.utils import get_environ_proxies

    from pytest_aisbench.adapters.hosts_adapter import HostsAdapter

    mask_libraries()
    session = requests.Session()
    session.mount("https://", HostsAdapter(hosts))
    session.trust_env = False  # an entry in ~/.netrc would replace the token
    session.verify = ca_file or True
    if not _LOOPBACK.fullmatch(urlsplit(base).hostname or ""):
        session.proxies.update(get_environ_proxies(base))
    return session


@contextlib.contextmanager
def reaching(place: str, table: str, secrets: Iterable[Secret]) -> Iterator[None]:
    """No answer is `Unreachable`, in words that name the place and, if certificates are the trouble, the table."""
    import requests

    try:
        yield
    except requests.exceptions.SSLError as error:
        advice = f"name the certificates to trust with ca_file in [{table}]"
        said = masked(plain(str(error), 200), secrets)
        raise Unreachable(f"{place}: no trusted connection: {said}", advice=advice) from None
    except (requests.RequestException, OSError) as error:
        raise Unreachable(f"{place}: no answer: {masked(plain(str(error), 200), secrets)}") from None


def content_of(answer: requests.Response, largest: int, seconds: float) -> bytes:
    """Bounded in size and in time, since a timeout of `requests` is one of each packet: what is longer is cut."""
    content, deadline = bytearray(), time.monotonic() + seconds
    for part in answer.iter_content(_PART):
        content += part
        if len(content) > largest or time.monotonic() > deadline:
            break
    return bytes(content)


def masked(text: str, secrets: Iterable[Secret]) -> str:
    """A server may repeat what it was sent."""
    for secret in secrets:
        if secret:
            text = text.replace(secret.reveal(), "***")
    return text
