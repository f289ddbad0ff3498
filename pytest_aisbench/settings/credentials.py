"""Whose keys: those of the configuration, else of the environment, else of the vendor's profile file.

The three parts of temporary keys belong together, and so does the project: none is taken from two places.
"""

from __future__ import annotations

import dataclasses
import os
import stat
from collections.abc import Mapping
from pathlib import Path

from pytest_aisbench.errors import UsageFault
from pytest_aisbench.secret import Secret
from pytest_aisbench.settings.access import Access

_AK, _SK = "HUAWEICLOUD_SDK_AK", "HUAWEICLOUD_SDK_SK"
_TOKEN, _PROJECT = "HUAWEICLOUD_SDK_SECURITY_TOKEN", "HUAWEICLOUD_SDK_PROJECT_ID"
_FILE = "HUAWEICLOUD_SDK_CREDENTIALS_FILE"
_PROFILE = Path(".huaweicloud/credentials")  # in the home folder
_SECTION = "basic"

WAYS = (
    "write access_key and secret_access_key to [access] in {config}, "
    f"export {_AK} and {_SK}, or write ak and sk to [{_SECTION}] in ~/{_PROFILE}"
)


def complete(access: Access, environment: Mapping[str, str]) -> tuple[Access, tuple[str, ...]]:
    """The access with keys, where there are any, and what somebody should know about them."""
    if access.access_key or access.secret_access_key:
        return access, ()
    if access.security_token:
        raise UsageFault("access.security_token stands there without its keys", advice="write the three of them")
    if environment.get(_AK) or environment.get(_SK):
        return _of_environment(access, environment), (f"keys: {_AK}",)
    file = _profile(environment)
    if file is None:
        return access, ()
    return _of_profile(access, file), (f"keys: {file}", *exposed(file))


def exposed(file: Path) -> tuple[str, ...]:
    """A warning, if others than its owner may read a file that holds keys."""
    if os.name == "nt" or not stat.S_IMODE(file.stat().st_mode) & 0o077:
        return ()
    return (f"{file} holds keys and others may read it: chmod 600 {file}",)


def _of_environment(access: Access, environment: Mapping[str, str]) -> Access:
    for given, missing in ((_AK, _SK), (_SK, _AK)):
        if not environment.get(missing):
            raise UsageFault(f"{given} is set, and {missing} is not", advice=f"export {missing}")
    found = (environment.get(name, "") for name in (_AK, _SK, _TOKEN, _PROJECT))
    return _with(access, *found)


def _profile(environment: Mapping[str, str]) -> Path | None:
    if named := environment.get(_FILE):
        if not Path(named).is_file():
            raise UsageFault(f"{_FILE}: there is no file {named}")
        return Path(named)
    home = environment.get("HOME") or environment.get("USERPROFILE")
    file = Path(home) / _PROFILE if home else None
    return file if file and file.is_file() else None


def _of_profile(access: Access, file: Path) -> Access:
    """In the form of the vendor's SDK, whose own reader would write an id of this machine beside the file."""
    import configparser

    parser = configparser.ConfigParser(interpolation=None)
    try:
        parser.read_string(file.read_text(encoding="utf-8"))
    except (configparser.Error, UnicodeDecodeError):  # their words quote the line, which may hold a key
        raise UsageFault(f"{file}: not a profile file", advice=f"write [{_SECTION}], then ak = … and sk = …") from None
    except OSError as error:
        raise UsageFault(f"{file}: cannot be read ({error.strerror})") from None
    found = parser[_SECTION] if parser.has_section(_SECTION) else {}
    missing = [key for key in ("ak", "sk") if not found.get(key)]
    if missing:
        raise UsageFault(f"{file}: [{_SECTION}] has no {' and no '.join(missing)}", advice="write ak = … and sk = …")
    return _with(access, *(found.get(key, "") for key in ("ak", "sk", "security_token", "project_id")))


def _with(access: Access, access_key: str, secret_key: str, token: str, project: str) -> Access:
    return dataclasses.replace(
        access,
        access_key=Secret(access_key.strip()),
        secret_access_key=Secret(secret_key.strip()),
        security_token=Secret(token.strip()),
        project_id=access.project_id or project.strip(),
    )
