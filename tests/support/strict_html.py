"""HTML that a parser of the standard reads without an error: no tag ends too early, no attribute stands twice."""

from __future__ import annotations

import re
from collections.abc import Iterator
from pathlib import Path

import html5lib
from report_page import page_data


def errors(text: str) -> list[str]:
    return _errors(text, whole=True)


def report_errors(file: Path) -> list[str]:
    """Of pytest-html's page, and of the rows and pictures that its script puts there, which are ours."""
    text = file.read_text(encoding="utf-8")
    # The parser is older than <template>; those are pytest-html's own.
    problems = errors(re.sub(r"<template.*?</template>", "", text, flags=re.DOTALL))
    return problems + [error for part in _parts(file) for error in _errors(part, whole=False)]


def _parts(file: Path) -> Iterator[str]:
    for tests in page_data(file)["tests"].values():
        for test in tests:
            yield f"<table><tbody><tr>{''.join(test['resultsTableRow'])}</table>"
            yield test["details"]


def _errors(text: str, *, whole: bool) -> list[str]:
    parser = html5lib.HTMLParser()
    (parser.parse if whole else parser.parseFragment)(text)
    lines = text.splitlines()
    return [f"{code} {data}: {lines[min(line, len(lines)) - 1][:120]}" for (line, _), code, data in parser.errors]
