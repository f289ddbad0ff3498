"""What the tree promises: layers, and pages that name what exists."""

from __future__ import annotations

import ast
import re
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from pytest_aisbench.config.options import OPTIONS
from pytest_aisbench.registry import PLATFORMS

if sys.version_info >= (3, 11):
    import tomllib
else:
    import tomli as tomllib

ROOT = Path(__file__).resolve().parents[2]


def _compared_names(source: str) -> Iterator[tuple[int, str]]:
    """The lines at which a platform's name, or a constant that holds one, is compared with something."""
    for node in ast.walk(ast.parse(source)):
        parts: list[ast.AST] = []
        if isinstance(node, ast.Compare):
            parts = [node.left, *node.comparators]
        elif isinstance(node, ast.match_case):
            parts = [node.pattern]
        for each in (each for part in parts for each in ast.walk(part)):
            if isinstance(each, ast.Constant) and each.value in PLATFORMS:
                yield each.lineno, str(each.value)
            elif isinstance(each, (ast.Name, ast.Attribute)):
                name = each.id if isinstance(each, ast.Name) else each.attr
                if name.upper() == name and name.lower() in PLATFORMS:
                    yield each.lineno, name.lower()


def test_no_platform_is_compared_by_its_name_outside_its_package() -> None:
    """What differs between platforms, a platform brings by its PlatformKind and by the Protocols in `ports`."""
    package = ROOT / "pytest_aisbench"
    found = [
        f"{path}:{line}: {name}"
        for path in (file.relative_to(package) for file in package.rglob("*.py"))
        if path.parts[0] != "localcloud"  # it is the other side of the wire
        for line, name in _compared_names((package / path).read_text(encoding="utf-8"))
        if not any(part.startswith(name) for part in path.parts)
    ]
    assert found == []


@pytest.mark.parametrize(
    "line",
    [
        'platform == "local"',
        'platform not in {"x", "apulis"}',
        "name != settings.LOCAL",
        'match x:\n case "modelarts": 0',
    ],
)
def test_a_comparison_by_name_would_be_seen(line: str) -> None:
    assert list(_compared_names(line))


def test_layers_flow_one_way(monkeypatch: pytest.MonkeyPatch) -> None:
    linter = pytest.importorskip("importlinter.cli", reason="import-linter comes with the extra [dev]")
    monkeypatch.chdir(ROOT)
    # Not its lint_imports(): that configures logging anew, which silences all loggers of this process.
    assert linter.use_cases.lint_imports(cache_dir=None)


def test_the_picture_of_the_layers_is_the_contract() -> None:
    page = (ROOT / "docs/how-it-works.md").read_text(encoding="utf-8")
    picture = page.split("## The layers")[1].split("```")[1].strip().splitlines()
    drawn = [set(re.split(r" {2,}", line)[0].split(", ")) for line in picture]
    contracts = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["tool"]["importlinter"][
        "contracts"
    ]
    layers = next(contract for contract in contracts if contract["name"] == "Layers flow one way")["layers"]
    checked = [{name.strip().removeprefix("pytest_aisbench.") for name in layer.split("|")} for layer in layers]
    assert drawn == [layer for layer in checked if layer != {"__main__"}]


def test_every_package_is_a_layer_or_stands_beside_them() -> None:
    page = (ROOT / "docs/how-it-works.md").read_text(encoding="utf-8").split("## The walk")[0]
    for path in (ROOT / "pytest_aisbench").glob("*/__init__.py"):
        name = path.parent.name
        assert re.search(rf"\b{name}\b", page), f"docs/how-it-works.md does not say where {name} belongs"
        assert len(ast.get_docstring(ast.parse(path.read_text(encoding="utf-8"))) or "") > 60, f"{path} says nothing"


@pytest.mark.parametrize("page", ["docs/reference.md", "docs/reference.zh-CN.md"])
def test_the_pages_name_every_option_and_no_other(page: str) -> None:
    text = (ROOT / page).read_text(encoding="utf-8")
    for row in OPTIONS:
        assert f"`{row.flag}" in text, row.flag
    named = {word.rstrip("`,") for word in text.replace("`", " ").split() if word.startswith("--aisbench-")}
    assert named <= {row.flag for row in OPTIONS}


def test_both_readmes_start_with_the_same_two_commands() -> None:
    def commands(name: str) -> list[str]:
        blocks = (ROOT / name).read_text(encoding="utf-8").split("```")
        return [block.removeprefix("sh\n").strip() for block in blocks[1::2] if block.startswith("sh\n")][:2]

    english = commands("README.md")
    assert len(english) == 2
    assert "pytest suites/ --nodes 2" in english[0]
    assert english == commands("README.zh-CN.md")


def test_the_table_of_changes_names_what_exists() -> None:
    """Each file of a row of CONTRIBUTING.md exists, and the names beside it are in one of the row's files."""
    page = (ROOT / "CONTRIBUTING.md").read_text(encoding="utf-8")
    rows = page.partition("## Where things go")[2].partition("\nFrozen")[0].splitlines()
    missing = [each for row in rows if row.startswith("| ") for each in _names_without_a_place(row)]
    assert missing == []


def _names_without_a_place(row: str) -> Iterator[str]:
    words = re.findall(r"`([^`]+)`", row)
    files = [word for word in words if re.fullmatch(r"[a-z][a-z\d_/]*\.py|(?:docs|tests)/[\w/.-]+", word)]
    # Hooks and contracts, which third parties use: a row names them beside the files of its own change.
    places = [ROOT / "pytest_aisbench" / name for name in ("hookspecs.py", "testing.py")]
    for file in files:
        near = places[-1].parent  # such as `wheel.py` "there"
        candidates = (ROOT / "pytest_aisbench" / file, ROOT / file, near / file)
        place = next((each for each in candidates if each.is_file()), None)
        if place:
            places.append(place)
        else:
            yield file
    sources = "\n".join(place.read_text(encoding="utf-8") for place in places)
    for word in words if files else []:
        named = re.fullmatch(r"(?:[A-Z]\w+\.)?(_?[A-Za-z]\w+)(?:\(\))?", word)
        if named and not re.search(rf"\b{named[1]}\b", sources):
            yield word
