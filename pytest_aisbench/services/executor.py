"""Which CI server runs this, by the variables that it sets."""

from __future__ import annotations

from collections.abc import Mapping
from urllib.parse import urlsplit, urlunsplit

from pytest_aisbench.domain.executor import Executor
from pytest_aisbench.logs import get_logger, log_ignored

_LOG = get_logger("session")


def executor(variables: Mapping[str, str]) -> Executor:
    def told(name: str) -> str:
        return variables.get(name, "")

    if told("JENKINS_URL"):
        return _named("Jenkins", told("JOB_NAME"), told("BUILD_NUMBER"), told("BUILD_URL"))
    if told("GITLAB_CI"):
        return _named("GitLab", told("CI_PROJECT_PATH"), told("CI_PIPELINE_IID"), told("CI_JOB_URL"))
    if told("GITHUB_ACTIONS"):
        server, repository, run = told("GITHUB_SERVER_URL"), told("GITHUB_REPOSITORY"), told("GITHUB_RUN_ID")
        url = f"{server}/{repository}/actions/runs/{run}" if server and repository and run else ""
        return _named("GitHub", told("GITHUB_WORKFLOW"), told("GITHUB_RUN_NUMBER"), url)
    return Executor()


def _named(name: str, job: str, number: str, url: str) -> Executor:
    order = int(number) if number.isascii() and number.isdigit() else None
    build = f"{job} #{number}".strip() if number else job
    return Executor(name, build, _without_keys(url), order)


def _without_keys(url: str) -> str:
    """A build may be linked to with somebody's name and token in it."""
    try:
        parts = urlsplit(url)
    except ValueError as error:
        log_ignored(_LOG, error, "the link to the build")
        return ""
    if parts.scheme not in {"http", "https"}:
        return ""
    return urlunsplit((parts.scheme, parts.netloc.rpartition("@")[2], parts.path, "", ""))
