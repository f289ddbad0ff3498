"""Two languages that say the same things."""

from __future__ import annotations

import re
from pathlib import Path
from string import Formatter

import pytest

import pytest_aisbench.reporters
from pytest_aisbench.domain.metric import ACCURACY, RECKONED, THROUGHPUT
from pytest_aisbench.domain.verdict import Outcome, Ruling
from pytest_aisbench.reporters.wording import CHINESE, CHINESE_WORDS, ENGLISH, ENGLISH_WORDS, wording

METRICS = (THROUGHPUT, ACCURACY, *RECKONED)
FOLDER = Path(pytest_aisbench.reporters.__file__).parent
TEXTS = [path.read_text(encoding="utf-8") for path in FOLDER.glob("*.py") if path.name != "wording.py"]
# Some have a table of their own.
SOURCES = "".join(text for text in TEXTS if "reporters.wording import" in text and "WORDS" not in text)


def gaps(text: str) -> set[str]:
    return {name for _, name, _, _ in Formatter().parse(text) if name}


def test_both_languages_have_the_same_things_to_say() -> None:
    assert list(ENGLISH_WORDS) == list(CHINESE_WORDS)
    for key, text in ENGLISH_WORDS.items():
        ways = text.split("|")
        assert all(gaps(way) == gaps(CHINESE_WORDS[key]) for way in ways) or not text, key


def test_everything_that_is_said_is_in_the_table_and_all_of_the_table_is_said() -> None:
    said = set(re.findall(r'(?:say|named)\(\s*["\']([^"\'{]+)["\']', SOURCES))
    begun = tuple(re.findall(r'f["\']([a-z]+ )\{', SOURCES))  # such as `outcome {name}`
    quoted = set(re.findall(r'["\']([A-Za-z][A-Za-z -]*)["\']', SOURCES))

    assert said <= set(ENGLISH_WORDS)
    known = {word.value for word in (*Ruling, *Outcome)} | {f"metric {name}" for name in METRICS}
    idle = [key for key in ENGLISH_WORDS if key not in quoted | known and not key.startswith(begun)]
    assert not idle


@pytest.mark.parametrize("word", [word.value for word in (*Ruling, *Outcome)])
def test_the_words_of_programs_stay_and_have_a_meaning(word: str) -> None:
    assert ENGLISH.word(word) == word
    assert CHINESE.word(word) == f"{word} {CHINESE_WORDS[word]}"
    assert CHINESE_WORDS[word]


def test_one_is_not_many() -> None:
    assert [ENGLISH("cases", count=count) for count in (0, 1, 2)] == ["0 cases", "1 case", "2 cases"]
    assert CHINESE("cases", count=1) == "1 个用例"


def test_an_unknown_language_is_english() -> None:
    assert wording("zh") is CHINESE
    assert wording("en") is wording(None) is ENGLISH
