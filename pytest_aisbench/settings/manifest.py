"""The manifest of `--aisbench-require`: the cases that must have run."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

from pytest_aisbench.errors import UsageFault

_CASE = re.compile(r"\S+-[1-9][0-9]*x[1-9][0-9]*(-single)?")
_ADVICE = "one case id a line, such as resnet50-2x8; `aisbench require` writes them"


def read(path: Path) -> tuple[str, ...]:
    """Case ids, a line each, with `#` for comments; a file that ends in `.toml` has `cases = […]`.

    There are no wildcards: a manifest is there to notice what a pattern would not miss.
    """
    found = _of_toml(path) if path.suffix == ".toml" else _of_lines(path)
    for place, case in found:
        if not isinstance(case, str) or not _CASE.fullmatch(case):
            raise UsageFault(f"the manifest {path}{place}: {case!r} is no case id", advice=_ADVICE)
    if not found:
        raise UsageFault(f"the manifest {path} requires nothing", advice=_ADVICE)
    return tuple(dict.fromkeys(case for _, case in found))


def _of_lines(path: Path) -> list[tuple[str, str]]:
    try:
        text = path.read_text(encoding="utf-8-sig")
    except OSError as error:
        raise UsageFault(f"the manifest {path} cannot be read: {error.strerror}", advice=_ADVICE) from None
    except UnicodeDecodeError:
        raise UsageFault(f"the manifest {path} is not text in UTF-8", advice=_ADVICE) from None
    lines = ((f":{number}", line.partition("#")[0].strip()) for number, line in enumerate(text.splitlines(), start=1))
    return [(place, case) for place, case in lines if case]


def _of_toml(path: Path) -> list[tuple[str, Any]]:
    from pytest_aisbench.settings import places

    document = places.read(path)
    cases = document.data.get("cases", [])
    if not isinstance(cases, list) or set(document.data) - {"cases"}:
        raise UsageFault(f"the manifest {path} is not cases = […] alone", advice=_ADVICE)
    return [("", case) for case in cases]
