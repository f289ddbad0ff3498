"""A run: one pytest session with workloads, from the preflight to the last entry in the ledger.

`Run` checks, opens the ledger and the run's folder, starts the Fleet, and turns trials and verdicts into entries.
"""

from __future__ import annotations

import logging
import os
import re
import subprocess
from collections import Counter
from collections.abc import Callable, Iterable, Mapping
from dataclasses import replace
from platform import node as host_name
from urllib.parse import urlsplit, urlunsplit

from pytest_aisbench.config.settings import Settings
from pytest_aisbench.engine import preflight, watch
from pytest_aisbench.engine.budget import Budget, estimates
from pytest_aisbench.engine.cancel import lines_of_running_jobs
from pytest_aisbench.engine.collect import PowerMeter
from pytest_aisbench.engine.fleet import Fleet
from pytest_aisbench.engine.scheduler import Scheduler
from pytest_aisbench.engine.staging import Stager
from pytest_aisbench.engine.submit import new_trial
from pytest_aisbench.engine.suites import expired_claims
from pytest_aisbench.engine.takeover import Fingerprints, Takeover, Traits
from pytest_aisbench.engine.trial import Tools, VerdictStep, is_given_away, taken_by_another_run
from pytest_aisbench.errors import LedgerError
from pytest_aisbench.judge.entries import case_entry
from pytest_aisbench.judge.evaluate import Rules
from pytest_aisbench.ledger.history import History
from pytest_aisbench.ledger.journal import Journal, read_journals
from pytest_aisbench.ledger.lease import LEASE_S, Lease, is_long_dead, this_process
from pytest_aisbench.ledger.ledger import Ledger
from pytest_aisbench.ledger.runs import make_folder, point_latest, request_name, run_id, write_request
from pytest_aisbench.logs import get_logger, ignored, log_ignored
from pytest_aisbench.model.case import Case
from pytest_aisbench.model.clock import day
from pytest_aisbench.model.messages import plain
from pytest_aisbench.model.ports import Clock, Platform
from pytest_aisbench.model.results import CaseEntry, Executor, RunEntry
from pytest_aisbench.model.trial import Step, Trial
from pytest_aisbench.model.verdict import Ruling, Verdict

_LOG = get_logger("fleet")


