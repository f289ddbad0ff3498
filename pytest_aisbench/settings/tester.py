"""The `[tester]` table of `aisbench.toml`: where results are uploaded, with which token, and the papers beside them."""

from __future__ import annotations

import json
import re
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any

from pytest_aisbench.errors import UsageFault
from pytest_aisbench.secret import NO_SECRET, Secret
from pytest_aisbench.settings.access import LOOPBACK
from pytest_aisbench.settings.hosts import NO_HOSTS, Hosts

if TYPE_CHECKING:
    from pytest_aisbench.settings import places

NONE = "none"
SECRETS = ("token",)
_KEYS = ("url", "token", "ca_file", "testid", "config", "system")
_WEB = re.compile(r"(https?)://(\[[0-9a-fA-F:]+\]|[^\s/?#@:]+)(:[0-9]+)?(/[^\s?#]*)?")
_TESTID = re.compile(r"[A-Za-z0-9][A-Za-z0-9_.:-]{0,127}")
_SECRET_WORDS = re.compile(r"token|passw|secret|credential|(^|_)(ak|sk|key)($|_)|access_?key", re.IGNORECASE)
# Layout 1.0 of a package, then 2.0.
_PAPERS = {"config": ("code/config.json", "config/config.json"), "system": ("code/system.json", "config/system.json")}


@dataclass(frozen=True)
class TesterAccess:
    """The table, read: `config` and `system` are what the files of these names hold, without their secrets."""

    url: str = ""
    token: Secret = NO_SECRET
    ca_file: str = ""
    testid: str = ""
    config: Mapping[str, Any] = field(default_factory=dict)
    system: Mapping[str, Any] = field(default_factory=dict)
    hosts: Hosts = NO_HOSTS  # a table of its own

    def token_for(self, address: str) -> Secret:
        """The token is for the Tester it was written beside, and for no other."""
        return self.token if not self.url or self.url.rstrip("/") == address.rstrip("/") else NO_SECRET


def tester_address(text: str) -> str:
    """An address of a Tester; empty for `none`."""
    if text == NONE:
        return ""
    if match := _WEB.fullmatch(text):
        if match[1] == "http" and not LOOPBACK.fullmatch(match[2]):
            raise ValueError(f"{text!r} would send results and token over plain http: write https")
        return text
    if re.fullmatch(r"file:///[^?#]*|stubs:/.*", text):
        return text
    raise ValueError(f"{text!r} is none of https://tester.example/, file:///folder, stubs:/package, {NONE}")


def read_tester(
    document: places.Document | None, environment: Mapping[str, str], package: Path | None, *, used: bool
) -> tuple[TesterAccess, frozenset[str]]:
    """The `[tester]` table, and the names that were taken from the environment. Papers that it does not name are those
    of the package. Where no Tester is `used`, a name that is not set is no error, and no paper is read."""
    values: dict[str, Any] = {}
    taken: frozenset[str] = frozenset()
    if document and isinstance(document.data.get("tester"), dict):  # it may be just an address
        texts, taken = document.texts("tester", _KEYS, environment, used=used)
        values = {key: _value(document, key, text, used=used) for key, text in texts.items()}
    for key, places_ in _PAPERS.items() if used and package else ():
        assert package is not None
        found = next((package / place for place in places_ if (package / place).is_file()), None)
        if key not in values and found:
            values[key] = paper(found)
    if not values.get("testid"):
        values["testid"] = _testid(values.get("config", {}))
    return TesterAccess(**values), taken


def _value(document: places.Document, key: str, text: str, *, used: bool) -> Any:
    if key in SECRETS:
        return Secret(text)
    if key == "testid" and text and not _TESTID.fullmatch(text):
        advice = "letters, digits, '.', '_', ':' and '-', 128 at most"
        raise document.fault(f"tester.testid {text!r} is not the name of a test", "tester", key, advice=advice)
    if key in {"ca_file", "config", "system"} and text:
        file = document.path.parent / Path(text).expanduser()
        if used and not file.is_file():
            raise document.fault(f"tester.{key}: there is no file {file}", "tester", key)
        if key == "ca_file":
            return str(file)
        return paper(file) if used else {}
    return {} if key in {"config", "system"} else text


def _testid(config: Mapping[str, Any]) -> str:
    told = str(config.get("testid", ""))
    if told and not _TESTID.fullmatch(told):
        raise UsageFault(f"config.json: testid {told[:40]!r} is not the name of a test", advice="see [tester] testid")
    return told


def paper(file: Path) -> dict[str, Any]:
    """A JSON object without what looks like a key, a token or a password: papers leave the house."""
    try:
        data = json.loads(file.read_text(encoding="utf-8-sig"), parse_constant=_no_constant)
    except OSError as error:
        raise UsageFault(f"{file}: cannot be read ({error.strerror})") from None
    except (ValueError, RecursionError) as error:
        raise UsageFault(f"{file}: not JSON: {error}") from None
    if not isinstance(data, dict):
        raise UsageFault(f"{file}: not a JSON object")
    clean: dict[str, Any] = _clean(data)
    return clean


def _no_constant(word: str) -> None:
    raise ValueError(f"{word} is no number of JSON")


def _clean(value: Any) -> Any:
    if isinstance(value, dict):
        return {key: _clean(item) for key, item in value.items() if not _SECRET_WORDS.search(key)}
    return [_clean(item) for item in value] if isinstance(value, list) else value
