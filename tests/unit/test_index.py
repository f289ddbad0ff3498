"""The list of runs, and which run is meant."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path

import pytest

from pytest_aisbench.errors import UsageFault
from pytest_aisbench.i18n import language
from pytest_aisbench.ledger import runs
from pytest_aisbench.ledger import runs as runs_module
from pytest_aisbench.ledger.ledger import Ledger
from pytest_aisbench.ledger.runs import RecordedTest, RecordedTests
from pytest_aisbench.model.verdict import Ruling
from pytest_aisbench.report import index
from pytest_aisbench.testing import HOSTILE, case_entry


@pytest.fixture
def ledger(tmp_path: Path) -> Iterator[Ledger]:
    with closing(Ledger(tmp_path / "ledger.db")) as ledger:
        yield ledger


def begin(ledger: Ledger, run: str, at: float, platform: str = "local") -> Path:
    ledger.begin(run, {"platform": platform, "nodes": [1, 2]}, at)
    folder = ledger.path.parent / run
    folder.mkdir()
    return folder


def test_runs_are_listed_newest_first_with_what_they_left(ledger: Ledger, tmp_path: Path) -> None:
    begin(ledger, "run-a", 100.0)
    for ordinal, ruling in enumerate((Ruling.PASSED, Ruling.FAILED, None)):
        ledger.save_case("run-a", ordinal, case_entry(ruling))
    ledger.finish("run-a", 1, 165.0)
    (begin(ledger, "run-b", 200.0) / "report.html").touch()
    ledger.begin("gone", {}, 300.0)  # its folder is in another workspace

    page = index.write(ledger.database, tmp_path).read_text(encoding="utf-8")

    assert page.index("run-b") < page.index("run-a")
    assert "gone" not in page
    assert "2 runs" in page
    assert '1 PASSED</span> <span class="verdict failed">1 FAILED</span> <span class="verdict ">1 not judged' in page
    assert '<code><a href="run-b/report.html">run-b</a></code>' in page
    assert 'href="run-a/' not in page  # it left nothing
    assert "1 min 05 s" in page
    assert "not finished" in page
    assert "http:" not in page
    assert "https:" not in page


def test_the_page_speaks_chinese(ledger: Ledger, tmp_path: Path) -> None:
    begin(ledger, "run-a", 100.0)
    ledger.save_case("run-a", 0, case_entry(Ruling.BROKEN))

    page = index.write(ledger.database, tmp_path, language("zh")).read_text(encoding="utf-8")

    assert '<html lang="zh-CN">' in page
    assert "共 1 次运行" in page
    assert "1 平台故障" in page


def test_what_a_setting_holds_stays_text(ledger: Ledger, tmp_path: Path) -> None:
    begin(ledger, "run-a", 100.0, platform=HOSTILE.replace("\ud800", ""))

    page = index.write(ledger.database, tmp_path).read_text(encoding="utf-8")

    assert "&lt;script&gt;" in page
    assert "<script>alert" not in page
    assert "\u202e" not in page


def test_thousands_of_runs_are_cut_and_the_page_says_so(
    ledger: Ledger, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(index, "MOST", 3)
    monkeypatch.setattr(index, "_BATCH", 2)
    for number in range(5):
        begin(ledger, f"run-{number}", float(number))

    page = index.write(ledger.database, tmp_path).read_text(encoding="utf-8")

    assert "the newest 3 runs" in page
    assert [f"run-{number}" in page for number in range(5)] == [False, False, True, True, True]


def test_runs_that_end_at_once_all_get_on_the_page(ledger: Ledger, tmp_path: Path) -> None:
    def end(run: str) -> None:
        begin(ledger, run, float(run[4:]))
        index.write(ledger.database, tmp_path)

    threads = [threading.Thread(target=end, args=(f"run-{number}",)) for number in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()

    page = (tmp_path / index.NAME).read_text(encoding="utf-8")
    assert [f"run-{number}" for number in range(8) if f"run-{number}" not in page] == []
    assert page.endswith("</html>\n")
    assert not list(tmp_path.glob(".index.html.[0-9]*"))


@pytest.mark.parametrize(
    ("text", "found"), [("latest", "b-2"), ("a", "a-1"), ("b-2", "b-2"), ("b-1", "b-1"), ("", "b-2")]
)
def test_a_run_is_named_by_its_beginning(ledger: Ledger, text: str, found: str) -> None:
    for at, run in enumerate(("a-1", "b-1", "b-10", "b-2")):
        ledger.begin(run, {}, float(at))

    assert runs.find_run(ledger.database, text) == found


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("b", "'b' is the beginning of b-2, b-1; write more of it"),
        ("c", "no run 'c'; the newest are b-2, b-1"),
        ("%", "no"),
    ],
)
def test_a_run_that_is_not_there_or_not_one_is_a_fault(ledger: Ledger, text: str, said: str) -> None:
    for at, run in enumerate(("b-1", "b-2")):
        ledger.begin(run, {}, float(at))

    with pytest.raises(UsageFault, match=said):
        runs.find_run(ledger.database, text)


def test_a_transcript_is_read_back_in_the_order_of_the_tests(ledger: Ledger) -> None:
    ledger.begin("r", {}, 1.0)
    ledger.begin("s", {}, 2.0)
    told = RecordedTests(ledger.database, "r")
    told.add(
        [
            RecordedTest("t::z", "", "passed", 1.0, 2.0, [{"when": "call", "node": object}]),
            RecordedTest("t::a", "c-1x1", "failed", 1, 3),
        ]
    )
    told.add([RecordedTest("t::z", "", "failed", 1.0, 4.0, [{"when": "call"}])])

    assert [(test.nodeid, test.status) for test in runs_module.read_tests(ledger.database, "r")] == [
        ("t::z", "failed"),
        ("t::a", "failed"),
    ]
    (past,) = runs_module.past_runs(ledger.database, "s", measured=True)
    assert [test.nodeid for test in past.tests] == ["t::a"]
    assert runs_module.past_runs(ledger.database, "r") == []
