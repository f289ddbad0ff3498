"""`aisbench flush` delivers the results that runs could not upload; `aisbench stubs` exits as the stubs do."""

from __future__ import annotations

import argparse
import json
import sys
from collections.abc import Sequence
from contextlib import closing
from pathlib import Path
from typing import TYPE_CHECKING, Any

from pytest_aisbench.cli import FAILED, add_command, add_ledger_options, connect_platform, open_ledger, read_settings
from pytest_aisbench.config.options import LOCAL, parse_duration
from pytest_aisbench.errors import UsageFault
from pytest_aisbench.model.messages import plain
from pytest_aisbench.model.results import UploadItem, UploadState
from pytest_aisbench.tester.transports import benchmark_exit
from pytest_aisbench.tester.uploader import Flusher, with_own_token

if TYPE_CHECKING:
    from pytest_aisbench.config.access import TesterAccess
    from pytest_aisbench.config.settings import Settings

SCHEMA = "aisbench-uploads/1"


def register(commands: Any) -> None:
    flush = add_command(
        commands,
        "flush",
        "deliver the results that runs could not upload to their Tester",
        "aisbench flush --patience 5m",
    )
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
    flush.add_argument("--cloud", metavar="FILE", help="the local cloud whose Tester it is: its card has the token")
    flush.add_argument("--config", metavar="FILE", help="settings in TOML (default: aisbench.toml in this folder)")
    add_ledger_options(flush)
    flush.set_defaults(act=_flush)
    stubs = add_command(
        commands,
        "stubs",
        "exit as benchmark.sh of an ais-bench package does, by results.json",
        "aisbench stubs reports/latest/results.json",
    )
    stubs.add_argument("results", nargs="?", type=Path, metavar="FILE", help="default: reports/latest/results.json")
    stubs.set_defaults(act=_stubs)


def _flush(options: argparse.Namespace) -> int:
    try:
        patience_s = parse_duration(options.patience)
    except ValueError as error:
        raise UsageFault(f"--patience: {error}") from None
    settings = read_settings(options, platform=LOCAL)
    with closing(open_ledger(settings, new=options.stub_log is not None)) as ledger:
        flushing = Flusher(settings, ledger.database, patience_s, _access(settings))
        if options.requeue:
            flushing.requeue(options.requeue)
        if options.stub_log:
            flushing.take_log(options.stub_log)
        uploads = flushing.dead() if options.dead else flushing.flush()
    if options.json:
        print(json.dumps(document(uploads), indent=2, ensure_ascii=False))
    else:
        print("\n".join(lines(uploads)) or ("no dead letter" if options.dead else "nothing is spooled"))
    return 0 if options.dead or all(upload.state is UploadState.DELIVERED for upload in uploads) else FAILED


def _access(settings: Settings) -> TesterAccess:
    if settings.cloud is None:
        return settings.tester_access
    with closing(connect_platform(settings)) as platform:
        return with_own_token(settings.tester_access, platform)


def _stubs(options: argparse.Namespace) -> int:
    file = options.results or read_settings(options).reports / "latest" / "results.json"
    try:
        return benchmark_exit(json.loads(file.read_bytes()))
    except (OSError, ValueError, LookupError, TypeError) as error:
        print(f"aisbench stubs: {file} cannot be read: {error}", file=sys.stderr)
        return 1  # the step that comes first failed


def lines(uploads: Sequence[UploadItem]) -> list[str]:
    return [
        f"{upload.state.value:<9} {upload.key[:12]} {upload.run} {upload.case} → {upload.destination}"
        + (f": {plain(upload.why)}" if upload.why else "")
        for upload in uploads
    ]


def document(uploads: Sequence[UploadItem]) -> dict[str, Any]:
    return {"schema": SCHEMA, "uploads": [_row(upload) for upload in uploads]}


def _row(upload: UploadItem) -> dict[str, Any]:
    return {
        "key": upload.key,
        "run": upload.run,
        "case": upload.case,
        "kind": upload.kind,
        "attempt": upload.attempt,
        "testid": upload.testid,
        "tester": upload.destination,
        "state": upload.state.value,
        "why": upload.why,
    }
