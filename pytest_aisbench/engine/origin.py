"""Where a run comes from: the CI server and build that started it, and the commit and branch of the suites.

CI servers tell all of it by environment variables. Without them `git` is asked, once for each run; a folder without a
repository, or a machine without git, has no commit. No address of a remote is read: it may hold a token.
"""

from __future__ import annotations

import re
import subprocess
from collections.abc import Mapping
from dataclasses import replace
from urllib.parse import urlsplit, urlunsplit

from pytest_aisbench.logs import get_logger, log_ignored
from pytest_aisbench.model.messages import plain
from pytest_aisbench.model.results import Executor

_LOG = get_logger("fleet")
_COMMIT = re.compile(r"[0-9a-f]{7,64}")
_LONGEST_BRANCH = 200
_GIT_S = 5.0  # a repository on a slow disk must not hold up a run
_GIT = ("git", "--no-optional-locks", "status", "--porcelain=v2", "--branch", "--untracked-files=no")


def origin(variables: Mapping[str, str], folder: str) -> Executor:
    """The CI server, build, commit and branch by these variables; commit and branch else by the folder's repository."""
    started_by = executor(variables)
    return started_by if started_by.commit else _with_git(started_by, folder)


def executor(variables: Mapping[str, str]) -> Executor:
    """The CI server and build that started the run, by the environment variables that it sets."""

    def variable(*names: str) -> str:
        return next((variables[name] for name in names if variables.get(name)), "")

    if variable("JENKINS_URL"):
        build = _named("Jenkins", variable("JOB_NAME"), variable("BUILD_NUMBER"), variable("BUILD_URL"))
        branch = variable("BRANCH_NAME", "GIT_BRANCH").removeprefix("origin/")
        return _from_commit(build, variable("GIT_COMMIT"), branch)
    if variable("GITLAB_CI"):
        build = _named("GitLab", variable("CI_PROJECT_PATH"), variable("CI_PIPELINE_IID"), variable("CI_JOB_URL"))
        return _from_commit(build, variable("CI_COMMIT_SHA"), variable("CI_COMMIT_REF_NAME"))
    if variable("GITHUB_ACTIONS"):
        parts = [variable(name) for name in ("GITHUB_SERVER_URL", "GITHUB_REPOSITORY", "GITHUB_RUN_ID")]
        url = "{}/{}/actions/runs/{}".format(*parts) if all(parts) else ""
        build = _named("GitHub", variable("GITHUB_WORKFLOW"), variable("GITHUB_RUN_NUMBER"), url)
        return _from_commit(build, variable("GITHUB_SHA"), variable("GITHUB_HEAD_REF", "GITHUB_REF_NAME"))
    return Executor()


def _named(name: str, job: str, number: str, url: str) -> Executor:
    order = int(number) if number.isascii() and number.isdigit() else None
    build = f"{job} #{number}".strip() if number else job
    return Executor(name, build, _without_keys(url), order)


def _from_commit(build: Executor, commit: str, branch: str) -> Executor:
    if not _COMMIT.fullmatch(commit):
        return build
    return replace(build, commit=commit, branch=plain(branch, _LONGEST_BRANCH))


def _without_keys(url: str) -> str:
    """The link to a build without the user name, token and query that it may contain."""
    try:
        parts = urlsplit(url)
    except ValueError as error:
        log_ignored(_LOG, error, "the link to the build")
        return ""
    if parts.scheme not in {"http", "https"}:
        return ""
    return urlunsplit((parts.scheme, parts.netloc.rpartition("@")[2], parts.path, "", ""))


def _with_git(build: Executor, folder: str) -> Executor:
    """The commit that is checked out in the folder, its branch, and whether files that git knows were changed since."""
    try:
        asked = subprocess.run(_GIT, cwd=folder, capture_output=True, timeout=_GIT_S, check=False)
    except (OSError, subprocess.SubprocessError) as error:
        log_ignored(_LOG, error, "the commit of the suites")
        return build
    if asked.returncode:  # most often there is no repository
        _LOG.debug("git tells no commit of %s: exit code %d", folder, asked.returncode)
        return build
    lines = asked.stdout.decode("utf-8", "replace").splitlines()
    heads = dict(line[2:].split(" ", 1) for line in lines if line.startswith("# branch.") and line.count(" ") > 1)
    branch = heads.get("branch.head", "")
    known = _from_commit(build, heads.get("branch.oid", ""), "" if branch == "(detached)" else branch)
    return replace(known, modified=any(not line.startswith("#") for line in lines)) if known.commit else build
