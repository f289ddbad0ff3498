"""What CI servers read beside JUnit: `metrics.txt`, `metrics.csv`, `summary.md`, and GitHub's own two ways to tell."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

import pytest

from pytest_aisbench.domain.entry import CaseEntry, RunEntry
from pytest_aisbench.domain.messages import plain
from pytest_aisbench.domain.verdict import Ruling
from pytest_aisbench.report.text import worst_first, write_text
from pytest_aisbench.reporters import markdown, openmetrics
from pytest_aisbench.reporters.facts import missing
from pytest_aisbench.reporters.hosts import warn
from pytest_aisbench.reporters.properties import case_of
from pytest_aisbench.stash import language

_SUMMARY = "GITHUB_STEP_SUMMARY"
_ROOM = 1 << 20  # bytes that GitHub takes from one step
_MOST = 10  # annotations of a kind that GitHub shows of one step


class Files:
    """Reporter: the files that are the same wherever they are written."""

    order = 40

    def __init__(self, config: pytest.Config, folder: Path) -> None:
        self._folder, self._lang = folder, language(config)

    def case(self, entry: CaseEntry) -> None:
        """All is written at the end."""

    def run(self, entry: RunEntry) -> None:
        write_text(self._folder / "metrics.txt", openmetrics.text(entry))
        write_text(self._folder / "metrics.csv", openmetrics.table(entry))
        write_text(self._folder / "summary.md", markdown.text(entry, self._lang))


class GitHub:
    """Reporter: the summary of a workflow's step, and annotations; inert anywhere else."""

    order = 50
    once = True  # an old run that is told again is no news

    def __init__(self, config: pytest.Config, folder: Path) -> None:
        self._config, self._folder = config, folder
        self._places: dict[str, tuple[str, int]] = {}
        self._run: RunEntry | None = None

    def case(self, entry: CaseEntry) -> None:
        """All is said at the end."""

    def run(self, entry: RunEntry) -> None:
        self._run = entry
        if target := os.environ.get(_SUMMARY):
            path = Path(target)
            room = _ROOM - (path.stat().st_size if path.exists() else 0)
            text = markdown.text(entry, language(self._config))
            if len(text.encode()) > room:
                warn(self._config, f"aisbench: {_SUMMARY} is full; the summary is in {self._folder.name}/summary.md")
                return
            with path.open("a", encoding="utf-8", errors="replace") as file:
                file.write(text)

    def pytest_runtest_logreport(self, report: pytest.TestReport) -> None:
        """Where the test of a case stands."""
        file, line, _ = report.location
        if case := case_of(report):
            self._places.setdefault(case, (str(self._config.rootpath / file), (line or 0) + 1))

    @pytest.hookimpl(trylast=True)
    def pytest_terminal_summary(self, terminalreporter: Any) -> None:
        if self._run and os.environ.get("GITHUB_ACTIONS") == "true":
            for line in notices(self._run, self._places, os.environ.get("GITHUB_WORKSPACE", "")):
                terminalreporter.write_line(line)


def notices(run: RunEntry, places: dict[str, tuple[str, int]], workspace: str) -> list[str]:
    """Commands of GitHub's workflows, for the cases that did not pass; of each kind no more than are shown."""
    found: dict[str, list[str]] = {"error": [], "warning": []}
    for name in missing(run):
        found["error"].append(_command("error", {"title": f"{name} is missing"}, "required, and not judged"))
    for case in worst_first(run.cases):
        if case.verdict in {Ruling.FAILED, Ruling.BROKEN, Ruling.INCONCLUSIVE}:
            kind = "warning" if case.verdict is Ruling.INCONCLUSIVE else "error"
            found[kind].append(_command(kind, _about(case, places, workspace), case.reason))
    return [line for lines in found.values() for line in lines[:_MOST]]


def _about(case: CaseEntry, places: dict[str, tuple[str, int]], workspace: str) -> dict[str, str]:
    assert case.verdict is not None
    title = {"title": f"{case.id} {case.verdict.value}"}
    if case.id not in places:
        return title
    file, line = places[case.id]
    return {"file": os.path.relpath(file, workspace) if workspace else file, "line": str(line), **title}


def _command(kind: str, properties: dict[str, str], message: str) -> str:
    told = ",".join(f"{name}={_escaped(value, ':,')}" for name, value in properties.items())
    return f"::{kind} {told}::{_escaped(message)}"


def _escaped(value: str, more: str = "") -> str:
    shown = plain(value).replace("%", "%25")
    for char in more:
        shown = shown.replace(char, f"%{ord(char):02X}")
    return shown
