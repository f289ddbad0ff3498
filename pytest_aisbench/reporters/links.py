"""Addresses that a platform, or a plugin, wrote: which of them our reports link to."""

from __future__ import annotations

import re
from urllib.parse import urlsplit

_LONGEST = 2000
_PLAIN = re.compile(r"[!-~]+")
_MEANING = frozenset("\"'<>\\`")  # to HTML, or to Markdown


def web(url: str) -> str:
    """The address, or nothing: nothing that a page would execute or mistake, and no password of anybody's."""
    try:
        parts = urlsplit(url)
    except ValueError:
        return ""
    is_web = parts.scheme in {"http", "https"} and bool(parts.hostname) and parts.username is None
    return url if is_web and len(url) < _LONGEST and _PLAIN.fullmatch(url) and not _MEANING & set(url) else ""
