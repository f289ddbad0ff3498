"""`aisbench jobs`, `stop` and `logs`: what runs, from another shell."""

from __future__ import annotations

import argparse
import json
import sys
import time
from collections.abc import Iterable, Iterator
from contextlib import closing
from typing import TYPE_CHECKING, Any

from pytest_aisbench.cli import options
from pytest_aisbench.cli import options as options_module
from pytest_aisbench.cli.options import FAILED, at_least, ledger_options, platform_options, settings
from pytest_aisbench.config.settings import LOCAL
from pytest_aisbench.engine.cancel import CancelReport
from pytest_aisbench.errors import UsageFault
from pytest_aisbench.ledger.runs import HeldTrial
from pytest_aisbench.model.clock import stamp
from pytest_aisbench.model.messages import plain
from pytest_aisbench.report.text import span

if TYPE_CHECKING:
    from pytest_aisbench.config.settings import Settings

_SHOWN = 50  # trials of `jobs --all`


def register(acts: Any) -> None:
    jobs = acts.add_parser("jobs", help="what runs, as the ledger says, and who owns it")
    jobs.add_argument("--json", action="store_true", help="for programs")
    jobs.add_argument("--all", action="store_true", help=f"the last {_SHOWN} trials, whatever became of them")
    ledger_options(jobs)
    jobs.set_defaults(act=_jobs)
    stop = acts.add_parser("stop", help="stop jobs of the ledger, and wait until the platform confirms")
    stop.add_argument("job", nargs="*", metavar="JOB_ID", help="the id of a job (of V1: JOB/VERSION), or its name")
    stop.add_argument("--all-mine", action="store_true", help="every job of the ledger that no live run holds")
    stop.add_argument("--force", action="store_true", help="also what a live run holds, or the ledger does not know")
    ledger_options(stop)
    platform_options(stop)
    stop.set_defaults(act=_stop)
    logs = acts.add_parser("logs", help="print the log of a job")
    _log_options(logs)
    logs.set_defaults(act=_logs)