class Run:
    """Opened once the cases are selected; `close` ends everything that it started."""

    def __init__(
        self,
        settings: Settings,
        platform: Platform,
        clock: Clock,
        wants: Iterable[tuple[Case, Step]],
        say: Callable[[str], None],
        *,
        meter: PowerMeter | None = None,
        scheduler: Scheduler | None = None,
    ) -> None:
        """Check first, then open: a UsageFault leaves nothing behind. `say` prints a line on the terminal."""
        self.platform = platform
        self._clock = clock
        self._meter = meter or PowerMeter({})
        self._wants = list(wants)
        self._cases = {case.id: case for case, _ in self._wants}
        self._shapes = Counter(case.workload.name for case in self._cases.values())
        self._verdicts: dict[str, Verdict] = {}
        self._given_away: set[str] = set()  # cases that were judged from a job which another run took over since
        self._ordinals: dict[str, int] = {}
        self._entries: dict[str, CaseEntry] = {}  # as the ledger has them, or is about to
        self._show: Callable[[], None] = lambda: None
        preflight.require_checks(platform, self._cases.values(), settings.run_timeout, settings.reports, say)
        for line in expired_claims(self._cases.values(), day(clock.now())):
            say(line)
        ledger = settings.ledger_file
        self._fingerprints = Fingerprints(platform)
        self._traits = Traits(platform, self._fingerprints)
        estimated = estimates(self._wants, platform.platform_id, settings.run_timeout, ledger, self._fingerprints.of)
        self._budget = Budget(settings.budget, estimated)
        self._budget.require()
        self.id = run_id(clock.now())
        self.ledger = Ledger(ledger)
        self.folder = make_folder(settings.reports, self.id)
        point_latest(settings.reports, self.id)
        self.ledger.rename_platform(platform)
        for other in read_journals(settings.reports, self.ledger):
            say(f"the journal of run {other}, whose ledger failed, was brought into the ledger")
        for dead in self.ledger.end_orphans(clock.now(), is_long_dead):
            if dead.case.id in self._cases:
                say(f"{dead.case.id}: the job of {dead.run} died with its private local cloud; another is submitted")
        now = clock.now()
        folder = self._wants[0][0].workload.folder if self._wants else os.curdir
        who = origin(os.environ, folder)
        owner, max_jobs = this_process(), settings.max_jobs or platform.max_jobs
        self.ledger.begin(self.id, settings.public(), now, owner, now + LEASE_S, executor=who)
        head = {"run": self.id, "started": now, "settings": settings.public(), "owner": owner}
        self._journal = Journal(self.folder, head, min(max_jobs, len(self._cases)))
        self._head = self.ledger.head(self.id)
        limits = watch.Limits(settings.queue_timeout, settings.run_timeout)
        rules = Rules(settings.max_trials, settings.drift == "fail")
        self._verdict_step = VerdictStep(rules, History(self.ledger.database))
        self.fleet = Fleet(
            Tools(
                platform,
                clock,
                limits,
                self.folder,
                self._budget,
                verdict_step=self._verdict_step,
                meter=self._meter,
                stager=Stager(platform.store),
                stopped_by=self.ledger.stopped_by,
            ),
            self.ledger,
            self._new_trial,
            max_jobs=max_jobs,
            max_trials=settings.max_trials,
            saved=self._write_request,
            journal=self._journal,
            scheduler=scheduler,
        )
        self._lease = Lease(self.ledger, self.id, clock, self.fleet.fail)
        self._takeover = Takeover(
            self.id,
            platform.platform_id,
            self.ledger,
            clock,
            self._fingerprints.of,
            inspect=lambda job_id: watch.inspect_together(platform, [job_id])(job_id),
            cancel=platform.cancel,
            say=say,
        )
        self._takes_over = bool(platform.platform_id) and not settings.fresh
        for case in self._cases.values():
            self._record(case)
        self.fleet.start()

    def begin(self) -> None:
        """Start the trials of all selected cases, or resume those that an earlier run left."""
        for case in self._cases.values() if self._takes_over else ():
            if trial := self._takeover.of(case):
                self.fleet.adopt(replace(trial, traits=self._traits.of(case)))
        self.fleet.want_all(self._wants)

    def reached(self, case: Case, until: Step) -> Trial:
        """Wait until the case's trial reaches the step `until`; a case that was not selected joins the run."""
        self._cases.setdefault(case.id, case)
        return self.fleet.reached(case, until)

    def knows(self, case_id: str) -> bool:
        return case_id in self._cases

    def rule(self, case_id: str, failure: Verdict | None = None) -> CaseEntry:
        """The case's entry after one of its tests ended. `failure` is what a test that failed makes of a case that
        passed, or that no test wanted judged. A test that fails because the Fleet ended judges nothing: its job may
        run on, and the next run judges it."""
        trials = self._trials(case_id)
        verdict = self._verdicts.get(case_id) or (trials[-1].judged if trials else None)
        if failure and (verdict.passed if verdict else not self.fleet.crash):
            verdict = replace(failure, findings=verdict.findings if verdict else ())
        if verdict:
            self._verdicts[case_id] = verdict
        return self._record(self._cases[case_id])

    def rulings(self) -> dict[str, Ruling]:
        """The ruling of every judged case."""
        return {case_id: verdict.ruling for case_id, verdict in self._verdicts.items()}

    def stopped(self) -> dict[str, str]:
        """The cases that were not judged because a person stopped their job, and who did."""
        last = {case_id: trials[-1] for case_id in self._cases if (trials := self._trials(case_id))}
        unjudged = {case_id: trial for case_id, trial in last.items() if case_id not in self._verdicts}
        return {case_id: trial.stopped_by for case_id, trial in unjudged.items() if trial.stopped_by}

    def entry(self) -> RunEntry:
        """The run as the ledger has it on disk, without reading all its cases again."""
        cases = tuple(self._entries.values())  # first: what is recorded during the sync may not be on disk after it
        self.ledger.sync()
        return replace(self._head, cases=cases, uploads=self.ledger.uploads(self.id))

    def shown_by(self, show: Callable[[], None]) -> None:
        """Let `show` write results.json anew whenever a verdict that it shows is about to be another one."""
        self._show = show

    def stop(self, *, leave: bool = False) -> list[str]:
        """Cancel all running jobs, or leave them to the next run; idempotent. A line per job that may run on."""
        if leave:
            self.fleet.leave()
        self.fleet.close()
        for case in self._cases.values():
            self._record(case, last=True)
        return [] if leave else lines_of_running_jobs(self.fleet.trials())

    def finish(self, exit_code: Callable[[], int]) -> RunEntry:
        """End the run with the exit code that its verdicts make; a verdict from a job that another run has meanwhile
        taken over is not ours any more."""
        self.ledger.database.check_file()
        while taken := self.ledger.finish(self.id, exit_code(), self._clock.now(), self._own_trials()):
            self._give_away(taken)
        self._head = self.ledger.head(self.id)
        return self.entry()

    def _own_trials(self) -> dict[str, str]:
        """The case of each trial from which this run has a verdict."""
        return {
            trial.id: trial.case.id
            for trial in self.fleet.trials()
            if trial.judged and not is_given_away(trial) and trial.case.id not in self._given_away
        }

    def _give_away(self, trials: Iterable[str]) -> None:
        """Our lease expired, perhaps while the machine slept, and another run judges what these trials measured."""
        cases = self._own_trials()
        for case_id in {cases[trial] for trial in trials}:
            self._given_away.add(case_id)
            self._verdicts[case_id] = taken_by_another_run(self._trials(case_id)[-1], self._clock.now()).verdict
            self._record(self._cases[case_id])

    def close(self) -> None:
        self.fleet.close()
        self._lease.close()
        self._meter.close()
        self.platform.close()
        self._journal.close(self._clock.now())
        self.ledger.close()

    def _new_trial(self, case: Case, number: int) -> Trial:
        trial = new_trial(self.id, case, self._clock.now(), number)
        return replace(
            trial,
            platform_id=self.platform.platform_id,
            fingerprint=self._fingerprints.of(case),
            traits=self._traits.of(case),
            expected_s=self._budget.expected_s(case),
        )

    def _trials(self, case_id: str) -> list[Trial]:
        return self.fleet.trials_of(case_id)

    def _record(self, case: Case, *, last: bool = False) -> CaseEntry:
        trials = self._trials(case.id)
        entry = case_entry(case, tuple(trials), self._verdicts.get(case.id))
        if last and entry.background and self._shapes[case.workload.name] > 1:
            # Other shapes may have been measured after this case was judged.
            scaling = self._verdict_step.scaling_chart(trials[-1], self.fleet.trials_of_workload(case.workload.name))
            entry = replace(entry, background=replace(entry.background, scaling=scaling))
        before = self._entries.get(case.id)
        if entry != before:
            if before and before.verdict not in {None, entry.verdict}:
                self._withdraw(before)
            self.ledger.save_case_soon(self.id, self._ordinals.setdefault(case.id, len(self._ordinals)), entry)
            self._entries[case.id] = entry
        return entry

    def _withdraw(self, entry: CaseEntry) -> None:
        """Let results.json show no verdict on the case before the ledger has another one: a run that is killed between
        the two would leave a report that says PASSED where the ledger says FAILED."""
        self._entries[entry.id] = replace(entry, verdict=None)
        self._show()

    def _write_request(self, trial: Trial) -> None:
        if trial.request:
            name = request_name(trial.case.id, trial.number)
            # The ledger has the request too, and reports a full disk.
            with ignored(_LOG, LedgerError, "%s: the file of its request", trial.name, level=logging.WARNING):
                write_request(self.folder, name, trial.request)


