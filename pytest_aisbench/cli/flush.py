"""`aisbench flush` and `aisbench stubs`: results that are on their way to a Tester."""

from __future__ import annotations

import argparse
import json
import sys
from collections.abc import Sequence
from contextlib import closing
from pathlib import Path
from typing import Any

from pytest_aisbench.cli import options as options_module
from pytest_aisbench.cli.options import FAILED, ledger_options, settings
from pytest_aisbench.config.settings import LOCAL
from pytest_aisbench.errors import UsageFault
from pytest_aisbench.model.messages import plain
from pytest_aisbench.model.results import UploadItem


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
    ledger_options(flush)
    flush.set_defaults(act=_flush)
    stubs = acts.add_parser("stubs", help="exit as benchmark.sh of an ais-bench package does, by results.json")
    stubs.add_argument("results", nargs="?", type=Path, metavar="FILE", help="default: reports/latest/results.json")
    stubs.set_defaults(act=_stubs)


def _flush(options: argparse.Namespace) -> int:
    from pytest_aisbench.config.settings import parse_duration
    from pytest_aisbench.model.results import UploadState
    from pytest_aisbench.tester.uploader import Flusher

    try:
        patience_s = parse_duration(options.patience)
    except ValueError as error:
        raise UsageFault(f"--patience: {error}") from None
    settings = options_module.settings(options, platform=LOCAL)
    with closing(options_module.ledger(settings, new=options.stub_log is not None)) as ledger:
        flushing = Flusher(settings, ledger.database, patience_s)
        if options.requeue:
            flushing.requeue(options.requeue)
        if options.stub_log:
            flushing.take_log(options.stub_log)
        found = flushing.dead() if options.dead else flushing.flush()
    if options.json:
        print(json.dumps(document(found), indent=2, ensure_ascii=False))
    else:
        print("\n".join(lines(found)) or ("no dead letter" if options.dead else "nothing is spooled"))
    return 0 if options.dead or all(parcel.state is UploadState.DELIVERED for parcel in found) else FAILED


def _stubs(options: argparse.Namespace) -> int:
    from pytest_aisbench.tester.transports import benchmark_exit

    file = options.results or settings(options).reports / "latest" / "results.json"
    try:
        return benchmark_exit(json.loads(file.read_bytes()))
    except (OSError, ValueError, LookupError, TypeError) as error:
        print(f"aisbench stubs: {file} cannot be read: {error}", file=sys.stderr)
        return 1  # the step that comes first failed


# -- Parcels for whoever asks from another shell: as lines, and as JSON.

SCHEMA = "aisbench-uploads/1"


def lines(parcels: Sequence[UploadItem]) -> list[str]:
    return [
        f"{parcel.state.value:<9} {parcel.key[:12]} {parcel.run} {parcel.case} → {parcel.destination}"
        + (f": {plain(parcel.why)}" if parcel.why else "")
        for parcel in parcels
    ]


def document(parcels: Sequence[UploadItem]) -> dict[str, Any]:
    return {"schema": SCHEMA, "uploads": [_row(parcel) for parcel in parcels]}


def _row(parcel: UploadItem) -> dict[str, Any]:
    return {
        "key": parcel.key,
        "run": parcel.run,
        "case": parcel.case,
        "kind": parcel.kind,
        "attempt": parcel.attempt,
        "testid": parcel.testid,
        "tester": parcel.destination,
        "state": parcel.state.value,
        "why": parcel.why,
    }
