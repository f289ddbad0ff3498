"""`aisbench cloud`: serve the local cloud for other clients, until it is stopped."""

from __future__ import annotations

import argparse
import json
import sys
from pathlib import Path
from typing import Any

from pytest_aisbench.cli.options import USAGE
from pytest_aisbench.config.options import parse_frameworks, python_by_framework
from pytest_aisbench.errors import UsageFault
from pytest_aisbench.localcloud import faults as faults_module
from pytest_aisbench.localcloud.server import DataInUseError, serve


def register(commands: Any) -> None:
    cloud = commands.add_parser("cloud", help="serve the local cloud alone, for other clients, until stopped")
    cloud.add_argument("--json", action="store_true", help="print endpoints and keys as one JSON line")
    cloud.add_argument("--data", type=Path, metavar="DIR", help="keep buckets here (default: a temporary folder)")
    cloud.add_argument(
        "--engine",
        choices=["processes", "simulated", "pretend"],
        default="processes",
        help="how jobs are run (default: processes); pretend is the former name of simulated",
    )
    cloud.add_argument("--faults", type=Path, metavar="FILE", help="faults that stand from the start, JSON or TOML")
    cloud.add_argument("--v1-status-strings", action="store_true", help="V1 tells the states of jobs as texts")
    cloud.add_argument(
        "--frameworks",
        metavar="NAME=PYTHON",
        help="train with these, each by its own Python: mindspore=/venv/bin/python",
    )
    cloud.set_defaults(act=_cloud)


def _cloud(options: argparse.Namespace) -> int:
    try:
        faults = faults_module.read(options.faults) if options.faults else []
        serve(
            options.data,
            show=json.dumps if options.json else _card,
            engine=options.engine,
            faults=faults,
            v1_status_strings=options.v1_status_strings,
            interpreters=_interpreters(options.frameworks),
        )
    except (DataInUseError, OSError) as error:
        print(f"aisbench cloud: {error}", file=sys.stderr)
        return USAGE
    return 0


def _interpreters(text: str | None) -> dict[str, str]:
    try:
        pythons = python_by_framework(parse_frameworks(text)) if text else {}
    except ValueError as error:
        raise UsageFault(f"--frameworks: {error}") from None
    return {name: python for name, python in pythons.items() if python}


def _card(card: dict[str, str]) -> str:
    """The card for a person to read, with the secret key: the user who starts the cloud needs it."""
    lines = [f"  {key:<20} {value}" for key, value in card.items()]
    return "\n".join(["The local cloud serves until it is stopped (Ctrl-C).", *lines])
