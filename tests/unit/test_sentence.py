"""Sentences: English for everybody who reads a string, and the same in Chinese from what they were made of."""

from __future__ import annotations

import json
import pickle
import re
from dataclasses import dataclass
from pathlib import Path
from string import Formatter

import pytest

import pytest_aisbench
from pytest_aisbench.domain import codec
from pytest_aisbench.domain.sentence import ENGLISH, Sentence, joined, tell
from pytest_aisbench.reporters import wording
from pytest_aisbench.reporters.sentences_zh import CHINESE_SENTENCES

ROOT = Path(pytest_aisbench.__file__).parent
SOURCES = "".join(
    path.read_text(encoding="utf-8")
    for path in (*ROOT.glob("domain/*.py"), *ROOT.glob("services/*.py"), *ROOT.glob("session/*.py"))
    if path.name != "sentence.py"
)
KNOWN = {
    "rank",
    "CUSUM",
    "aisbench",
    "stop",
    "expected",
    "failure",
    "t",
    "s",
}  # Latin words that Chinese readers use too
LONG = joined(
    (
        tell("about", metric="throughput")
        + tell("missing", what=tell("of rank", file="throughput_3.json", rank="3", node="0", card="3")),
        "a stranger's words",
    )
)


@dataclass(frozen=True)
class Note:
    text: str


def facts_of(template: str) -> set[str]:
    return {name for _, name, _, _ in Formatter().parse(template) if name}


@pytest.mark.parametrize("key", ENGLISH)
def test_every_sentence_has_the_same_facts_in_chinese_and_no_other_english(key: str) -> None:
    chinese = CHINESE_SENTENCES[key]

    assert facts_of(chinese) == facts_of(ENGLISH[key])
    words = re.findall("[A-Za-z]+", re.sub(r"\{\w+\}", "", chinese))
    assert set(words) <= KNOWN


def test_nothing_is_there_that_nobody_says() -> None:
    assert CHINESE_SENTENCES.keys() == ENGLISH.keys()
    assert [key for key in ENGLISH if f'"{key}"' not in SOURCES and key not in {"plain", "and"}] == []


def test_a_sentence_is_its_english_text() -> None:
    assert LONG == "throughput: throughput_3.json (rank 3: node 0, card 3) is missing; a stranger's words"
    assert wording.ENGLISH.line(LONG) == LONG
    assert json.loads(json.dumps(LONG)) == LONG


def test_chinese_says_all_of_it_and_leaves_the_words_of_others() -> None:
    assert wording.CHINESE.line(LONG) == "吞吐量：缺少 throughput_3.json（rank 3：节点 0，卡 3）；a stranger's words"
    assert wording.CHINESE.line("a stranger's words") == "a stranger's words"
    assert wording.CHINESE.line(tell("unclaimed", metric="perplexity")) == "perplexity：没有对它提出要求"


def test_facts_are_no_templates() -> None:
    assert tell("lost", why="{project_id} {0}") == "the platform lost the job: {project_id} {0}"
    assert wording.CHINESE.line(tell("lost", why="{project_id}")) == "平台丢失了作业：{project_id}"


def test_it_outlives_a_process_and_a_ledger() -> None:
    for told in (pickle.loads(pickle.dumps(LONG)), codec.load(Note, codec.dump(Note(LONG), whole=True)).text):
        assert isinstance(told, Sentence)
        assert told.clauses == LONG.clauses
    assert type(codec.dump(Note(LONG))["text"]) is str  # what programs read has no more than the text


def test_what_a_newer_version_said_is_its_text() -> None:
    for said in ([["of tomorrow", {}]], [["lost", {}]], [["no history", {}]]):
        assert codec.load(Note, {"text": {"text": "as it was", "said": said}}).text == "as it was"
