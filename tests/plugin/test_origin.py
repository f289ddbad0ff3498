"""A run says which CI build started it, and from which commit; it never says what is secret in an address."""

from __future__ import annotations

import json
import platform
import subprocess
from contextlib import closing
from dataclasses import replace
from pathlib import Path

import pytest
from factories import make_case_entry, make_run_entry
from yard import Yard

from pytest_aisbench.engine.run import origin
from pytest_aisbench.ledger.ledger import Ledger
from pytest_aisbench.model.results import Destination, Executor, RunEnd
from pytest_aisbench.report import index
from pytest_aisbench.report.page_head import overview
from pytest_aisbench.report.results import results_document
from pytest_aisbench.tester import payload

COMMIT = "1a2b3c4d5e6f708192a3b4c5d6e7f8091a2b3c4d"
JENKINS = {
    "JENKINS_URL": "https://ci.example/",
    "JOB_NAME": "nightly",
    "BUILD_NUMBER": "12",
    "BUILD_URL": "https://robot:s3cret@ci.example/job/nightly/12/?token=s3cret",
    "GIT_COMMIT": COMMIT,
    "GIT_BRANCH": "origin/main",
}
GITLAB = {"GITLAB_CI": "true", "CI_COMMIT_SHA": COMMIT, "CI_COMMIT_REF_NAME": "main"}
GITHUB = {"GITHUB_ACTIONS": "true", "GITHUB_SHA": COMMIT, "GITHUB_REF_NAME": "7/merge", "GITHUB_HEAD_REF": "main"}
NIGHTLY = Executor("Jenkins", "nightly #12", "https://ci.example/job/nightly/12/", 12, COMMIT, "main")


def git(folder: Path, *arguments: str) -> str:
    who = ("-c", "user.name=a", "-c", "user.email=a@example", "-c", "init.defaultBranch=trunk")
    return subprocess.run(["git", *who, *arguments], cwd=folder, check=True, capture_output=True, text=True).stdout


@pytest.fixture
def repository(tmp_path: Path) -> Path:
    folder = tmp_path / "repository"
    (folder / "suites").mkdir(parents=True)
    (folder / "suites" / "train.py").write_text("1")
    git(folder, "init", "-q")
    git(folder, "add", ".")
    git(folder, "commit", "-qm", "first")
    git(folder, "remote", "add", "origin", "https://robot:s3cret@git.example/suites.git")
    return folder


@pytest.mark.parametrize("variables", [JENKINS, GITLAB, GITHUB], ids=["jenkins", "gitlab", "github"])
def test_a_ci_server_tells_commit_and_branch(variables: dict[str, str], repository: Path) -> None:
    told = origin(variables, str(repository))
    assert (told.commit, told.branch, told.modified) == (COMMIT, "main", None)


def test_a_build_is_told_without_the_secrets_of_its_address(tmp_path: Path) -> None:
    assert origin(JENKINS, str(tmp_path)) == NIGHTLY
    assert origin({**JENKINS, "USER": "ann"}, str(tmp_path)).user == f"ann@{platform.node()}"


def test_without_a_ci_server_git_tells_them_and_whether_files_were_changed(repository: Path) -> None:
    head = git(repository, "rev-parse", "HEAD").strip()
    (repository / "reports.txt").write_text("git does not know it")
    assert origin({}, str(repository / "suites")) == Executor(commit=head, branch="trunk", modified=False)

    (repository / "suites" / "train.py").write_text("2")
    git(repository, "checkout", "-q", "--detach")
    told = origin({}, str(repository))
    assert told == Executor(commit=head, branch="", modified=True)
    assert told.commit_text == f"{head[:10]}+"


def test_a_server_that_names_no_commit_is_completed_by_git(repository: Path) -> None:
    told = origin({**JENKINS, "GIT_COMMIT": "$(reboot)"}, str(repository))
    assert (told.build, told.branch) == ("nightly #12", "trunk")


@pytest.mark.parametrize("path", [None, "/nowhere"], ids=["no repository", "no git"])
def test_without_a_repository_or_without_git_a_run_has_no_commit(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, path: str | None
) -> None:
    if path:
        monkeypatch.setenv("PATH", path)
    assert origin({}, str(tmp_path)) == Executor()


def test_a_repository_without_a_commit_has_none(tmp_path: Path) -> None:
    git(tmp_path, "init", "-q")
    assert origin({}, str(tmp_path)) == Executor()


def test_results_page_list_and_uploads_say_it_alike(tmp_path: Path) -> None:
    run = replace(make_run_entry(make_case_entry()), executor=NIGHTLY)
    document = {
        "server": "Jenkins",
        "build": "nightly #12",
        "number": 12,
        "url": "https://ci.example/job/nightly/12/",
        "commit": COMMIT,
        "branch": "main",
        "modified": None,
    }
    assert results_document(run)["origin"] == document

    page = overview(run.cases, run)
    assert "1a2b3c4d5e main" in page
    assert "<a href='https://ci.example/job/nightly/12/'>nightly #12</a>" in page

    with closing(Ledger(tmp_path / "ledger.db")) as ledger:
        ledger.begin("run-1", {"platform": "local"}, 100.0, executor=NIGHTLY)
        (tmp_path / "run-1").mkdir()
        runs = index.write(ledger.database, tmp_path).read_text(encoding="utf-8")
    assert "<code>1a2b3c4d5e main</code>" in runs
    assert '<a href="https://ci.example/job/nightly/12/">Jenkins nightly #12</a>' in runs

    bound = Destination("https://tester.example/", "local", "", origin=NIGHTLY)
    assert payload.result_body(bound, "run-1", run.cases[0], 1)["origin"] == document
    end = payload.end_upload(bound, RunEnd("run-1", 1.0, 2.0, 0, {}, 0.0), 1)
    assert json.loads(end.body)["origin"] == document
    nowhere = replace(bound, origin=Executor())
    assert "origin" not in payload.result_body(nowhere, "run-1", run.cases[0], 1)


@pytest.mark.slow
def test_no_file_of_a_run_holds_what_is_secret_in_the_address_of_its_build(yard: Yard) -> None:
    """pytest-metadata gives pytest-html the address as the server set it."""
    yard.suite()
    ended = yard.pytest("suites", "--nodes", "1", env=JENKINS)
    assert ended.code == 0, ended.out
    assert ended.results["origin"]["url"] == NIGHTLY.url
    files = [path for path in (yard.folder / "reports").rglob("*") if path.is_file()]
    assert [path.name for path in files if b"s3cret" in path.read_bytes()] == []
    page = (yard.folder / "reports" / "latest" / "report.html").read_text(encoding="utf-8")
    assert page.count(NIGHTLY.url) >= 2  # pytest-html's own table, and ours


@pytest.mark.slow
def test_the_header_of_a_verbose_run_shows_no_secret_of_a_build(yard: Yard) -> None:
    """pytest-metadata prints what it took from the CI server before a run exists."""
    yard.suite()
    shown = yard.pytest("suites", "-v", "--collect-only", env=JENKINS).out
    assert "'BUILD_URL': 'https://ci.example/job/nightly/12/'" in shown
    assert "s3cret" not in shown
