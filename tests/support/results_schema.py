"""`results.json` against its published schema, `docs/results.schema.json`."""

from __future__ import annotations

import json
from collections.abc import Mapping
from functools import cache
from pathlib import Path
from typing import Any

from jsonschema import Draft202012Validator

FILE = Path(__file__).parents[2] / "docs" / "results.schema.json"


def check(document: Any) -> None:
    """AssertionError with every error, and where it is. A key that the schema does not name is one too: readers may
    ignore it, but it must be published."""
    errors = sorted(_validator().iter_errors(document), key=lambda error: error.json_path)
    assert not errors, "\n".join(f"{error.json_path}: {error.message}" for error in errors)


@cache
def _validator() -> Draft202012Validator:
    published = json.loads(FILE.read_text(encoding="utf-8"))
    Draft202012Validator.check_schema(published)
    return Draft202012Validator(_strict(published))


def _strict(schema: Any) -> Any:
    """The same schema, and no key beside those that it names."""
    if isinstance(schema, list):
        return [_strict(part) for part in schema]
    if not isinstance(schema, Mapping):
        return schema
    parts = {key: _strict(part) for key, part in schema.items()}
    closed = schema.get("type") == "object" and "additionalProperties" not in schema
    return {**parts, "additionalProperties": False} if closed else parts
