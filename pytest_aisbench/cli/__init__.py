"""The command `aisbench`: one module per command that is not a test.

Begin with `options.py`, which the commands share, and the module named after the command. Nothing imports this
package but `__main__`; the commands do not import each other.
"""

from __future__ import annotations

import argparse
import io
import os
import sys
from collections.abc import Sequence
from typing import NoReturn

from pytest_aisbench import __version__
from pytest_aisbench.cli import cloud, doctor, flush, history, jobs, judge, ranktable, report, require, tester
from pytest_aisbench.cli.options import FAILED, INTERNAL, INTERRUPTED, USAGE
from pytest_aisbench.errors import AisbenchError, LedgerError, UsageFault

_COMMANDS = (
    cloud,
    jobs,
    doctor,
    flush,
    ranktable,
    judge,
    history,
    require,
    report,
    tester,
)


class _Parser(argparse.ArgumentParser):
    def error(self, message: str) -> NoReturn:
        self.print_usage(sys.stderr)
        self.exit(USAGE, f"{self.prog}: {message}\n")


def main(arguments: Sequence[str] | None = None) -> int:
    options = _parser().parse_args(arguments)
    if isinstance(sys.stdout, io.TextIOWrapper):
        sys.stdout.reconfigure(errors="replace")  # a log may hold what this terminal cannot show
    try:
        code = int(options.act(options) or 0)
        sys.stdout.flush()
        return code
    except AisbenchError as error:
        # Settings name the options as pytest has them.
        print(f"aisbench {options.command}: {str(error).replace('--aisbench-', '--')}", file=sys.stderr)
        return USAGE if isinstance(error, UsageFault) else INTERNAL if isinstance(error, LedgerError) else FAILED
    except KeyboardInterrupt:
        return INTERRUPTED
    except BrokenPipeError:  # whoever read us has had enough; the interpreter must not try to write the rest
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return FAILED


def _parser() -> argparse.ArgumentParser:
    parser = _Parser("aisbench", description="Train, and let pytest judge the result.")
    parser.add_argument("--version", action="version", version=f"pytest-aisbench {__version__}")
    acts = parser.add_subparsers(required=True, metavar="COMMAND", dest="command")
    for more in _COMMANDS:
        more.register(acts)
    return parser
