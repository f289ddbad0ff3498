"""What the commands share: exit codes, the options that name a ledger or a platform, and opening these."""

from __future__ import annotations

import argparse
import os
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Any

from pytest_aisbench import registry
from pytest_aisbench.errors import UsageFault

if TYPE_CHECKING:
    from pytest_aisbench.config.settings import Settings
    from pytest_aisbench.ledger.runs import JobLedger
    from pytest_aisbench.model.ports import Platform

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
