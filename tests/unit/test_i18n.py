"""The catalogues: every language has every text of English, with the same facts, and the code asks for no other key."""

from __future__ import annotations

import ast
import functools
import re
import sys
from collections.abc import Iterable, Iterator
from pathlib import Path
from string import Formatter

import pytest

import pytest_aisbench
from pytest_aisbench import i18n
from pytest_aisbench.config.options import OPTIONS
from pytest_aisbench.i18n import ENGLISH, Language, language, languages
from pytest_aisbench.judge import exit_code
from pytest_aisbench.judge.values import DERIVED
from pytest_aisbench.model.metric import ACCURACY, SOFTWARE_UPDATE, THROUGHPUT
from pytest_aisbench.model.verdict import Outcome, Ruling

ROOT = Path(pytest_aisbench.__file__).parent
CHINESE = language("zh")
SECTIONS = ("messages", "report", "names", "metrics", "exit_codes", "tester")
LATIN = {
    "rank",
    "CUSUM",
    "aisbench",
    "stop",
    "jobs",
    "forget",
    "expected",
    "failure",
    "t",
    "s",
}  # Chinese readers use these words too
SAY = ("say", "_say", "inline", "named")  # what a Language is called where it is used
USERS = ("pytest_aisbench.i18n.Language", "pytest_aisbench.stash.language")


@functools.cache
def code() -> dict[Path, list[ast.AST]]:
    """The syntax of every module. It is read by the first test that asks, and not at import: all workers import this
    module, and one of them runs its tests."""
    return {
        path: [*ast.walk(ast.parse(path.read_text(encoding="utf-8")))]
        for path in ROOT.rglob("*.py")
        if path.parent.name != "i18n"
    }


@pytest.fixture(scope="module", autouse=True)
def _forgotten() -> Iterator[None]:
    """Drop half a million nodes after the last test: the search for garbage would visit them in every later test."""
    yield
    code.cache_clear()


def faults(translation: Language) -> list[str]:
    """What a language lacks, has too much, or says with other facts than English."""
    found = []
    for section in SECTIONS:
        source, texts = getattr(ENGLISH.catalogue, section), getattr(translation.catalogue, section)
        found += [f"{translation.code}.{section} lacks {key!r}" for key in source if not texts.get(key)]
        found += [
            f"{translation.code}.{section} has {key!r}, which English lacks" for key in texts if key not in source
        ]
        found += [
            f"{translation.code}.{section} {key!r} has other facts than English"
            for key in source
            if texts.get(key) and facts(texts[key]) != facts(source[key])
        ]
    return found


def facts(text: str) -> set[frozenset[str]]:
    """The names in braces; each form of a text must have the same ones."""
    return {frozenset(name for _, name, _, _ in Formatter().parse(form) if name) for form in text.split("|")}


def first_arguments(functions: Iterable[str], users: Iterable[str]) -> Iterator[ast.expr]:
    """Of every call of a function, a variable or an attribute of this name, in modules that import one of `users`."""
    for nodes in code().values():
        imports = {
            f"{node.module}.{name.name}" for node in nodes if isinstance(node, ast.ImportFrom) for name in node.names
        }
        for node in nodes if imports.intersection(users) else ():
            if isinstance(node, ast.Call) and node.args:
                name = node.func.attr if isinstance(node.func, ast.Attribute) else getattr(node.func, "id", "")
                if name in functions:
                    yield node.args[0]


def quoted() -> set[str]:
    constants = (node.value for nodes in code().values() for node in nodes if isinstance(node, ast.Constant))
    return {value for value in constants if isinstance(value, str)}


def keys_asked_for(functions: Iterable[str], users: Iterable[str]) -> tuple[set[str], set[str]]:
    """The keys that the code asks for by name, and the beginnings of those that it composes: `one {outcome}`."""
    whole, begun = set(), set()
    for argument in first_arguments(functions, users):
        for node in ast.walk(argument):
            if isinstance(node, ast.JoinedStr) and isinstance(node.values[0], ast.Constant):
                begun.add(str(node.values[0].value))
        for choice in (argument.body, argument.orelse) if isinstance(argument, ast.IfExp) else (argument,):
            if isinstance(choice, ast.Constant):
                whole.add(str(choice.value))
    return whole, begun


@pytest.mark.parametrize("code", [code for code in languages() if code != i18n.SOURCE])
def test_every_language_says_all_that_english_says(code: str) -> None:
    assert faults(language(code)) == []


def test_every_text_of_english_has_the_same_facts_in_all_its_forms() -> None:
    for section in SECTIONS:
        for key, text in getattr(ENGLISH.catalogue, section).items():
            assert len(facts(text)) == 1, key


