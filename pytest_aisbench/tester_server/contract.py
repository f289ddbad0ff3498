"""The upload contract: what a body must be, checked by the server's own reading of it."""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Mapping
from typing import Any, NoReturn

from pytest_aisbench.domain.upload import ATTACHMENTS, RESULTS, RUNS, SCHEMA
from pytest_aisbench.domain.verdict import Ruling

KINDS = (RESULTS, ATTACHMENTS, RUNS)
_NAME = 300
_KEY = re.compile(r"[!-~]{1,200}")
_TESTID = re.compile(r"[A-Za-z0-9][A-Za-z0-9_.:-]{0,127}")
_STATUS = ("OK", "FAILED")
_RULINGS = (None, *(ruling.value for ruling in Ruling))  # no set: what is sent may have no hash
_WANTED: Mapping[str, Mapping[str, type]] = {
    RESULTS: {
        "config": dict,
        "status": str,
        "train_result_info": dict,
        "measured": dict,
        "system": dict,
        "artifacts": list,
        "job": dict,
    },
    ATTACHMENTS: {"name": str},
    RUNS: {"platform": str, "unjudged": dict, "missing": list},
}
_SPELT = {dict: "an object", list: "a list", str: "text", int: "a whole number"}
_LARGEST = 2**53  # whole numbers that every reader of JSON reads alike
_ABSURD = 1e18


class Unfit(ValueError):
    """What is wrong with a body, and where."""

    def __init__(self, field: str, message: str) -> None:
        super().__init__(message)
        self.field = field


def is_key(text: str) -> bool:
    return bool(_KEY.fullmatch(text))


def read(content: bytes, testid: str, kind: str) -> dict[str, Any]:
    """The body, if it is one that may be stored."""
    try:
        body = json.loads(content.decode(), parse_constant=_no_number)
    except (ValueError, RecursionError) as error:
        raise Unfit("", f"the body is not JSON: {str(error)[:100]}") from None
    if not isinstance(body, dict) or body.get("schema") != SCHEMA:
        raise Unfit("schema", f"the body is not a {SCHEMA} object")
    if body.get("testid") != testid:
        raise Unfit("testid", "testid of the body and of the path differ")
    if not _TESTID.fullmatch(testid):
        raise Unfit("testid", "testid: letters, digits, '.', '_', ':' and '-', 128 at most")
    _name(body, "run_id")
    _whole(body, "attempt", least=1)
    for name, kind_ in _WANTED[kind].items():
        _is(body, name, kind_)
    _CHECKS[kind](body)
    return body


def _result(body: dict[str, Any]) -> None:
    if body["status"] not in _STATUS:
        raise Unfit("status", f"status is none of {', '.join(_STATUS)}")
    for name, told in body["measured"].items():
        if not isinstance(told, dict) or (told.get("value") is None) == (told.get("null_reason") is None):
            raise Unfit(f"measured.{name}", f"measured.{name} needs a value or a null_reason, and not both")
    case = body.get("case")
    if case is None:  # what ais-bench-stubs ran by itself has none
        return
    _is(body, "case", dict)
    for name in ("id", "workload", "mode"):
        _name(case, name, "case.")
    for name in ("nodes", "devices_per_node"):
        _whole(case, name, "case.", least=1)
    if case.get("verdict") not in _RULINGS:
        raise Unfit("case.verdict", f"case.verdict is none of {', '.join(filter(None, _RULINGS))}")
    if (case.get("verdict") == Ruling.PASSED.value) != (body["status"] == "OK"):
        raise Unfit("status", "status and case.verdict contradict each other")


def _attachment(body: dict[str, Any]) -> None:
    _name(body, "name")


def _run(body: dict[str, Any]) -> None:
    if (number(body.get("card_hours")) or 0.0) < 0:
        raise Unfit("card_hours", "card_hours is below 0")
    if body.get("exit_code") is not None:
        _whole(body, "exit_code", least=0)
    for case, reason in body["unjudged"].items():
        if not isinstance(reason, str):
            raise Unfit("unjudged", f"unjudged.{case[:80]} is not text")
    if not all(isinstance(case, str) for case in body["missing"]):
        raise Unfit("missing", "missing is not a list of cases")


_CHECKS: Mapping[str, Callable[[dict[str, Any]], None]] = {RESULTS: _result, ATTACHMENTS: _attachment, RUNS: _run}


def _is(body: Mapping[str, Any], name: str, kind: type, within: str = "") -> None:
    if not isinstance(body.get(name), kind):
        raise Unfit(within + name, f"{within}{name} is missing, or not {_SPELT[kind]}")


def _name(body: Mapping[str, Any], name: str, within: str = "") -> None:
    """Something that stands in addresses and in tables."""
    _is(body, name, str, within)
    text = body[name]
    if not text or len(text) > _NAME or not text.isprintable() or "/" in text or text in {".", ".."}:
        raise Unfit(within + name, f"{within}{name}: 1 to {_NAME} printable characters, none of them '/'")


def _whole(body: Mapping[str, Any], name: str, within: str = "", *, least: int) -> None:
    _is(body, name, int, within)
    if isinstance(body[name], bool) or not least <= body[name] <= _LARGEST:
        raise Unfit(within + name, f"{within}{name} is no whole number from {least} on")


def _no_number(word: str) -> NoReturn:
    raise ValueError(f"{word} is no number of JSON")


def number(value: Any) -> float | None:
    """A finite number, or none at all: whatever else a body holds is kept, and not drawn."""
    if isinstance(value, bool) or not isinstance(value, (int, float)):
        return None
    try:
        found = float(value)
    except OverflowError:
        return None
    return found if abs(found) < _ABSURD else None  # nan and inf are not either
