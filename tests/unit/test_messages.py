"""Messages: English strings that can be shown in Chinese, because they keep what they were made of."""

from __future__ import annotations

import json
import pickle
from dataclasses import dataclass

from pytest_aisbench.i18n import ENGLISH, language
from pytest_aisbench.model import codec
from pytest_aisbench.model.messages import Message, joined, message, translated

CHINESE = language("zh")
LONG = joined(
    (
        message("about", metric="throughput")
        + message("missing", what=message("of rank", file="throughput_3.json", rank="3", node="0", card="3")),
        "a stranger's words",
    )
)


@dataclass(frozen=True)
class Note:
    text: str


def test_a_message_is_its_english_text() -> None:
    assert LONG == "throughput: throughput_3.json (rank 3: node 0, card 3) is missing; a stranger's words"
    assert translated(LONG, ENGLISH) == LONG
    assert json.loads(json.dumps(LONG)) == LONG


def test_chinese_says_all_of_it_and_leaves_the_words_of_others() -> None:
    assert translated(LONG, CHINESE) == "吞吐量：缺少 throughput_3.json（rank 3：节点 0，卡 3）；a stranger's words"
    assert translated("a stranger's words", CHINESE) == "a stranger's words"
    assert translated(message("unclaimed", metric="perplexity"), CHINESE) == "perplexity：没有对它提出要求"


def test_facts_are_no_templates() -> None:
    assert message("lost", why="{project_id} {0}") == "the platform lost the job: {project_id} {0}"
    assert translated(message("lost", why="{project_id}"), CHINESE) == "平台丢失了作业：{project_id}"


def test_a_message_survives_pickling_and_the_ledger() -> None:
    for copy in (pickle.loads(pickle.dumps(LONG)), codec.load(Note, codec.dump(Note(LONG), whole=True)).text):
        assert isinstance(copy, Message)
        assert copy.clauses == LONG.clauses
    assert type(codec.dump(Note(LONG))["text"]) is str  # programs that read results.json get the text only


def test_the_ledger_of_an_older_version_is_read_and_of_a_newer_one_the_bare_text() -> None:
    stored = {"text": "the job failed: x", "said": [["failed", {}], ["because", {"why": "x"}]]}
    assert translated(codec.load(Note, {"text": stored}).text, CHINESE) == "作业失败：x"
    for clauses in ([["of tomorrow", {}]], [["lost", {}]], [["no history", {}]]):
        assert codec.load(Note, {"text": {"text": "as it was", "said": clauses}}).text == "as it was"
