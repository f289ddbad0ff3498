"""What report.html holds: pytest-html's own data, and the details of each case, which the browser puts in its row."""

from __future__ import annotations

import base64
import html
import json
import re
import zlib
from pathlib import Path
from typing import Any

_NUMBER = re.compile(r"data-case=(\d+)")
_DETAILS = re.compile(r"<script type='([^']+)' class='aisbench-details' data-case='(\d+)'>(.*?)</script>", re.DOTALL)
_SAMPLE = re.compile(r"<script type='text/html' class='aisbench-sample'>(.*?)</script>", re.DOTALL)


def page_data(file: Path) -> dict[str, Any]:
    """The data that pytest-html's script reads; every row has the `details` that the browser shows below it."""
    text = file.read_text(encoding="utf-8")
    blob = re.search(r"data-jsonblob='([^']*)'", text)
    assert blob
    data: dict[str, Any] = json.loads(html.unescape(blob[1]))
    details = page_details(text)
    for rows in data["tests"].values():
        for row in rows:
            number = _NUMBER.search("".join(row["resultsTableRow"]))
            row["details"] = details[number[1]] if number else ""
    return data


def page_details(text: str) -> dict[str, str]:
    """The details of each case, by the number of its row; unpacked as a browser does it, without a word for samples."""
    sample = _SAMPLE.search(text)
    words = sample[1].encode()[-32_768:] if sample else b""
    size = len(words).to_bytes(2, "little")
    stored = b"\0" + size + bytes(255 - each for each in size) + words
    return {
        number: zlib.decompress(stored + base64.b64decode(inside), -15)[len(words) :].decode()
        if kind == "application/deflate"
        else inside
        for kind, number, inside in _DETAILS.findall(text)
    }