def _log_options(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("job", metavar="JOB_ID")
    node = at_least(0, "a node's number")
    parser.add_argument("--node", type=node, default=0, metavar="N", help="of this node, counted from 0 (default 0)")
    how = parser.add_mutually_exclusive_group()
    how.add_argument("--follow", action="store_true", help="go on until the job is over")
    how.add_argument("--curve", action="store_true", help="instead: how loss and speed went so far")
    ranks = at_least(1, "a number of ranks")
    parser.add_argument("--ranks", type=ranks, metavar="N", help="as many write to it (--curve; default: the ledger's)")
    ledger_options(parser)
    platform_options(parser)


def _jobs(options: argparse.Namespace) -> None:
    from pytest_aisbench.model.clock import SystemClock

    # No platform is asked, so no key of one needs to be set.
    with closing(options_module.ledger(settings(options, platform=LOCAL))) as ledger:
        now = SystemClock().now()
        found = ledger.latest(_SHOWN, now) if options.all else ledger.in_flight(now)
    if options.json:
        print(json.dumps(document(found), indent=2, ensure_ascii=False, allow_nan=False))
    else:
        print("\n".join(table(found)) or "no job is in flight")


def _stop(options: argparse.Namespace) -> int:
    from pytest_aisbench.engine.cancel import CancelCommand
    from pytest_aisbench.model.clock import SystemClock
    from pytest_aisbench.model.messages import plain

    if bool(options.job) == options.all_mine:
        raise UsageFault("name jobs, or --all-mine", advice="`aisbench jobs` shows them")
    settings, code = options_module.settings(options), 0
    with closing(options_module.ledger(settings)) as ledger, closing(options_module.platform(settings)) as platform:
        command = CancelCommand(ledger, platform, SystemClock(), options.force)
        for report in command.all_mine() if options.all_mine else command.named(options.job):
            print(plain(stopped(report)).replace("--aisbench-", "--"), flush=True)
            code = code if report.settled else FAILED
    return code


def _logs(options: argparse.Namespace) -> None:
    from pytest_aisbench.engine.watch import stream_log
    from pytest_aisbench.model.clock import SystemClock

    settings = options_module.settings(options)
    with closing(options_module.platform(settings)) as platform:
        if options.curve:
            from pytest_aisbench.report.terminal import curve_lines
            from pytest_aisbench.traininglog.curve import read_curve

            whole, _, _ = platform.logs(options.job, options.node).text.rpartition("\n")  # half a number is another one
            told = curve_lines(read_curve(whole, options.ranks or _writers(options.job, settings)))
            print("\n".join(told) or "its log tells neither loss nor speed")
            return
        if not options.follow:
            print(platform.logs(options.job, options.node).text, end="", flush=True)
            return
        for text in stream_log(platform, SystemClock(), options.job, options.node):
            print(text, end="", flush=True)


def _writers(job: str, settings: Settings) -> int:
    """How many ranks write to a log of this job: without that, each would seem to begin the training again."""
    from pytest_aisbench.model.clock import SystemClock

    try:
        with closing(options.ledger(settings)) as ledger:
            held = ledger.named(job, SystemClock().now())
    except UsageFault:
        held = None
    if held:
        return held.trial.case.shape.devices
    print("aisbench logs: no ledger here knows this job; read as the log of one rank (--ranks N)", file=sys.stderr)
    return 1


# -- The jobs of a ledger, for a person's 80 columns or for a program.

SCHEMA = "aisbench-jobs/1"
_ROW = "{:<34} {:<7} {:<10} {:<14} {}"


def table(jobs: Iterable[HeldTrial]) -> Iterator[str]:
    """Three lines of a job: identifiers are long, and a shortened one is of no use."""
    rows = list(jobs)
    if rows:
        yield _ROW.format("CASE", "STEP", "PHASE", "SINCE", "OWNER")
    for held in rows:
        trial = held.trial
        since = time.strftime("%m-%d %H:%M:%S", time.localtime(_since(held)))
        case = trial.case.id if len(trial.case.id) <= 34 else f"{trial.case.id[:33]}…"
        yield _ROW.format(plain(case), trial.step.name, _phase(held) or "-", since, held.holder.value)
        yield f"  job {plain(trial.job_id or '-')} run {plain(trial.run)}"
        yield f"  name {plain(trial.name)}"


def document(jobs: Iterable[HeldTrial]) -> dict[str, Any]:
    return {
        "schema": SCHEMA,
        "jobs": [
            {
                "case": held.trial.case.id,
                "run": held.trial.run,
                "trial": held.trial.number,
                "job_name": held.trial.name,
                "job_id": held.trial.job_id,
                "step": held.trial.step.name,
                "phase": _phase(held),
                "platform_phase": held.trial.job.platform_phase if held.trial.job else None,
                "platform": held.trial.platform_id,
                "owner": held.owner,
                "owner_state": held.holder.value,
                "since": stamp(_since(held)),
            }
            for held in jobs
        ],
    }


def stopped(report: CancelReport) -> str:
    """`3043/13231 (aisbench-debug): stopped (KILLED); it was RUNNING, and ran for 12.3 s`."""
    name = f" ({report.name})" if report.name and report.name != report.job else ""
    was = [f"it was {report.before}"] if report.before else []
    ran = [f"{'and' if was else 'it'} ran for {span(report.ran_s)}"] if report.ran_s is not None else []
    return f"{report.job}{name}: {'; '.join([report.text, *filter(None, [', '.join(was + ran)])])}"


def _phase(held: HeldTrial) -> str | None:
    return held.trial.job.phase.value if held.trial.job else None


def _since(held: HeldTrial) -> float:
    """When it came to where it is: to its phase while it is watched, else to its step."""
    times, step = held.trial.times, held.trial.step.name.lower()
    at_step = times.get(step, 0.0)
    return times.get((_phase(held) or "").lower(), at_step) if step == "watch" else at_step
