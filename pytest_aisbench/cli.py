"""`aisbench`: what is not a test."""

from __future__ import annotations

import argparse
import io
import json
import os
import sys
from collections.abc import Iterator, Sequence
from contextlib import closing
from pathlib import Path
from typing import TYPE_CHECKING, NoReturn

from pytest_aisbench import (
    __version__,
    cli_history,
    cli_judge,
    cli_means,
    cli_ranktable,
    cli_report,
    cli_require,
    cli_tester,
)
from pytest_aisbench.errors import AisbenchError, LedgerError, UsageFault

if TYPE_CHECKING:
    from pytest_aisbench.domain.checkup import Check

_FAILED, _INTERRUPTED, _INTERNAL, _USAGE = 1, 2, 3, 4
_SHOWN = 50  # trials of `jobs --all`


class _Parser(argparse.ArgumentParser):
    def error(self, message: str) -> NoReturn:
        self.print_usage(sys.stderr)
        self.exit(_USAGE, f"{self.prog}: {message}\n")


def main(arguments: Sequence[str] | None = None) -> int:
    options = _parser().parse_args(arguments)
    if isinstance(sys.stdout, io.TextIOWrapper):
        sys.stdout.reconfigure(errors="replace")  # a log may hold what this terminal cannot show
    try:
        code = int(options.act(options) or 0)
        sys.stdout.flush()
        return code
    except AisbenchError as error:
        # Settings name the options as pytest has them.
        print(f"aisbench {options.command}: {str(error).replace('--aisbench-', '--')}", file=sys.stderr)
        return _USAGE if isinstance(error, UsageFault) else _INTERNAL if isinstance(error, LedgerError) else _FAILED
    except KeyboardInterrupt:
        return _INTERRUPTED
    except BrokenPipeError:  # whoever read us has had enough; the interpreter must not try to write the rest
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return _FAILED


def _parser() -> argparse.ArgumentParser:
    parser = _Parser("aisbench", description="Train, and let pytest judge the result.")
    parser.add_argument("--version", action="version", version=f"pytest-aisbench {__version__}")
    acts = parser.add_subparsers(required=True, metavar="COMMAND", dest="command")
    cloud = acts.add_parser("cloud", help="serve the local cloud alone, for other clients, until stopped")
    cloud.add_argument("--json", action="store_true", help="print endpoints and keys as one JSON line")
    cloud.add_argument("--data", type=Path, metavar="DIR", help="keep buckets here (default: a temporary folder)")
    cloud.add_argument("--engine", choices=["processes", "pretend"], default="processes", help="how jobs are run")
    cloud.add_argument("--faults", type=Path, metavar="FILE", help="faults that stand from the start, JSON or TOML")
    cloud.add_argument("--v1-status-strings", action="store_true", help="V1 tells the states of jobs as texts")
    cloud.add_argument(
        "--frameworks",
        metavar="NAME=PYTHON",
        help="train with these, each by its own Python: mindspore=/venv/bin/python",
    )
    cloud.set_defaults(act=_cloud)
    jobs = acts.add_parser("jobs", help="what runs, as the ledger says, and who owns it")
    jobs.add_argument("--json", action="store_true", help="for programs")
    jobs.add_argument("--all", action="store_true", help=f"the last {_SHOWN} trials, whatever became of them")
    cli_means.ledger_options(jobs)
    jobs.set_defaults(act=_jobs)
    stop = acts.add_parser("stop", help="stop jobs of the ledger, and wait until the platform confirms")
    stop.add_argument("job", nargs="*", metavar="JOB_ID", help="the id of a job (of V1: JOB/VERSION), or its name")
    stop.add_argument("--all-mine", action="store_true", help="every job of the ledger that no live run holds")
    stop.add_argument("--force", action="store_true", help="also what a live run holds, or the ledger does not know")
    cli_means.ledger_options(stop)
    cli_means.platform_options(stop)
    stop.set_defaults(act=_stop)
    logs = acts.add_parser("logs", help="print the log of a job")
    _log_options(logs)
    logs.set_defaults(act=_logs)
    doctor = acts.add_parser("doctor", help="check everything that a run needs; nothing is submitted or paid for")
    _doctor_options(doctor)
    cli_means.ledger_options(doctor)
    cli_means.platform_options(doctor)
    doctor.set_defaults(act=_doctor)
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
    cli_means.ledger_options(flush)
    flush.set_defaults(act=_flush)
    stubs = acts.add_parser("stubs", help="exit as benchmark.sh of an ais-bench package does, by results.json")
    stubs.add_argument("results", nargs="?", type=Path, metavar="FILE", help="default: reports/latest/results.json")
    stubs.set_defaults(act=_stubs)
    for more in (cli_ranktable, cli_judge, cli_history, cli_require, cli_report, cli_tester):
        more.register(acts)
    return parser


