"""No two functions do the same in the same words, and no constant is written twice."""

from __future__ import annotations

import ast
from collections import defaultdict
from collections.abc import Iterator, Mapping
from pathlib import Path

PACKAGE = Path(__file__).resolve().parents[2] / "pytest_aisbench"
# An emulator repeats the client on purpose: code that both shared would agree with its own mistakes.
APART = {"localcloud", "tester_server", "container_site"}
# Characters of code: a body of two short calls may be repeated, a short value if its names differ.
SHORT_BODY, SHORT_VALUE = 90, 12
# Equal by chance: each of these would change without the other.
BY_CHANCE = {("DIGITS",), ("LONGEST",), ("MOST",), ("FREE_BYTES", "PART"), ("PATIENCE_S",), ("TOLERANCE",)}


class _Renamer(ast.NodeTransformer):
    """Numbers the names that a function binds itself, so that they do not count."""

    def __init__(self, function: ast.FunctionDef | ast.AsyncFunctionDef) -> None:
        names = [each.arg for each in ast.walk(function.args) if isinstance(each, ast.arg)]
        for each in ast.walk(function):
            if isinstance(each, ast.Name) and isinstance(each.ctx, ast.Store):
                names.append(each.id)
        self._numbers = {name: f"_{number}" for number, name in enumerate(dict.fromkeys(names))}

    def visit_Name(self, node: ast.Name) -> ast.Name:
        return ast.Name(self._numbers.get(node.id, node.id), node.ctx)


def functions(source: str) -> Iterator[tuple[str, str]]:
    """Each function's name and its body, without its docstring."""
    for node in ast.walk(ast.parse(source)):
        if isinstance(node, (ast.FunctionDef, ast.AsyncFunctionDef)):
            renamer, body = _Renamer(node), node.body[1:] if ast.get_docstring(node) else node.body
            text = "\n".join(ast.unparse(renamer.visit(statement)) for statement in body)
            if len(text) >= SHORT_BODY:
                yield node.name, text


def constants(source: str) -> Iterator[tuple[str, str]]:
    """Each constant's name and what makes it the same as another."""
    for node in ast.parse(source).body:
        target = node.targets[0] if isinstance(node, ast.Assign) else getattr(node, "target", None)
        value = getattr(node, "value", None)
        if not isinstance(target, ast.Name) or not target.id.isupper() or value is None:
            continue
        name, text = target.id.lstrip("_"), ast.unparse(value)
        made = isinstance(value, ast.Call) and ast.unparse(value.func) != "re.compile"  # a lock, a logger, a key
        if not made and name != "TYPE_CHECKING":
            yield name, text if len(text) >= SHORT_VALUE else f"{name} = {text}"


def sources() -> Iterator[tuple[str, str, str]]:
    """The house that a module belongs to, its path, and its text."""
    for path in PACKAGE.rglob("*.py"):
        parts = path.relative_to(PACKAGE).parts
        house = next((part for part in reversed(parts) if part in APART), "client")
        yield house, "/".join(parts), path.read_text(encoding="utf-8")


def repeated(places: Mapping[tuple[str, str], list[tuple[str, str]]]) -> dict[tuple[str, ...], set[str]]:
    """The names of what is in several places, and the places."""
    several = [found for found in places.values() if len({path for path, _ in found}) > 1]
    return {tuple(sorted({name for _, name in found})): {path for path, _ in found} for found in several}


def test_no_two_functions_have_the_same_body() -> None:
    places = defaultdict(list)
    for house, path, source in sources():
        for number, (name, body) in enumerate(functions(source)):
            places[house, body].append((f"{path} {number}", name))
    assert repeated(places) == {}


def test_no_constant_is_written_twice() -> None:
    places = defaultdict(list)
    for house, path, source in sources():
        for name, value in constants(source):
            places[house, value].append((path, name))
    found = repeated(places)
    assert {names: paths for names, paths in found.items() if names not in BY_CHANCE} == {}
    assert found.keys() >= BY_CHANCE, "remove from the list what is no longer repeated"


ONE = """
def one(path):
    'Why it is there.'
    text = path.read_text(encoding='utf-8', errors='replace')
    return [line for line in text.splitlines() if line.strip()]
"""
OTHER = """
def _other(file):
    lines = file.read_text(encoding='utf-8', errors='replace')
    return [each for each in lines.splitlines() if each.strip()]
"""


def test_what_is_the_same_would_be_seen() -> None:
    (body,) = dict(functions(ONE)).values()
    assert dict(functions(OTHER)) == {"_other": body}
    assert dict(functions(OTHER.replace("strip", "lstrip"))) != {"_other": body}
    assert dict(constants("_LIMIT = 5")) == dict(constants("LIMIT: int = 5"))
    assert dict(constants("A = ('ssh', 'vscode')"))["A"] == dict(constants("B = ('ssh', 'vscode')"))["B"]
    assert not list(constants("_LOG = get_logger('fleet')"))
