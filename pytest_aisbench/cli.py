"""`aisbench`: what is not a test."""

from __future__ import annotations

import argparse
import sys
from collections.abc import Sequence
from pathlib import Path

from pytest_aisbench import __version__


def main(arguments: Sequence[str] | None = None) -> int:
    options = _parser().parse_args(arguments)
    return int(options.act(options) or 0)


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser("aisbench", description="Train, and let pytest judge the result.")
    parser.add_argument("--version", action="version", version=f"pytest-aisbench {__version__}")
    acts = parser.add_subparsers(required=True, metavar="COMMAND")
    cloud = acts.add_parser("cloud", help="serve the local cloud alone, for other clients, until stopped")
    cloud.add_argument("--json", action="store_true", help="print endpoints and keys as one JSON line")
    cloud.add_argument("--data", type=Path, metavar="DIR", help="keep buckets here (default: a temporary folder)")
    cloud.add_argument("--engine", choices=["processes", "pretend"], default="processes", help="how jobs are run")
    cloud.add_argument("--faults", type=Path, metavar="FILE", help="faults that stand from the start, JSON or TOML")
    cloud.set_defaults(act=_cloud)
    return parser


def _cloud(options: argparse.Namespace) -> int:
    import json

    from pytest_aisbench.errors import UsageFault
    from pytest_aisbench.localcloud import fault
    from pytest_aisbench.localcloud.server import DataInUseError, serve

    try:
        faults = fault.read(options.faults) if options.faults else []
        serve(options.data, show=json.dumps if options.json else _card, engine=options.engine, faults=faults)
    except (DataInUseError, UsageFault, OSError) as error:
        print(f"aisbench cloud: {error}", file=sys.stderr)
        return 4
    return 0


def _card(card: dict[str, str]) -> str:
    """The secret key too: whoever starts the cloud needs it."""
    lines = [f"  {key:<20} {value}" for key, value in card.items()]
    return "\n".join(["The local cloud serves until it is stopped (Ctrl-C).", *lines])
