"""`python -m pytest_aisbench.localcloud`: the local cloud as a process of its own."""

from __future__ import annotations

import argparse
from pathlib import Path

from pytest_aisbench.localcloud.server import DataInUseError, serve


def main() -> None:
    parser = argparse.ArgumentParser(prog="python -m pytest_aisbench.localcloud", description=__doc__)
    parser.add_argument("--data", type=Path, metavar="DIR", help="keep objects and keys here (default: keep nothing)")
    parser.add_argument("--watch-stdin", action="store_true", help="end when stdin does, that is, with the parent")
    options = parser.parse_args()
    try:
        serve(options.data, watch_stdin=options.watch_stdin)
    except (DataInUseError, OSError) as error:
        parser.exit(4, f"{parser.prog}: {error}\n")


if __name__ == "__main__":
    main()
