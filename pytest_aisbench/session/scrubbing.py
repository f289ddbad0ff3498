"""Takes secrets out of pytest's own reports, before any reporter sees them.

A traceback shows the locals of every frame (`--showlocals`), the vendor's signers among them, and a test may print what
it likes. `session.run_owner` registers this module as a pytest plugin. The masks know every value that a Secret of this
process has held.
"""

from __future__ import annotations

from collections.abc import Generator
from typing import Any

import pytest

from pytest_aisbench.secret import bare_address, mask

_DEEPEST = 8  # a report is a tree of small objects: chain, traceback, entry, locals


@pytest.hookimpl(wrapper=True, trylast=True)  # the innermost: Allure's and pytest-html's see what it returns
def pytest_runtest_makereport(call: pytest.CallInfo[None]) -> Generator[None, pytest.TestReport, pytest.TestReport]:
    if call.excinfo:
        _scrub_error(call.excinfo.value)
    report = yield
    if report.longrepr is not None:
        report.longrepr = _scrubbed(report.longrepr)
    if report.sections:
        report.sections = [(name, mask(text)) for name, text in report.sections]
    return report


@pytest.hookimpl(tryfirst=True)
def pytest_internalerror(excrepr: Any) -> None:
    _scrubbed(excrepr)


def scrub_environment(config: pytest.Config) -> None:
    """Mask what pytest-metadata took from a CI server: the address of a build may hold a user name and a token.

    pytest-html shows these very values, which are therefore replaced in place.
    """
    if not config.pluginmanager.has_plugin("metadata"):
        return
    from pytest_metadata.plugin import metadata_key  # type: ignore[import-untyped]

    values: dict[str, Any] = config.stash.get(metadata_key, {})
    for name, value in values.items():
        if isinstance(value, str) and "://" in value:
            values[name] = bare_address(mask(value), is_address=name.endswith("URL"))


def _scrub_error(error: BaseException | None) -> None:
    """Mask the texts of an exception and of its causes: Allure takes them from there, and not from the report."""
    for _ in range(_DEEPEST):
        if error is None:
            return
        if any(isinstance(value, str) and mask(value) != value for value in error.args):
            error.args = tuple(mask(value) if isinstance(value, str) else value for value in error.args)
        error = error.__cause__ or error.__context__


def _scrubbed(value: Any, depth: int = 0) -> Any:
    """The value without secrets: texts are replaced, lists and the parts of pytest's own objects in place."""
    if isinstance(value, str):
        return mask(value)
    if isinstance(value, (list, tuple)):
        parts = [_scrubbed(part, depth + 1) for part in value]
        return parts if isinstance(value, list) else tuple(parts)
    if depth < _DEEPEST and type(value).__module__.startswith("_pytest."):
        for name, part in vars(value).items():
            if isinstance(part, (str, list, tuple)) or type(part).__module__.startswith("_pytest."):
                object.__setattr__(value, name, _scrubbed(part, depth + 1))
    return value
