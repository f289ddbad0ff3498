"""`fields.json`: the figures that standards of the field ask for, case by case."""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest

from pytest_aisbench.domain.entry import CaseEntry, RunEntry
from pytest_aisbench.judge.standards import TIME, Field, standard_fields
from pytest_aisbench.report.text import write_text
from pytest_aisbench.services.clock import stamp
from pytest_aisbench.stash import SETTINGS

NAME = "fields.json"
SCHEMA = "aisbench-fields/1"
ABOUT = "Named after IEEE 2937 and T/CESA 1169 as ais-bench reports them; no conformity to a standard is claimed."


class Fields:
    """Reporter."""

    order = 60

    def __init__(self, config: pytest.Config, folder: Path) -> None:
        self._folder = folder
        self._config = config.stash[SETTINGS].tester_access.config

    def case(self, entry: CaseEntry) -> None:
        """All are written together, at the end."""

    def run(self, entry: RunEntry) -> None:
        cases = {case.id: shown(standard_fields(case, self._config)) for case in entry.cases}
        document = {"schema": SCHEMA, "about": ABOUT, "run": entry.run, "cases": cases}
        text = json.dumps(document, allow_nan=False, ensure_ascii=False, indent=1)
        write_text(self._folder / NAME, f"{text}\n")


def shown(found: Mapping[str, Field]) -> dict[str, dict[str, Any]]:
    """As JSON has it: a moment is a date."""
    return {name: _shown(field) for name, field in found.items()}


def _shown(field: Field) -> dict[str, Any]:
    value, unit = field.value, field.unit
    if unit == TIME:
        unit = "UTC"
        if value is not None:
            value = stamp(value)
    return {"value": value, "unit": unit, "source": field.source, "null_reason": field.null_reason}
