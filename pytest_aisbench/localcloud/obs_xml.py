"""The XML that OBS speaks, written by hand because a thousand keys are listed at a time."""

from __future__ import annotations

import time
from typing import TYPE_CHECKING, Any
from urllib.parse import quote

from pytest_aisbench.localcloud.message import Response
from pytest_aisbench.localcloud.objects import ObjectError

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable

    from pytest_aisbench.localcloud.obs_call import Dialect

MIME = "application/xml"
_HEAD = '<?xml version="1.0" encoding="UTF-8" standalone="yes"?>\n'
_ESCAPES = str.maketrans({"&": "&amp;", "<": "&lt;", ">": "&gt;", "\r": "&#13;"})


def text(name: str, value: object) -> str:
    return f"<{name}>{str(value).translate(_ESCAPES)}</{name}>"


def element(name: str, inner: Iterable[str]) -> str:
    return f"<{name}>{''.join(inner)}</{name}>"


def document(name: str, dialect: Dialect | None, inner: Iterable[str]) -> bytes:
    space = f' xmlns="{dialect.namespace}"' if dialect else ""
    return f"{_HEAD}<{name}{space}>{''.join(inner)}</{name}>".encode()


def xml_response(content: bytes) -> Response:
    return Response(200, content, {"Content-Type": MIME})


def stamp(moment: float) -> str:
    return time.strftime("%Y-%m-%dT%H:%M:%S", time.gmtime(moment)) + f".{int(moment % 1 * 1000):03d}Z"


def encoder(encoding: str | None) -> Callable[[str], str]:
    """How keys are written, as the parameter encoding-type asks: XML has no place for control characters."""
    if encoding is None:
        return lambda value: value
    if encoding.lower() != "url":
        raise ObjectError("InvalidArgument", "Invalid Encoding Method specified in Request")
    return lambda value: quote(value, safe="/")


def parse(content: bytes) -> Any:
    """The root element; names without namespaces, since clients differ in whether they send one."""
    from xml.etree import ElementTree as ET

    try:
        root = ET.fromstring(content)  # noqa: S314 (signed by the account that would harm itself)
    except ET.ParseError as error:
        raise ObjectError("MalformedXML", "The XML you provided was not well-formed.") from error
    for node in root.iter():
        node.tag = node.tag.rpartition("}")[2]
    return root
