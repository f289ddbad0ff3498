"""`aisbench require`: the manifest of what pytest would judge now, to be reviewed and kept."""

from __future__ import annotations

import argparse
import contextlib
import io
import sys
from typing import Any

_USAGE = """usage: aisbench require [PYTEST ARGUMENT …] > required.txt

Prints the ids of the cases that `pytest` with these arguments would judge, a line each, sorted.
`--aisbench-require required.txt` then misses each that was not judged."""


def register(acts: Any) -> None:
    # Whatever begins with a dash is pytest's: here it is an argument like the others.
    parser = acts.add_parser(
        "require", help="print the cases that pytest would judge, as a manifest", add_help=False, prefix_chars="\0"
    )
    parser.add_argument("arguments", nargs="*", metavar="PYTEST ARGUMENT")
    parser.set_defaults(act=_require)


def _require(options: argparse.Namespace) -> int:
    if options.arguments in (["-h"], ["--help"]):
        print(_USAGE)
        return 0
    import pytest

    seen, told = Collected(), io.StringIO()
    with contextlib.redirect_stdout(told):
        code = int(pytest.main(["--collect-only", "-q", *options.arguments], plugins=[seen]))
    if code or not seen.cases:
        print(told.getvalue().rstrip() or "aisbench require: no case is collected", file=sys.stderr)
        return code or int(pytest.ExitCode.NO_TESTS_COLLECTED)
    print("\n".join(sorted(seen.cases)))
    return 0


class Collected:
    """A pytest plugin object."""

    def __init__(self) -> None:
        self.cases: set[str] = set()

    def pytest_collection_finish(self, session: Any) -> None:
        from pytest_aisbench.session.collection import judged_cases

        self.cases |= judged_cases(session.items)
