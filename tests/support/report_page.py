"""What report.html holds: pytest-html's own data, and the details of each case, which the browser puts in its row."""

from __future__ import annotations

import html
import json
import re
from pathlib import Path
from typing import Any

_ROOM = re.compile(r"<div class='aisbench-details' data-case='(\d+)'></div>")
_DETAILS = re.compile(r"<script type='text/html' class='aisbench-details' data-case='(\d+)'>(.*?)</script>", re.DOTALL)


def page_data(file: Path) -> dict[str, Any]:
    """The data that pytest-html's script reads, with the details where the browser shows them."""
    text = file.read_text(encoding="utf-8")
    blob = re.search(r'data-jsonblob="([^"]*)"', text)
    assert blob
    data: dict[str, Any] = json.loads(html.unescape(blob[1]))
    details = dict(_DETAILS.findall(text))
    for rows in data["tests"].values():
        for row in rows:
            for extra in row["extras"]:
                extra["content"] = _ROOM.sub(lambda room: details[room[1]], str(extra["content"]))
    return data
