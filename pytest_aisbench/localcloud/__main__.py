"""`python -m pytest_aisbench.localcloud`: the local cloud as a process of its own."""

from __future__ import annotations

import argparse
from pathlib import Path
from typing import TYPE_CHECKING

from pytest_aisbench.errors import UsageFault
from pytest_aisbench.localcloud.server import ENGINE_CHOICES, ENGINES, DataInUseError, serve

if TYPE_CHECKING:
    from pytest_aisbench.localcloud.faults import Fault


def main() -> None:
    parser = argparse.ArgumentParser(prog="python -m pytest_aisbench.localcloud", description=__doc__)
    parser.add_argument("--data", type=Path, metavar="DIR", help="keep objects and keys here (default: keep nothing)")
    parser.add_argument("--watch-stdin", action="store_true", help="end when stdin does, that is, with the parent")
    parser.add_argument(
        "--engine",
        choices=ENGINE_CHOICES,
        default=ENGINES[0],
        help="how jobs are run (default: %(default)s); pretend is the former name of simulated",
    )
    parser.add_argument("--faults", type=Path, metavar="FILE", help="faults in force from the start, JSON or TOML")
    parser.add_argument("--v1-status-strings", action="store_true", help="V1 tells the states of jobs as texts")
    parser.add_argument(
        "--python",
        action="append",
        default=[],
        metavar="NAME=FILE",
        help="the Python for jobs of a framework, such as mindspore=/venv/bin/python; again for each",
    )
    parser.add_argument("--apulis", action="store_true", help="serve Apulis, too")
    options = parser.parse_args()
    try:
        faults = _read_faults(options.faults) if options.faults else []
        serve(
            options.data,
            watch_stdin=options.watch_stdin,
            engine=options.engine,
            faults=faults,
            v1_status_strings=options.v1_status_strings,
            interpreters=dict(option.split("=", 1) for option in options.python),
            apulis=options.apulis,
        )
    except (DataInUseError, UsageFault, OSError) as error:
        parser.exit(4, f"{parser.prog}: {error}\n")


def _read_faults(file: Path) -> list[Fault]:
    from pytest_aisbench.localcloud import faults

    return faults.read(file)


if __name__ == "__main__":
    main()
