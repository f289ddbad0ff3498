"""The command `aisbench`: everything that is not a test, such as `aisbench jobs` or `aisbench doctor`.

Begin with `_MODULES` below: it names the module of each command. A module has `register`, which adds the command's
parser, and the functions that carry the command out; `options.py` holds what the commands share. The modules import
what they need at their top, because `main` imports only the module of the command that was typed.

Only `__main__` and the entry point `aisbench` import this package, and the commands do not import each other.
"""

from __future__ import annotations

import argparse
import importlib
import io
import os
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import NoReturn

from pytest_aisbench import __version__
from pytest_aisbench.cli.options import FAILED, INTERNAL, INTERRUPTED, USAGE
from pytest_aisbench.config import start_hint
from pytest_aisbench.errors import AisbenchError, LedgerError, UsageFault

_MODULES = {  # the module of each command, in the order in which --help shows them
    "init": "init",
    "cloud": "cloud",
    "jobs": "jobs",
    "stop": "jobs",
    "logs": "jobs",
    "doctor": "doctor",
    "flush": "flush",
    "stubs": "flush",
    "ranktable": "ranktable",
    "judge": "judge",
    "mllog": "judge",
    "history": "history",
    "references": "history",
    "require": "require",
    "report": "report",
    "tester": "tester",
}


class _Parser(argparse.ArgumentParser):
    def error(self, message: str) -> NoReturn:
        self.print_usage(sys.stderr)
        self.exit(USAGE, f"{self.prog}: {message}\n")


def main(arguments: Sequence[str] | None = None) -> int:
    arguments = sys.argv[1:] if arguments is None else arguments
    parser = _parser(arguments[0] if arguments else "")
    if not arguments and (hint := start_hint(Path())):
        parser.error(hint)
    options = parser.parse_args(arguments)
    if isinstance(sys.stdout, io.TextIOWrapper):
        sys.stdout.reconfigure(errors="replace")  # a log may hold what this terminal cannot show
    try:
        code = int(options.act(options) or 0)
        sys.stdout.flush()
        return code
    except AisbenchError as error:
        # Errors about settings name pytest's options; here they have no prefix.
        print(f"aisbench {options.command}: {str(error).replace('--aisbench-', '--')}", file=sys.stderr)
        return USAGE if isinstance(error, UsageFault) else INTERNAL if isinstance(error, LedgerError) else FAILED
    except KeyboardInterrupt:
        return INTERRUPTED
    except BrokenPipeError:  # the reader closed the pipe; the interpreter must not try to write the rest
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return FAILED


def _parser(command: str) -> argparse.ArgumentParser:
    """The parser of one command; of all commands if `command` is none of them, for --help and errors."""
    parser = _Parser(
        "aisbench",
        description="Train, and let pytest judge the result. `aisbench COMMAND --help` has an example of each command.",
        epilog="example: aisbench init && pytest",
    )
    parser.add_argument("--version", action="version", version=f"pytest-aisbench {__version__}")
    commands = parser.add_subparsers(required=True, metavar="COMMAND", dest="command")
    for module in dict.fromkeys([_MODULES[command]] if command in _MODULES else _MODULES.values()):
        importlib.import_module(f"{__name__}.{module}").register(commands)
    return parser
