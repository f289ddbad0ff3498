"""`aisbench require`: print the cases that pytest would judge now, as a manifest to review and keep."""

from __future__ import annotations

import argparse
import contextlib
import io
import sys
from typing import Any

import pytest

from pytest_aisbench.cli import add_command

_USAGE = """usage: aisbench require [PYTEST ARGUMENT …] > required.txt

Prints the ids of the cases that `pytest` with these arguments would judge, a line each, sorted.
`--aisbench-require required.txt` then misses each that was not judged.

example: aisbench require suites/ --nodes 1,2 > required.txt"""


def register(commands: Any) -> None:
    # pytest reads the arguments that begin with a dash; this parser takes them like any other.
    parser = add_command(
        commands,
        "require",
        "print the cases that pytest would judge, as a manifest",
        "aisbench require suites/ --nodes 1,2 > required.txt",
        add_help=False,
        prefix_chars="\0",
    )
    parser.add_argument("arguments", nargs="*", metavar="PYTEST ARGUMENT")
    parser.set_defaults(act=_require)


def _require(options: argparse.Namespace) -> int:
    if options.arguments in (["-h"], ["--help"]):
        print(_USAGE)
        return 0
    collected, output = _CollectedCases(), io.StringIO()
    with contextlib.redirect_stdout(output):
        code = int(pytest.main(["--collect-only", "-q", *options.arguments], plugins=[collected]))
    if code or not collected.cases:
        print(output.getvalue().rstrip() or "aisbench require: no case is collected", file=sys.stderr)
        return code or int(pytest.ExitCode.NO_TESTS_COLLECTED)
    print("\n".join(sorted(collected.cases)))
    return 0


class _CollectedCases:
    """A pytest plugin that keeps the ids of the cases that are to be judged."""

    def __init__(self) -> None:
        self.cases: set[str] = set()

    def pytest_collection_finish(self, session: pytest.Session) -> None:
        from pytest_aisbench.session.collection import judged_cases

        self.cases |= judged_cases(session.items)
