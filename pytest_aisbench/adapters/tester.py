"""The ways to a Tester, by the scheme of its address."""

from __future__ import annotations

from pathlib import Path
from urllib.parse import unquote, urlsplit

from pytest_aisbench.domain.upload import Transport
from pytest_aisbench.settings.tester import TesterAccess


def transport(address: str, access: TesterAccess) -> Transport:
    """Nothing is opened before the first parcel is sent."""
    scheme, _, rest = address.partition(":")
    if scheme == "file":
        from pytest_aisbench.adapters.tester_file import Folder

        return Folder(Path(unquote(urlsplit(address).path)))
    if scheme == "stubs":
        from pytest_aisbench.adapters.stubs import Stubs

        return Stubs(Path(rest))
    from pytest_aisbench.adapters.tester_http import Http

    return Http(address, access.token_for(address), access.ca_file, access.hosts)