def _doctor_options(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("suites", nargs="*", type=Path, metavar="DIR", help="folders of suites (default: suites/)")
    parser.add_argument("--json", action="store_true", help="for programs")
    parser.add_argument("--package", metavar="DIR", help="an unpacked ais-bench package")
    parser.add_argument("--trust-config", action="store_const", const="true", help="execute what cannot be parsed")
    parser.add_argument("--nodes", metavar="N,N", help="node counts (default: 1, or what the package asks for)")
    parser.add_argument("--devices", metavar="N", help="cards per node (default: the workload's own number)")
    parser.add_argument(
        "--single-server", action="store_const", const="true", help="every node trains alone with its own cards"
    )


def _log_options(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("job", metavar="JOB_ID")
    parser.add_argument("--node", type=_node, default=0, metavar="N", help="of this node, counted from 0 (default 0)")
    how = parser.add_mutually_exclusive_group()
    how.add_argument("--follow", action="store_true", help="go on until the job is over")
    how.add_argument("--curve", action="store_true", help="instead: how loss and speed went so far")
    parser.add_argument("--ranks", type=_ranks, default=1, metavar="N", help="as many write to it (--curve; default 1)")
    cli_means.platform_options(parser)


def _node(text: str) -> int:
    if not text.isdecimal():
        raise argparse.ArgumentTypeError(f"{text!r} is not a node's number: 0 or more")
    return int(text)


def _ranks(text: str) -> int:
    if not text.isdecimal() or not int(text):
        raise argparse.ArgumentTypeError(f"{text!r} is not a number of ranks: 1 or more")
    return int(text)


def _cloud(options: argparse.Namespace) -> int:
    from pytest_aisbench.localcloud import fault
    from pytest_aisbench.localcloud.server import DataInUseError, serve

    try:
        faults = fault.read(options.faults) if options.faults else []
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
        return _USAGE
    return 0


def _interpreters(text: str | None) -> dict[str, str]:
    from pytest_aisbench.option_types import frameworks, pythons

    try:
        return {name: python for name, python in pythons(frameworks(text)).items() if python} if text else {}
    except ValueError as error:
        raise UsageFault(f"--frameworks: {error}") from None


def _card(card: dict[str, str]) -> str:
    """The secret key too: whoever starts the cloud needs it."""
    lines = [f"  {key:<20} {value}" for key, value in card.items()]
    return "\n".join(["The local cloud serves until it is stopped (Ctrl-C).", *lines])


def _jobs(options: argparse.Namespace) -> None:
    from pytest_aisbench.reporters import jobs
    from pytest_aisbench.services.clock import SystemClock

    # No platform is asked, so no key of one needs to be set.
    with closing(cli_means.ledger(cli_means.settings(options, platform="local"))) as ledger:
        now = SystemClock().now()
        found = ledger.latest(_SHOWN, now) if options.all else ledger.in_flight(now)
    if options.json:
        print(json.dumps(jobs.document(found), indent=2, ensure_ascii=False, allow_nan=False))
    else:
        print("\n".join(jobs.table(found)) or "no job is in flight")


def _stop(options: argparse.Namespace) -> int:
    from pytest_aisbench.domain.text import plain
    from pytest_aisbench.reporters.jobs import stopped
    from pytest_aisbench.services.clock import SystemClock
    from pytest_aisbench.services.stopping import Stopping

    if bool(options.job) == options.all_mine:
        raise UsageFault("name jobs, or --all-mine", advice="`aisbench jobs` shows them")
    settings, code = cli_means.settings(options), 0
    with closing(cli_means.ledger(settings)) as ledger, closing(cli_means.platform(settings)) as platform:
        stopping = Stopping(ledger, platform, SystemClock(), options.force)
        for answer in stopping.all_mine() if options.all_mine else stopping.named(options.job):
            print(plain(stopped(answer)).replace("--aisbench-", "--"), flush=True)
            code = code if answer.settled else _FAILED
    return code


def _logs(options: argparse.Namespace) -> None:
    from pytest_aisbench.services.clock import SystemClock
    from pytest_aisbench.services.tail import follow

    with closing(cli_means.platform(cli_means.settings(options))) as platform:
        if options.curve:
            from pytest_aisbench.domain.curve import curve
            from pytest_aisbench.reporters.curve import lines

            told = lines(curve(platform.logs(options.job, options.node).text, options.ranks))
            print("\n".join(told) or "its log tells neither loss nor speed")
            return
        if not options.follow:
            print(platform.logs(options.job, options.node).text, end="", flush=True)
            return
        for text in follow(platform, SystemClock(), options.job, options.node):
            print(text, end="", flush=True)


def _doctor(options: argparse.Namespace) -> int:
    from pytest_aisbench.reporters import checkup

    checks: list[Check] = []
    for check in _examined(options):
        checks.append(check)
        if not options.json:
            print(checkup.line(check).replace("--aisbench-", "--"), flush=True)
    print(
        json.dumps(checkup.document(checks), indent=2, ensure_ascii=False) if options.json else checkup.summary(checks)
    )
    return _FAILED if any(check.failed for check in checks) else 0


def _examined(options: argparse.Namespace) -> Iterator[Check]:
    """What is wrong with the settings themselves is a finding too."""
    from pytest_aisbench import offers
    from pytest_aisbench.doctor import Doctor
    from pytest_aisbench.domain.checkup import fallen

    try:
        settings = cli_means.settings(options)
        offered = cli_means.offered(settings.platform)
        platform = offers.load("platform", settings.platform, offered)
    except UsageFault as fault:
        yield fallen("configuration", fault)
        return
    usual = Path("suites")
    folders = options.suites or ([usual] if usual.is_dir() and not settings.package else [])
    yield from Doctor(settings, platform, platform.options, offered).examine(folders)


def _flush(options: argparse.Namespace) -> int:
    from pytest_aisbench.desk import Flushing
    from pytest_aisbench.domain.upload import State
    from pytest_aisbench.option_types import duration
    from pytest_aisbench.reporters import uploads

    try:
        patience_s = duration(options.patience)
    except ValueError as error:
        raise UsageFault(f"--patience: {error}") from None
    settings = cli_means.settings(options, platform="local")
    with closing(cli_means.ledger(settings, new=options.stub_log is not None)) as ledger:
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
    return 0 if options.dead or all(parcel.state is State.DELIVERED for parcel in found) else _FAILED


def _stubs(options: argparse.Namespace) -> int:
    from pytest_aisbench.adapters.stubs import benchmark_exit

    file = options.results or cli_means.settings(options).reports / "latest" / "results.json"
    try:
        return benchmark_exit(json.loads(file.read_bytes()))
    except (OSError, ValueError, LookupError, TypeError) as error:
        print(f"aisbench stubs: {file} cannot be read: {error}", file=sys.stderr)
        return 1  # the step that comes first failed
