"""git and patch apply the diffs that `aisbench references` writes."""

from __future__ import annotations

import shutil
import subprocess
from pathlib import Path

import pytest

from pytest_aisbench.config import toml_document
from pytest_aisbench.engine import references
from pytest_aisbench.engine.references import edited

ROW: dict[str, object] = {"reference": 1000.5, "lower": -0.01, "unit": "images/s"}
CLAIMS = '# why\n[local."*"]\nthroughput = { at_least = 1 }  # a floor\naccuracy = { at_least = 0.9 }'


@pytest.mark.parametrize("text", [f"{CLAIMS}\n", CLAIMS, CLAIMS.replace("\n", "\r\n"), f"{CLAIMS}  # \u2028 x\n"])
@pytest.mark.parametrize("name", ["toy", "my own"])
@pytest.mark.parametrize("tool", [["git", "apply"], ["patch", "-p1", "--binary"]], ids=["git", "patch"])
def test_a_diff_applies_to_any_file(tmp_path: Path, tool: list[str], name: str, text: str) -> None:
    if not shutil.which(tool[0]):
        pytest.skip(f"{tool[0]} is not installed")
    file = tmp_path / name / "thresholds.toml"
    file.parent.mkdir()
    file.write_bytes(text.encode())
    better: dict[str, object] = {"at_least": 0.95}
    rows = {"throughput": (ROW, "20 trials"), "accuracy": (better, "20 trials")}
    new = edited(toml_document.read(file), ("local", "*"), rows)
    change = references.diff({file: references.with_its_line_ends(file, new)}, tmp_path)
    done = subprocess.run(tool, input=change.encode(), cwd=tmp_path, capture_output=True, check=False)
    assert done.returncode == 0, done.stderr
    written = file.read_bytes().decode()
    assert written == references.with_its_line_ends(file, new)
    assert ("\r\n" in written) == ("\r\n" in text)
    assert toml_document.read(file).data["local"]["*"]["throughput"] == ROW