# Where a run comes from: the CI server and build that started it, and the commit and branch of the suites. CI servers
# tell all of it by environment variables. Without them `git` is asked, once for each run; a folder without a
# repository, or a machine without git, has no commit. No address of a remote is read: it may hold a token.

_COMMIT = re.compile(r"[0-9a-f]{7,64}")
_LONGEST_BRANCH = 200
_GIT_S = 5.0  # a repository on a slow disk must not hold up a run
_GIT = ("git", "--no-optional-locks", "status", "--porcelain=v2", "--branch", "--untracked-files=no")


def origin(variables: Mapping[str, str], folder: str) -> Executor:
    """The CI server, build, commit and branch by these variables; commit and branch else by the folder's repository."""
    started_by = replace(executor(variables), user=_user(variables))
    return started_by if started_by.commit else _with_git(started_by, folder)


def _user(variables: Mapping[str, str]) -> str:
    """The account, as its shell names it, and the machine; empty if no account is named."""
    account = next((variables[name] for name in ("LOGNAME", "USER", "USERNAME") if variables.get(name)), "")
    return plain(f"{account}@{host_name()}", _LONGEST_BRANCH) if account else ""


def executor(variables: Mapping[str, str]) -> Executor:
    """The CI server and build that started the run, by the environment variables that it sets."""

    def variable(*names: str) -> str:
        return next((variables[name] for name in names if variables.get(name)), "")

    if variable("JENKINS_URL"):
        build = _named("Jenkins", variable("JOB_NAME"), variable("BUILD_NUMBER"), variable("BUILD_URL"))
        branch = variable("BRANCH_NAME", "GIT_BRANCH").removeprefix("origin/")
        return _from_commit(build, variable("GIT_COMMIT"), branch)
    if variable("GITLAB_CI"):
        build = _named("GitLab", variable("CI_PROJECT_PATH"), variable("CI_PIPELINE_IID"), variable("CI_JOB_URL"))
        return _from_commit(build, variable("CI_COMMIT_SHA"), variable("CI_COMMIT_REF_NAME"))
    if variable("GITHUB_ACTIONS"):
        parts = [variable(name) for name in ("GITHUB_SERVER_URL", "GITHUB_REPOSITORY", "GITHUB_RUN_ID")]
        url = "{}/{}/actions/runs/{}".format(*parts) if all(parts) else ""
        build = _named("GitHub", variable("GITHUB_WORKFLOW"), variable("GITHUB_RUN_NUMBER"), url)
        return _from_commit(build, variable("GITHUB_SHA"), variable("GITHUB_HEAD_REF", "GITHUB_REF_NAME"))
    return Executor()


