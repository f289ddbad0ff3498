"""`aisbench jobs`, `stop` and `logs`: show the jobs of the ledger, cancel them, print their logs."""

from __future__ import annotations

import argparse
import getpass
import json
import socket
import sys
import tempfile
import time
from collections.abc import Iterable, Iterator
from contextlib import closing, contextmanager
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from pytest_aisbench.cli import (
    FAILED,
    add_command,
    add_ledger_options,
    add_package_options,
    add_platform_options,
    at_least,
    connect_platform,
    open_ledger,
    read_settings,
)
from pytest_aisbench.config.options import LOCAL
from pytest_aisbench.config.settings import Settings
from pytest_aisbench.errors import AisbenchError, UsageFault
from pytest_aisbench.model.clock import SystemClock, stamp
from pytest_aisbench.model.messages import plain

if TYPE_CHECKING:
    from pytest_aisbench.engine.cancel import CancelReport
    from pytest_aisbench.ledger.runs import HeldTrial, JobLedger
    from pytest_aisbench.model.ports import Platform

_MOST_TRIALS = 50  # that `jobs --all` shows
SCHEMA = "aisbench-jobs/1"
_FOLLOW_S = 0.5
_ROW = "{:<34} {:<7} {:<10} {:<14} {}"


def register(commands: Any) -> None:
    jobs = add_command(commands, "jobs", "show what runs, as the ledger says, and who owns it", "aisbench jobs --all")
    jobs.add_argument("--json", action="store_true", help="for programs")
    jobs.add_argument("--all", action="store_true", help=f"the last {_MOST_TRIALS} trials, whatever became of them")
    add_ledger_options(jobs)
    jobs.set_defaults(act=_jobs)
    why = "end jobs in the ledger alone, because their platform is gone for good"
    actions = jobs.add_subparsers(metavar="forget", dest="what")
    forget = add_command(actions, "forget", why, "aisbench jobs forget 3043/13231")
    forget.add_argument("job", nargs="*", metavar="JOB_ID", help="the id of a job, or its name")
    forget.add_argument("--on", default="", metavar="PLATFORM", help="every job there, as `jobs --json` names it")
    add_ledger_options(forget)
    forget.set_defaults(act=_forget)
    stop = add_command(
        commands, "stop", "stop jobs of the ledger, and wait until the platform confirms", "aisbench stop --all-mine"
    )
    names = "the id of a job (of V1: JOB/VERSION), or its name (default with --package: its newest)"
    stop.add_argument("job", nargs="*", metavar="JOB_ID", help=names)
    stop.add_argument("--all-mine", action="store_true", help="every job of the ledger that no live run holds")
    stop.add_argument("--force", action="store_true", help="also what a live run holds, or the ledger does not know")
    add_ledger_options(stop)
    add_platform_options(stop)
    add_package_options(stop)
    stop.set_defaults(act=_stop)
    logs = add_command(commands, "logs", "print the log of a job", "aisbench logs JOB_ID --follow")
    _log_options(logs)
    logs.set_defaults(act=_logs)


