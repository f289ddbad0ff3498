"""Errors about TOML files name the file, the line and the key."""

from __future__ import annotations

from pathlib import Path

import pytest

from pytest_aisbench.config import toml_document
from pytest_aisbench.errors import UsageFault

TEXT = """# a comment
name = "x"
parameters = { epochs = 3 }

[local."2x8"]
throughput = { at_least = 1 }
"accuracy" = { at_least = 0.5 }
"""


@pytest.mark.parametrize(
    ("keys", "line"),
    [
        (("name",), 2),
        (("parameters", "epochs"), 3),
        (("local", "2x8"), 5),
        (("local", "2x8", "throughput"), 6),
        (("local", "2x8", "accuracy", "at_least"), 7),
        (("local", "2x8", "loss"), 5),
    ],
)
def test_a_key_has_a_line(tmp_path: Path, keys: tuple[str, ...], line: int) -> None:
    file = tmp_path / "t.toml"
    file.write_text(TEXT)
    assert toml_document.read(file).location(*keys) == f"{file}:{line}"


@pytest.mark.parametrize(
    ("data", "message"),
    [
        (None, "there is no such file"),
        (b"a = [1", "not valid TOML"),
        (b"a = 1\na = 2", "not valid TOML"),
        (b"\xff\xfe", "not UTF-8"),
    ],
)
def test_what_cannot_be_read_is_one_line(tmp_path: Path, data: bytes | None, message: str) -> None:
    file = tmp_path / "t.toml"
    if data is not None:
        file.write_bytes(data)
    with pytest.raises(UsageFault, match=message) as caught:
        toml_document.read(file)
    assert str(file) in str(caught.value)
    assert "\n" not in str(caught.value)
