"""Values that must not be seen: no repr of a key, token or password shows it, and `mask` takes it out of any text."""

from __future__ import annotations

import re
from typing import Any

_HIDDEN = "***"
_SHORTEST = 4  # characters; shorter values stand in ordinary words too, and a mask there would only point at them
_values: dict[str, tuple[str, ...]] = {}
"""Every value that a Secret of this process has held, and the forms in which a text may quote it, once asked for."""

# What a header or an address calls its secret: `Authorization: Bearer …`, `?Signature=…`.
_HEADERS = re.compile(r"(?i)(\b(?:proxy-)?authorization[\"']?\s*[:=]\s*|\b(?:set-)?cookie[\"']?\s*[:=]\s*)[^\"'\n\r]+")
_PARAMETERS = re.compile(
    r"(?i)((?:\b|[-_])(?:token|signature|credential|accesskeyid|password|passwd|pwd|secret(?:_access)?_?key|access_?key)"
    r"[\"']?\s*[:=]\s*[\"']?)(?!\*\*\*)[^\s\"'&,;)}\]]+"
)
_USER = re.compile(r"(://)[^/\s@:]*:[^/\s@]*@")
_LIKE_A_KEY = re.compile(r"(?=.*[0-9])(?=.*[A-Za-z])[A-Za-z0-9+=_-][A-Za-z0-9+/=_.-]{15,}")
_LEAST_CUT = 6  # characters of a value that was cut: fewer are no help to guess it


class Secret:
    """Holds a key, token or password; only `reveal()` gives it out, where a request or another program needs it."""

    __slots__ = ("_value",)

    def __init__(self, value: str) -> None:
        self._value = value
        if len(value) >= _SHORTEST:
            _values.setdefault(value, ())

    def reveal(self) -> str:
        return self._value

    def __bool__(self) -> bool:
        return bool(self._value)

    def __repr__(self) -> str:
        return _HIDDEN if self._value else "''"

    __str__ = __repr__

    def __format__(self, spec: str) -> str:
        return format(repr(self), spec)

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Secret) and other._value == self._value

    def __hash__(self) -> int:
        return hash((Secret, self._value))

    def __reduce__(self) -> Any:
        raise TypeError("a Secret is not pickled")


NO_SECRET = Secret("")


def mask(text: str) -> str:
    """The text with `***` in place of every value that a Secret has held, and of what headers and addresses call so."""
    for value in sorted(_values, key=len, reverse=True):  # the longest first: one may be a part of another
        if not _values[value]:
            _values[value] = _forms(value)
        for form in _values[value]:
            text = text.replace(form, _HIDDEN)
    if _CUT in text:
        text = _mask_cut(text)
    text = _HEADERS.sub(rf"\1{_HIDDEN}", text)
    text = _PARAMETERS.sub(rf"\1{_HIDDEN}", text)
    return _USER.sub(rf"\1{_HIDDEN}@", text)


def quoted(text: str) -> str:
    """The text as a message about wrong input may quote it: not a key that was typed in the wrong place."""
    if _LIKE_A_KEY.fullmatch(text):
        return f"a text of {len(text)} characters (it may be a key, so it is not shown)"
    return repr(_USER.sub(rf"\1{_HIDDEN}@", text))


_CUT = "..."


def _mask_cut(text: str) -> str:
    """Mask what is left of values in the middle of which a repr was cut: `'AKIAQ3...`, `...Xy4'`."""
    for value in _values:
        if value[:_LEAST_CUT] in text or value[-_LEAST_CUT:] in text:
            for length in range(len(value) - 1, _LEAST_CUT - 1, -1):
                text = text.replace(value[:length] + _CUT, _HIDDEN + _CUT).replace(
                    _CUT + value[-length:], _CUT + _HIDDEN
                )
    return text


def _forms(value: str) -> tuple[str, ...]:
    """As itself, in addresses, in JSON and reprs, in hexadecimal, and in base64 wherever in a longer text it stands."""
    import base64
    import json
    from urllib.parse import quote, quote_plus

    raw = value.encode("utf-8", "surrogatepass")
    quoted = [quote(raw, safe=""), quote(raw), quote_plus(raw), json.dumps(value)[1:-1], repr(value)[1:-1]]
    encoded = [raw.hex(), raw.hex().upper()]
    for offset in range(3):  # base64 takes three bytes at a time: how it begins depends on what stands before
        aligned = base64.b64encode(b"?" * offset + raw).decode()[offset + (offset > 0) : -4]
        encoded += [aligned, aligned.replace("+", "-").replace("/", "_")]
    forms = {value, *quoted, *(form for form in encoded if len(form) >= 2 * _SHORTEST)}
    return tuple(sorted(forms, key=len, reverse=True))


_USER_OF_ADDRESS = re.compile(r"//[^/\s@]*@")


def bare_address(text: str, *, is_address: bool) -> str:
    """The text without user names and passwords in addresses; of one that `is_address`, without its query too."""
    bare = _USER_OF_ADDRESS.sub("//", text)
    return bare.partition("?")[0] if is_address else bare
