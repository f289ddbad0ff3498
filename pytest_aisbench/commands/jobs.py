"""`aisbench jobs`, `stop` and `logs`: what runs, from another shell."""

from __future__ import annotations

import argparse
import json
import sys
from contextlib import closing
from typing import TYPE_CHECKING, Any

from pytest_aisbench.commands import means
from pytest_aisbench.commands.means import FAILED
from pytest_aisbench.errors import UsageFault
from pytest_aisbench.settings import LOCAL

if TYPE_CHECKING:
    from pytest_aisbench.settings import Settings

_SHOWN = 50  # trials of `jobs --all`


def register(acts: Any) -> None:
    jobs = acts.add_parser("jobs", help="what runs, as the ledger says, and who owns it")
    jobs.add_argument("--json", action="store_true", help="for programs")
    jobs.add_argument("--all", action="store_true", help=f"the last {_SHOWN} trials, whatever became of them")
    means.ledger_options(jobs)
    jobs.set_defaults(act=_jobs)
    stop = acts.add_parser("stop", help="stop jobs of the ledger, and wait until the platform confirms")
    stop.add_argument("job", nargs="*", metavar="JOB_ID", help="the id of a job (of V1: JOB/VERSION), or its name")
    stop.add_argument("--all-mine", action="store_true", help="every job of the ledger that no live run holds")
    stop.add_argument("--force", action="store_true", help="also what a live run holds, or the ledger does not know")
    means.ledger_options(stop)
    means.platform_options(stop)
    stop.set_defaults(act=_stop)
    logs = acts.add_parser("logs", help="print the log of a job")
    _log_options(logs)
    logs.set_defaults(act=_logs)


def _log_options(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("job", metavar="JOB_ID")
    node = means.at_least(0, "a node's number")
    parser.add_argument("--node", type=node, default=0, metavar="N", help="of this node, counted from 0 (default 0)")
    how = parser.add_mutually_exclusive_group()
    how.add_argument("--follow", action="store_true", help="go on until the job is over")
    how.add_argument("--curve", action="store_true", help="instead: how loss and speed went so far")
    ranks = means.at_least(1, "a number of ranks")
    parser.add_argument("--ranks", type=ranks, metavar="N", help="as many write to it (--curve; default: the ledger's)")
    means.ledger_options(parser)
    means.platform_options(parser)


def _jobs(options: argparse.Namespace) -> None:
    from pytest_aisbench.reporters import jobs
    from pytest_aisbench.services.clock import SystemClock

    # No platform is asked, so no key of one needs to be set.
    with closing(means.ledger(means.settings(options, platform=LOCAL))) as ledger:
        now = SystemClock().now()
        found = ledger.latest(_SHOWN, now) if options.all else ledger.in_flight(now)
    if options.json:
        print(json.dumps(jobs.document(found), indent=2, ensure_ascii=False, allow_nan=False))
    else:
        print("\n".join(jobs.table(found)) or "no job is in flight")


def _stop(options: argparse.Namespace) -> int:
    from pytest_aisbench.domain.messages import plain
    from pytest_aisbench.reporters.jobs import stopped
    from pytest_aisbench.services.cancel import CancelCommand
    from pytest_aisbench.services.clock import SystemClock

    if bool(options.job) == options.all_mine:
        raise UsageFault("name jobs, or --all-mine", advice="`aisbench jobs` shows them")
    settings, code = means.settings(options), 0
    with closing(means.ledger(settings)) as ledger, closing(means.platform(settings)) as platform:
        command = CancelCommand(ledger, platform, SystemClock(), options.force)
        for report in command.all_mine() if options.all_mine else command.named(options.job):
            print(plain(stopped(report)).replace("--aisbench-", "--"), flush=True)
            code = code if report.settled else FAILED
    return code


def _logs(options: argparse.Namespace) -> None:
    from pytest_aisbench.services.clock import SystemClock
    from pytest_aisbench.services.tail import follow

    settings = means.settings(options)
    with closing(means.platform(settings)) as platform:
        if options.curve:
            from pytest_aisbench.domain.curve import curve
            from pytest_aisbench.reporters.curve import lines

            whole, _, _ = platform.logs(options.job, options.node).text.rpartition("\n")  # half a number is another one
            told = lines(curve(whole, options.ranks or _writers(options.job, settings)))
            print("\n".join(told) or "its log tells neither loss nor speed")
            return
        if not options.follow:
            print(platform.logs(options.job, options.node).text, end="", flush=True)
            return
        for text in follow(platform, SystemClock(), options.job, options.node):
            print(text, end="", flush=True)


def _writers(job: str, settings: Settings) -> int:
    """How many ranks write to a log of this job: without that, each would seem to begin the training again."""
    from pytest_aisbench.services.clock import SystemClock

    try:
        with closing(means.ledger(settings)) as ledger:
            held = ledger.named(job, SystemClock().now())
    except UsageFault:
        held = None
    if held:
        return held.trial.case.shape.devices
    print("aisbench logs: no ledger here knows this job; read as the log of one rank (--ranks N)", file=sys.stderr)
    return 1