def _log_options(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("job", nargs="?", metavar="JOB_ID", help="its id (default with --package: the newest)")
    node = at_least(0, "a node's number")
    parser.add_argument("--node", type=node, default=0, metavar="N", help="of this node, counted from 0 (default 0)")
    how = parser.add_mutually_exclusive_group()
    how.add_argument("--follow", action="store_true", help="go on until the job is over")
    how.add_argument("--curve", action="store_true", help="instead: how loss and speed went so far")
    ranks = at_least(1, "a number of ranks")
    parser.add_argument("--ranks", type=ranks, metavar="N", help="as many write to it (--curve; default: the ledger's)")
    add_ledger_options(parser)
    add_platform_options(parser)
    add_package_options(parser)


def _jobs(options: argparse.Namespace) -> None:
    # This command asks no platform, so the user needs no keys for one.
    with closing(open_ledger(read_settings(options, platform=LOCAL))) as ledger:
        now = SystemClock().now()
        trials = ledger.latest(_MOST_TRIALS, now) if options.all else ledger.in_flight(now)
    if options.json:
        print(json.dumps(document(trials), indent=2, ensure_ascii=False, allow_nan=False))
    else:
        print("\n".join(table(trials)) or "no job is in flight")


def _forget(options: argparse.Namespace) -> int:
    from pytest_aisbench.engine.cancel import forget

    if not (options.job or options.on):
        raise UsageFault("name jobs, or --on PLATFORM", advice="`aisbench jobs --json` shows them")
    code = 0
    with closing(open_ledger(read_settings(options, platform=LOCAL))) as ledger:
        for report in forget(ledger, SystemClock(), options.job, options.on, _person()):
            print(plain(cancel_line(report)), flush=True)
            code = code if report.settled else FAILED
    return code


def _stop(options: argparse.Namespace) -> int:
    from pytest_aisbench.engine.cancel import CancelCommand

    if (options.job and options.all_mine) or not (options.job or options.all_mine or options.package):
        raise UsageFault("name jobs, or --all-mine", advice="`aisbench jobs` shows them")
    settings, code = _settings(options), 0
    with _ledger(settings) as ledger, closing(connect_platform(settings)) as platform:
        ledger.rename_platform(platform)
        command = CancelCommand(ledger, platform, SystemClock(), options.force, _person())
        if options.all_mine:
            reports = command.all_mine()
        else:
            # As `--action stop` of ais-bench-stubs did: the package is reason enough, also where a run watches its job.
            command = replace(command, force=options.force or bool(settings.package))
            reports = command.named(options.job or _jobs_of_package(settings, ledger, platform, running=True))
        for report in reports:
            print(plain(cancel_line(report)).replace("--aisbench-", "--"), flush=True)
            if settings.package and report.after:
                print(f"job stop status: {plain(report.after)}", flush=True)  # the last line of ais-bench-stubs
            code = code if report.settled else FAILED
    return code


def _person() -> str:
    """Who types this, for the run that holds the job."""
    try:
        return f"{getpass.getuser()}@{socket.gethostname()}"
    except (KeyError, OSError):  # a container whose user has no name
        return socket.gethostname()


def _settings(options: argparse.Namespace) -> Settings:
    """The settings; a package alone means ModelArts, where the jobs of packages run."""
    settings = read_settings(options)
    if settings.package and settings.cloud is None and "platform" not in settings.sources:
        from pytest_aisbench.platforms.modelarts import ModelArtsKind

        return read_settings(options, platform=ModelArtsKind.name)
    return settings


@contextmanager
def _ledger(settings: Settings) -> Iterator[JobLedger]:
    """The ledger. Jobs of a package can be stopped without one: then it is an empty one, which is thrown away."""
    if settings.package is None or settings.ledger_file.is_file():
        with closing(open_ledger(settings)) as ledger:
            yield ledger
        return
    with (
        tempfile.TemporaryDirectory() as folder,
        closing(open_ledger(replace(settings, ledger=Path(folder) / "none.db"), new=True)) as ledger,
    ):
        yield ledger


def _jobs_of_package(settings: Settings, ledger: JobLedger, platform: Platform, *, running: bool) -> list[str]:
    """The package's jobs as the ledger has them: those that run, or else the newest. Without any, the platform's
    newest job with the package's job_name."""
    from pytest_aisbench.config.legacy.modelarts_config import open_config
    from pytest_aisbench.config.options import LEGACY_FILE

    assert settings.package is not None
    folder, now = str(settings.package.absolute()), SystemClock().now()
    trials = ledger.in_flight(now) if running else ledger.latest(_MOST_TRIALS, now)
    ours = [
        held.trial.job_id or held.trial.name
        for held in trials
        if held.trial.case.workload.folder == folder and held.trial.platform_id == platform.platform_id
    ]
    if ours:
        return ours if running else ours[:1]
    named = settings.config if settings.config and settings.config.name.endswith(LEGACY_FILE) else None
    session = open_config(named, settings.package, trusted=settings.trust_config).session(settings.modelarts_version)
    job = platform.named(session.need("job_name"))
    if job is None:
        raise session.fault("job_name", f"{session.text('job_name')!r} is the name of no job", "name its id")
    return [job]


def _logs(options: argparse.Namespace) -> None:
    from pytest_aisbench.engine.watch import stream_log

    if not options.job and not options.package:
        raise UsageFault("name a job", advice="`aisbench jobs` shows them")
    settings = _settings(options)
    try:
        with closing(connect_platform(settings)) as platform:
            if not options.job:
                with _ledger(settings) as ledger:
                    (options.job,) = _jobs_of_package(settings, ledger, platform, running=False)
            if options.follow:
                for text in stream_log(platform, SystemClock(), options.job, options.node):
                    print(text, end="", flush=True)
                return
            text = platform.logs(options.job, options.node).text
    except AisbenchError:
        kept = _kept_log(settings, options.job, options.node) if options.job else None
        if kept is None:
            raise
        if options.follow:
            _follow_kept_log(settings, options.job, kept)
            return
        text = kept.read_text(encoding="utf-8", errors="replace")
    _print_log(text, options, settings)


def _print_log(text: str, options: argparse.Namespace, settings: Settings) -> None:
    if not options.curve:
        print(text, end="", flush=True)
        return
    from pytest_aisbench.report.terminal import curve_lines
    from pytest_aisbench.traininglog.curve import read_curve

    whole, _, _ = text.rpartition("\n")  # a half-written number would be another number
    lines = curve_lines(read_curve(whole, options.ranks or _ranks_writing(options.job, settings)))
    print("\n".join(lines) or "its log tells neither loss nor speed")


def _kept_log(settings: Settings, job: str, node: int) -> Path | None:
    """The log of a node among the reports: its run writes it there while the job runs, and the whole of it at the end.
    The job of a private local cloud has no other: only its run can ask that cloud."""
    from pytest_aisbench.engine.collect import log_folder

    if not settings.ledger_file.is_file():
        return None
    with closing(open_ledger(settings)) as ledger:
        held = ledger.named(job, SystemClock().now())
    if held is None:
        return None
    file = settings.reports / held.trial.run / log_folder(held.trial) / f"worker-{node}.log"
    return file if file.is_file() else None


def _follow_kept_log(settings: Settings, job: str, file: Path) -> None:
    """Print the log as it grows, until its trial has ended."""
    from pytest_aisbench.ledger.runs import Holder
    from pytest_aisbench.model.trial import Step

    shown = 0
    with closing(open_ledger(settings)) as ledger:
        while True:
            held = ledger.named(job, SystemClock().now())
            is_over = held is None or held.trial.step is Step.DONE or held.holder is not Holder.ALIVE
            text = file.read_text(encoding="utf-8", errors="replace")
            print(text[shown:], end="", flush=True)
            shown = len(text)
            if is_over:
                return
            time.sleep(_FOLLOW_S)


def _ranks_writing(job: str, settings: Settings) -> int:
    """How many ranks write to one log of this job. A wrong number would make each rank look like a new training."""
    try:
        with closing(open_ledger(settings)) as ledger:
            held = ledger.named(job, SystemClock().now())
    except UsageFault:
        held = None
    if held:
        return held.trial.case.shape.devices
    print("aisbench logs: no ledger here knows this job; read as the log of one rank (--ranks N)", file=sys.stderr)
    return 1


def table(jobs: Iterable[HeldTrial]) -> Iterator[str]:
    """Three lines for each job, because identifiers are long and a shortened one is of no use."""
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


def cancel_line(report: CancelReport) -> str:
    """`3043/13231 (aisbench-debug): stopped (KILLED); it was RUNNING, and ran for 12.3 s`."""
    from pytest_aisbench.report.text import span

    name = f" ({report.name})" if report.name and report.name != report.job else ""
    was = [f"it was {report.before}"] if report.before else []
    ran = [f"{'and' if was else 'it'} ran for {span(report.ran_s)}"] if report.ran_s is not None else []
    return f"{report.job}{name}: {'; '.join([report.text, *filter(None, [', '.join(was + ran)])])}"


def _phase(held: HeldTrial) -> str | None:
    return held.trial.job.phase.value if held.trial.job else None


def _since(held: HeldTrial) -> float:
    """When the trial reached its phase, while its job is watched; otherwise, when it reached its step."""
    times, step = held.trial.times, held.trial.step.name.lower()
    at_step = times.get(step, 0.0)
    return times.get((_phase(held) or "").lower(), at_step) if step == "watch" else at_step
