"""`aisbench cloud`: serve the local cloud for other clients, until it is stopped. `aisbench cloud conform`: say how far
it is the vendor's.
"""

from __future__ import annotations

import argparse
import json
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from pytest_aisbench.cli import FAILED, USAGE, add_command
from pytest_aisbench.config.options import parse_frameworks, python_by_framework
from pytest_aisbench.errors import UsageFault
from pytest_aisbench.localcloud import faults as faults_module
from pytest_aisbench.localcloud.server import DataInUseError, serve

if TYPE_CHECKING:
    from pytest_aisbench.localcloud.conform import Probe


def register(commands: Any) -> None:
    cloud = add_command(
        commands,
        "cloud",
        "serve the local cloud alone, for other clients, until stopped",
        "aisbench cloud --json > card.json",
    )
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
        action="append",
        default=[],
        metavar="NAME=PYTHON",
        help="train with these, each by its own Python: mindspore=/venv/bin/python; may be given again",
    )
    cloud.set_defaults(act=_cloud)
    conform = add_command(
        cloud.add_subparsers(metavar="conform", dest="what"),
        "conform",
        "probe a local cloud, and print how much of each of the vendor's APIs it serves",
        "aisbench cloud conform --verbose",
    )
    conform.add_argument("--json", action="store_true", help="print the scores and every probe as JSON")
    conform.add_argument("--verbose", "-v", action="store_true", help="print every probe and where it comes from")
    conform.set_defaults(act=_conform)


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


def _conform(options: argparse.Namespace) -> int:
    from pytest_aisbench.localcloud import conform

    outcomes = []
    for outcome in conform.run():
        outcomes.append(outcome)
        if not options.json and (options.verbose or outcome.fault):
            print(_probe_line(outcome.probe, outcome.fault))
    scores = conform.scores(outcomes)
    if options.json:
        rows = [
            {"api": p.api, "kind": p.kind, "name": p.name, "source": p.source, "served": p.served, "fault": fault}
            for p, fault in outcomes
        ]
        print(json.dumps({"scores": [score._asdict() for score in scores], "probes": rows}, indent=1))
    else:
        print(conform.table(scores))
    return FAILED if any(outcome.fault for outcome in outcomes) else 0


def _probe_line(probe: Probe, fault: str) -> str:
    holds = f"FAILED: {fault}" if fault else "holds" if probe.served else "is not served, and says so"
    return f"{probe.api}, {probe.kind} {probe.name} ({probe.source}): {holds}"


def _interpreters(texts: Sequence[str]) -> dict[str, str]:
    try:
        pythons = python_by_framework(part for text in texts for part in parse_frameworks(text))
    except ValueError as error:
        raise UsageFault(f"--frameworks: {error}") from None
    return {name: python for name, python in pythons.items() if python}


def _card(card: dict[str, str]) -> str:
    """The card for a person to read, with the secret key: the user who starts the cloud needs it."""
    lines = [f"  {key:<20} {value}" for key, value in card.items()]
    return "\n".join(["The local cloud serves until it is stopped (Ctrl-C).", *lines])
