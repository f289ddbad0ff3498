"""Every text that a user reads in a report, a message or a page of the Tester: one file per language.

Start with `en.py`: it is the source, and its keys are what all other languages translate. To add a language, add one
file `xx.py` with a `CATALOGUE`; the command line offers it at once, and `tests/unit/test_i18n.py` names every key that
it lacks. Any package may import this one; it imports no other package of ours.
"""

from __future__ import annotations

import functools
import importlib
import pkgutil
from collections.abc import Callable, Mapping
from typing import NamedTuple

SOURCE = "en"  # the language of everything that is stored: ledger, results.json, uploads


class Catalogue(NamedTuple):
    """What the file of a language holds. A text may have several forms, separated by `|`: `plural` picks one."""

    name: str  # of the language, as its speakers call it
    html_lang: str  # as the attribute `lang` of a page names it
    messages: Mapping[str, str]  # of verdicts, findings and notes; the ledger stores their keys
    report: Mapping[str, str]  # headings and sentences of reports and of the summary on the terminal
    names: Mapping[str, str]  # what the words of programs mean, such as PASSED or `met`
    metrics: Mapping[str, str]  # what the metrics that we define mean
    exit_codes: Mapping[int, str]
    tester: Mapping[str, str]  # pages of the Tester; the English text is the key
    plural: Callable[[str], int]  # which form goes with a count, which may be a decimal fraction
    inline: Callable[[str], str]  # a heading as it is written in the middle of a line


class Language:
    """Looks texts up in a catalogue. `say("cases", count=3)` is a text of the section `report`."""

    def __init__(self, code: str, catalogue: Catalogue) -> None:
        self.code = code
        self.catalogue = catalogue

    @property
    def is_source(self) -> bool:
        """True for English, in which pytest-html, Allure and all stored messages are already."""
        return self.code == SOURCE

    def __call__(self, key: str, **facts: object) -> str:
        text = self.catalogue.report[key]
        if "|" in text:
            forms = text.split("|")
            text = forms[min(self.catalogue.plural(str(facts.get("count"))), len(forms) - 1)]
        return text.format(**facts) if facts else text

    def inline(self, key: str) -> str:
        """A heading of `report` as it is written in the middle of a line."""
        return self.catalogue.inline(self(key))

    def meaning(self, word: str) -> str:
        """What a word of programs means; the word itself if it needs no explanation."""
        return self.catalogue.names.get(word, word)

    def word(self, word: str) -> str:
        """A word of programs, followed by its meaning in another language."""
        return _explained(word, self.meaning(word))

    def metric(self, name: str) -> str:
        """A metric's name as files have it, followed by its meaning in another language."""
        return _explained(name, self.metric_meaning(name))

    def metric_meaning(self, name: str) -> str:
        """Only our own metrics have one: a workload may name a metric like any of our words."""
        return self.catalogue.metrics.get(name, name)

    def exit_code(self, code: int) -> str:
        return self.catalogue.exit_codes.get(code, "")

    def page(self, key: str | int) -> str:
        """A text of the Tester's pages: by its English text, by a word of programs or by an exit code."""
        if isinstance(key, int):
            return self.exit_code(key)
        return self.catalogue.tester.get(key) or self.meaning(key)


def _explained(word: str, meaning: str) -> str:
    return word if meaning.lower() == word.lower() else f"{word} {meaning}"


@functools.cache
def languages() -> tuple[str, ...]:
    """The code of every language: the names of the files in this folder."""
    return tuple(sorted(module.name for module in pkgutil.iter_modules(__path__)))


@functools.cache
def language(code: str) -> Language:
    """The language of this code; English if there is no such file."""
    code = code if code in languages() else SOURCE
    catalogue: Catalogue = importlib.import_module(f"{__name__}.{code}").CATALOGUE
    return Language(code, catalogue)


ENGLISH = language(SOURCE)
