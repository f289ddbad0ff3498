"""The command `aisbench`: everything that is not a test, such as `aisbench jobs` or `aisbench doctor`.

Begin with `_MODULES` below: it names the module of each command. A module has `register`, which adds the command's
parser, and the functions that carry the command out; what the commands share is at the end of this file. The modules
import what they need at their top, because `main` imports only the module of the command that was typed.

Only `__main__` and the entry point `aisbench` import this package, and the commands do not import each other.
"""

from __future__ import annotations

import argparse
import importlib
import io
import os
import sys
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, NoReturn

from pytest_aisbench import __version__, registry
from pytest_aisbench.config import start_hint
from pytest_aisbench.errors import AisbenchError, LedgerError, UsageFault

if TYPE_CHECKING:
    from pytest_aisbench.config.settings import Settings
    from pytest_aisbench.ledger.runs import JobLedger
    from pytest_aisbench.model.ports import Platform


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


# What the commands share.

FAILED, INTERRUPTED, INTERNAL, USAGE = 1, 2, 3, 4  # exit codes of a command that did not do what it was asked


def add_command(commands: Any, name: str, does: str, example: str, **more: Any) -> argparse.ArgumentParser:
    """Add a command to argparse's `commands`. `does` begins with a verb; --help shows it, and the example."""
    description = f"{does[0].upper()}{does[1:]}."
    parser: argparse.ArgumentParser = commands.add_parser(
        name, help=does, description=description, epilog=f"example: {example}", **more
    )
    return parser


def add_ledger_options(parser: argparse.ArgumentParser) -> None:
    one = parser.add_mutually_exclusive_group()
    one.add_argument("--ledger", metavar="FILE", help="the record of all runs (default: ledger.db among the reports)")
    one.add_argument("--reports", metavar="DIR", help="where it is (default: reports/)")


def add_platform_options(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--platform", metavar="NAME", help="where the job runs")
    parser.add_argument("--cloud", metavar="FILE", help="a local cloud that runs: what `aisbench cloud --json` printed")
    parser.add_argument("--config", metavar="FILE", help="settings in TOML (default: aisbench.toml in this folder)")
    parser.add_argument("--modelarts-version", metavar="V1|V2", help="which training-job API")
    parser.add_argument("--modelarts-client", metavar="sdk|wheel", help="the SDK, or the vendor's modelarts wheel")


def add_package_options(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--package", metavar="DIR", help="an unpacked ais-bench package")
    parser.add_argument("--trust-config", action="store_const", const="true", help="execute what cannot be parsed")


def at_least(least: int, what: str) -> Callable[[str], int]:
    """A type for argparse: a whole number that is `least` or more."""

    def parse(text: str) -> int:
        if not text.isdecimal() or int(text) < least:
            raise argparse.ArgumentTypeError(f"{text!r} is not {what}: {least} or more")
        return int(text)

    return parse


def write_text(file: Path, text: str) -> None:
    """Write a file that the user named, with line ends as they are."""
    try:
        file.write_bytes(text.encode())
    except OSError as error:
        raise UsageFault(f"{file}: {error.strerror}") from None


def read_settings(options: argparse.Namespace, **given: str) -> Settings:
    """The settings as pytest would read them in this folder, without its ini file; `given` overrides the options."""
    from pytest_aisbench.config.loading import load_settings
    from pytest_aisbench.config.options import OPTIONS

    values = {row.name: getattr(options, row.name, None) for row in OPTIONS}
    return load_settings({**values, **given}, {}, os.environ, Path.cwd(), registry.of_commands())


def open_ledger(settings: Settings, *, new: bool = False) -> JobLedger:
    from pytest_aisbench.ledger.runs import JobLedger

    return JobLedger(settings.ledger_file, new=new)


def connect_platform(settings: Settings) -> Platform:
    offered = registry.of_commands()
    offered.kind(settings.platform).require_lasting_jobs(settings)
    return offered.connect(settings)
