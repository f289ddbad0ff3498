"""The page on adding a workload, in both languages: its files make a suite that runs as the page says."""

from __future__ import annotations

import re
import shlex
import shutil
from pathlib import Path

import pytest
from yard import Yard

pytestmark = pytest.mark.slow

ROOT = Path(__file__).parents[2]
PAGES = ("docs/add-a-workload.md", "docs/add-a-workload.zh-CN.md")
FILE = re.compile(r"`(suites/[\w/.]+)`:\n\n```\w+\n(.*?)```", re.DOTALL)


def files(page: str) -> dict[str, str]:
    return dict(FILE.findall((ROOT / page).read_text(encoding="utf-8")))


def commands(page: str) -> list[str]:
    return re.findall(r"```sh\n(.*?)\n```", (ROOT / page).read_text(encoding="utf-8"), re.DOTALL)


def test_both_languages_show_the_same_files_and_commands() -> None:
    english, chinese = PAGES
    assert len(files(english)) == 8
    assert files(english) == files(chinese)
    assert commands(english) == commands(chinese)


def pasted(yard: Yard) -> Path:
    shutil.copytree(ROOT / "suites/miniature", yard.folder / "suites/miniature")
    for name, text in files(PAGES[0]).items():
        file = yard.folder / name
        file.parent.mkdir(parents=True, exist_ok=True)
        file.write_text(text, encoding="utf-8")
    return yard.folder / "suites"


@pytest.mark.parametrize(
    ("at", "verdicts"),
    [(0, {"digits-1x1": "PASSED"}), (1, {"spirals-1x2": "PASSED", "spirals-2x2": "PASSED"})],
    ids=["as it is", "of your own"],
)
def test_the_folder_is_all_that_it_takes(yard: Yard, at: int, verdicts: dict[str, str]) -> None:
    pasted(yard)
    program, *arguments = shlex.split(commands(PAGES[0])[at])
    assert program == "pytest"
    ended = yard.pytest(*arguments)
    assert ended.code == 0, ended.out
    assert ended.verdicts == verdicts


def test_its_claims_notice_a_script_that_learns_nothing(yard: Yard) -> None:
    script = pasted(yard) / "digits/code/main.py"
    script.write_text(script.read_text().replace("weights -= args.lr", "weights -= 0 * args.lr"))
    ended = yard.pytest("suites/digits")
    assert ended.code == 1, ended.out
    assert ended.verdicts == {"digits-1x1": "FAILED"}
    assert ended.results["cases"][0]["reason"].startswith("accuracy 0.")


def test_its_claims_notice_when_the_ranks_train_apart(yard: Yard) -> None:
    training = pasted(yard) / "miniature/training.py"
    text, changed = re.subn(r"Exchange\(job\.rank, job\.size,", "Exchange(job.rank, 1,", training.read_text())
    assert changed == 1
    training.write_text(text)
    ended = yard.pytest("suites/spirals", "--nodes", "1")
    assert ended.code == 1, ended.out
    assert ended.verdicts == {"spirals-1x2": "FAILED"}


@pytest.mark.parametrize("page", PAGES)
def test_what_the_page_points_to_is_there(page: str) -> None:
    text = (ROOT / page).read_text(encoding="utf-8")
    for target in re.findall(r"\]\(([\w.-]+\.md)(?:#([\w-]+))?\)", text):
        other = ROOT / "docs" / target[0]
        assert other.is_file(), target
        anchors = {re.sub(r"[^\w -]", "", line.lstrip("# ").lower()).replace(" ", "-")
                   for line in other.read_text(encoding="utf-8").splitlines() if line.startswith("#")}  # fmt: skip
        assert not target[1] or target[1] in anchors, target