def test_one_new_file_is_a_new_language_and_a_key_that_it_lacks_is_named(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "xx.py").write_text(
        "from pytest_aisbench.i18n.en import CATALOGUE as english\n"
        "messages = {**english.messages, 'lost': 'das Werk ist weg'}\n"
        "report = {key: text for key, text in english.report.items() if key != 'what to do'}\n"
        "CATALOGUE = english._replace(name='Neu', messages=messages, report=report)\n"
    )
    monkeypatch.setattr(i18n, "__path__", [*i18n.__path__, str(tmp_path)])
    languages.cache_clear()
    try:
        assert {"en", "xx", "zh"} <= {*languages()}
        new = language.__wrapped__("xx")
        assert new.catalogue.name == "Neu"
        assert faults(new) == ["xx.messages 'lost' has other facts than English", "xx.report lacks 'what to do'"]
    finally:
        languages.cache_clear()
        sys.modules.pop("pytest_aisbench.i18n.xx", None)
        vars(i18n).pop("xx", None)


def test_the_command_line_offers_every_language_and_no_other() -> None:
    (option,) = [row for row in OPTIONS if row.flag == "--aisbench-lang"]
    assert option.metavar == "|".join(languages())
    assert [option.parse(code) for code in languages()] == list(languages())
    with pytest.raises(ValueError, match=r"neither .*en"):
        option.parse("xx")


def test_every_key_that_the_code_asks_for_exists() -> None:
    for functions, users, texts in (
        (["message"], ["pytest_aisbench.model.messages.message"], ENGLISH.catalogue.messages),
        (SAY, USERS, ENGLISH.catalogue.report),
    ):
        whole, begun = keys_asked_for(functions, users)
        assert len(whole) > 50
        assert whole - set(texts) == set()
        assert [start for start in begun if not any(key.startswith(start) for key in texts)] == []


def test_every_key_is_asked_for() -> None:
    words = quoted()
    assert [key for key in ENGLISH.catalogue.messages if key not in words] == []
    begun = tuple(keys_asked_for(SAY, USERS)[1])
    assert [key for key in ENGLISH.catalogue.report if key not in words and not key.startswith(begun)] == []


def test_the_pages_of_the_tester_and_the_catalogue_have_the_same_texts() -> None:
    pages = "".join(path.read_text(encoding="utf-8") for path in ROOT.glob("tester_server/templates/*.html"))
    asked = {one or other for one, other in re.findall(r"""\bt\((?:"([^"]+)"|'([^']+)')\)""", pages)}
    assert len(asked) > 60
    assert asked - set(ENGLISH.catalogue.tester) == set()
    others = quoted() | {ruling.value.lower() for ruling in Ruling}
    idle = [key for key in ENGLISH.catalogue.tester if f'"{key}"' not in pages and f"'{key}'" not in pages]
    assert set(idle) - others == set()


def test_programs_words_metrics_and_exit_codes_are_those_of_the_code() -> None:
    assert list(ENGLISH.catalogue.names) == [word.value for word in (*Ruling, *Outcome)]
    assert set(ENGLISH.catalogue.metrics) == {THROUGHPUT, ACCURACY, SOFTWARE_UPDATE, *DERIVED}
    codes = [value for name, value in vars(exit_code).items() if name.isupper() and isinstance(value, int)]
    assert list(ENGLISH.catalogue.exit_codes) == codes


def test_no_code_asks_which_language_it_is() -> None:
    """Rules of a language belong into its file."""
    asked = [
        path.name
        for path, nodes in code().items()
        for node in nodes
        if isinstance(node, ast.Compare)
        for side in (node.left, *node.comparators)
        if isinstance(side, ast.Constant) and side.value in languages()
    ]
    assert asked == []
    pages = (path.read_text(encoding="utf-8") for path in ROOT.glob("tester_server/templates/*.html"))
    assert not [page for page in pages if re.search(rf"""== *["']({"|".join(languages())})["']""", page)]


def test_chinese_messages_are_chinese() -> None:
    for key, text in CHINESE.catalogue.messages.items():
        assert set(re.findall("[A-Za-z]+", re.sub(r"\{\w+\}", "", text))) <= LATIN, key


@pytest.mark.parametrize("word", [word.value for word in (*Ruling, *Outcome)])
def test_the_words_of_programs_stay_and_have_a_meaning(word: str) -> None:
    assert ENGLISH.word(word) == word
    assert CHINESE.word(word) == f"{word} {CHINESE.catalogue.names[word]}"


def test_one_is_not_many() -> None:
    assert [ENGLISH("cases", count=count) for count in (0, 1, 2)] == ["0 cases", "1 case", "2 cases"]
    assert CHINESE("cases", count=1) == "1 个用例"


def test_an_unknown_language_is_english() -> None:
    assert language("zh") is CHINESE
    assert language("en") is ENGLISH
    assert language("../xx").code == "en"
