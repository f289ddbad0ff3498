"""`aisbench flush` and `aisbench stubs`: results that are on their way to a Tester."""

from __future__ import annotations

import argparse
import json
import sys
from contextlib import closing
from pathlib import Path
from typing import Any

from pytest_aisbench.commands import means
from pytest_aisbench.commands.means import FAILED
from pytest_aisbench.errors import UsageFault
from pytest_aisbench.settings import LOCAL


def register(acts: Any) -> None:
    flush = acts.add_parser("flush", help="deliver the results that runs could not upload to their Tester")
    what = flush.add_mutually_exclusive_group()
    what.add_argument("--dead", action="store_true", help="deliver nothing; show what a Tester will never take")
    what.add_argument(
        "--requeue", metavar="KEY", help="try this dead letter again; the first digits of its key will do"
    )
    what.add_argument(
        "--stub-log", type=Path, metavar="FILE", help="upload the result that an ais-bench-stubs log tells"
    )
    flush.add_argument("--json", action="store_true", help="for programs")
    flush.add_argument("--patience", default="30s", metavar="TIME", help="try each Tester for so long (default 30s)")
    flush.add_argument("--tester", metavar="URL", help="the Tester of --stub-log, and whose token is in [tester]")
    flush.add_argument("--config", metavar="FILE", help="settings in TOML (default: aisbench.toml in this folder)")
    means.ledger_options(flush)
    flush.set_defaults(act=_flush)
    stubs = acts.add_parser("stubs", help="exit as benchmark.sh of an ais-bench package does, by results.json")
    stubs.add_argument("results", nargs="?", type=Path, metavar="FILE", help="default: reports/latest/results.json")
    stubs.set_defaults(act=_stubs)


def _flush(options: argparse.Namespace) -> int:
    from pytest_aisbench.desk import Flushing
    from pytest_aisbench.domain.upload import State
    from pytest_aisbench.reporters import uploads
    from pytest_aisbench.settings.option_types import duration

    try:
        patience_s = duration(options.patience)
    except ValueError as error:
        raise UsageFault(f"--patience: {error}") from None
    settings = means.settings(options, platform=LOCAL)
    with closing(means.ledger(settings, new=options.stub_log is not None)) as ledger:
        flushing = Flushing(settings, ledger.database, patience_s)
        if options.requeue:
            flushing.requeue(options.requeue)
        if options.stub_log:
            flushing.take_log(options.stub_log)
        found = flushing.dead() if options.dead else flushing.flush()
    if options.json:
        print(json.dumps(uploads.document(found), indent=2, ensure_ascii=False))
    else:
        print("\n".join(uploads.lines(found)) or ("no dead letter" if options.dead else "nothing is spooled"))
    return 0 if options.dead or all(parcel.state is State.DELIVERED for parcel in found) else FAILED


def _stubs(options: argparse.Namespace) -> int:
    from pytest_aisbench.adapters.stubs import benchmark_exit

    file = options.results or means.settings(options).reports / "latest" / "results.json"
    try:
        return benchmark_exit(json.loads(file.read_bytes()))
    except (OSError, ValueError, LookupError, TypeError) as error:
        print(f"aisbench stubs: {file} cannot be read: {error}", file=sys.stderr)
        return 1  # the step that comes first failed