def _named(name: str, job: str, number: str, url: str) -> Executor:
    order = int(number) if number.isascii() and number.isdigit() else None
    build = f"{job} #{number}".strip() if number else job
    return Executor(name, build, _without_keys(url), order)


def _from_commit(build: Executor, commit: str, branch: str) -> Executor:
    if not _COMMIT.fullmatch(commit):
        return build
    return replace(build, commit=commit, branch=plain(branch, _LONGEST_BRANCH))


def _without_keys(url: str) -> str:
    """The link to a build without the user name, token and query that it may contain."""
    try:
        parts = urlsplit(url)
    except ValueError as error:
        log_ignored(_LOG, error, "the link to the build")
        return ""
    if parts.scheme not in {"http", "https"}:
        return ""
    return urlunsplit((parts.scheme, parts.netloc.rpartition("@")[2], parts.path, "", ""))


def _with_git(build: Executor, folder: str) -> Executor:
    """The commit that is checked out in the folder, its branch, and whether files that git knows were changed since."""
    try:
        asked = subprocess.run(_GIT, cwd=folder, capture_output=True, timeout=_GIT_S, check=False)
    except (OSError, subprocess.SubprocessError) as error:
        log_ignored(_LOG, error, "the commit of the suites")
        return build
    if asked.returncode:  # most often there is no repository
        _LOG.debug("git tells no commit of %s: exit code %d", folder, asked.returncode)
        return build
    lines = asked.stdout.decode("utf-8", "replace").splitlines()
    heads = dict(line[2:].split(" ", 1) for line in lines if line.startswith("# branch.") and line.count(" ") > 1)
    branch = heads.get("branch.head", "")
    with_commit = _from_commit(build, heads.get("branch.oid", ""), "" if branch == "(detached)" else branch)
    return (
        replace(with_commit, modified=any(not line.startswith("#") for line in lines)) if with_commit.commit else build
    )
