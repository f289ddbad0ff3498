"""One trial, step by step: staged, submitted, watched, collected and judged.

`advance` takes a trial one step further and never sleeps or waits for a job. The Fleet calls it, and the ledger stores
what it returned, so that one process can hold a thousand trials and the next run can resume them. A trial at SUBMIT in
the ledger is an intent: its name and request are on record before the request leaves.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path

from pytest_aisbench.engine import cancel, watch
from pytest_aisbench.engine.budget import Budget
from pytest_aisbench.engine.collect import PowerMeter, collect, with_usage_and_power
from pytest_aisbench.engine.failure_log import excerpt, last_lines
from pytest_aisbench.engine.staging import Stager
from pytest_aisbench.engine.submit import job_spec, submit_job, upload_stage
from pytest_aisbench.errors import AisbenchError, Blame, PlatformError
from pytest_aisbench.judge.comparison import family_differences, family_key, trait_differences, traits_key
from pytest_aisbench.judge.evaluate import ANCHOR_TRIALS, Evaluation, Evidence, Rules, evaluate
from pytest_aisbench.judge.noise_test import average
from pytest_aisbench.judge.scaling import BASE_TRIALS, THIS_RUN, Speed, base_speed, efficiencies, scaling_base
from pytest_aisbench.judge.values import case_values
from pytest_aisbench.ledger.history import NEWEST, History
from pytest_aisbench.logs import get_logger, ignored
from pytest_aisbench.model.case import Case, Shape
from pytest_aisbench.model.clock import day
from pytest_aisbench.model.job import Job
from pytest_aisbench.model.messages import joined, message, plain
from pytest_aisbench.model.metric import THROUGHPUT
from pytest_aisbench.model.ports import Clock, Platform
from pytest_aisbench.model.trial import STAGING, Fault, Step, Trial, TrialRecord
from pytest_aisbench.model.verdict import Outcome, Ruling, ScalePoint, Verdict

_LOG = get_logger("fleet")
_CHART_SHAPES = 24
_LAST = 10  # lines of the log, and events, that go with a failure


@dataclass(frozen=True)
class Tools:
    """Everything that `advance` needs besides the trial."""

    platform: Platform
    clock: Clock
    limits: watch.Limits
    folder: Path  # of the run's reports; logs are downloaded below it
    budget: Budget | None = None
    inspect: Callable[[str], Job] | None = None  # the platform's answer about a job, if it was asked about all at once
    verdict_step: VerdictStep = field(default_factory=lambda: VerdictStep())  # noqa: PLW0108 - defined below
    others: Callable[[str], Iterable[Trial]] = lambda _: ()  # all trials of a workload in this run
    meter: PowerMeter = field(default_factory=lambda: PowerMeter({}))
    stager: Stager | None = None  # of the run
    stopped_by: Callable[[str], str] = lambda _: ""  # who used `aisbench stop` on a job
    holds: Callable[[Trial], bool] = lambda _: True  # False once another process has taken the trial


def advance(trial: Trial, tools: Tools) -> Trial:
    """Take the trial one step further. An error ends this trial with the error's blame, and no other trial."""
    try:
        return _STEPS[trial.step](trial, tools)
    except AisbenchError as expected:
        error = expected
        _LOG.info("%s: %s ends it: %s", trial.name, trial.step.name, error)
    except Exception as surprise:  # noqa: BLE001 - a full disk or a bug: hundreds of other jobs go on
        error = PlatformError(f"{type(surprise).__name__} on this machine: {surprise}")
        _LOG.warning("%s: %s ends it", trial.name, trial.step.name, exc_info=surprise)
    if trial.step is Step.WATCH and not trial.fault:
        return cancel.begin(trial, _fault(trial, error), tools.clock.now())
    return _ended(trial, trial.fault or _fault(trial, error), tools)


def _fault(trial: Trial, error: AisbenchError) -> Fault:
    return replace(Fault.of(error), text=trial.case.workload.in_its_words(str(error)))


def _stage(trial: Trial, tools: Tools) -> Trial:
    _check_budget(tools)
    trial = replace(trial, times={**trial.times, STAGING: tools.clock.now()})  # until now it waited for a slot
    stage = upload_stage(trial, tools.platform, tools.stager)
    request = tools.platform.render(job_spec(trial, stage, tools.limits.run_s))
    return trial.moved(Step.SUBMIT, tools.clock.now(), stage=stage, request=request)


def _submit(trial: Trial, tools: Tools) -> Trial:
    now = tools.clock.now()
    if not tools.holds(trial):  # this process may have stood still since the intent was saved
        return taken_by_another_run(trial, now)
    if not trial.attempts:
        _check_budget(tools)
    sent = submit_job(trial, tools.platform, now, tools.limits)
    return sent.moved(Step.WATCH, now) if sent.job_id else sent


def _watch(trial: Trial, tools: Tools) -> Trial:
    if trial.fault and not tools.holds(trial):
        return taken_by_another_run(trial, tools.clock.now())
    trial = watch.watch_job(
        trial, tools.platform, tools.clock, tools.limits, tools.inspect, stopped_by=tools.stopped_by, holds=tools.holds
    )
    if trial.step is Step.WATCH and not trial.fault:
        _check_budget(tools)  # after the look: a job that has just succeeded counts
    return trial


def _collect(trial: Trial, tools: Tools) -> Trial:
    now = tools.clock.now()
    try:
        trial = collect(trial, tools.platform.store, tools.folder)
        trial = replace(trial, fault=trial.fault or watch.fault_of(trial, tools.folder))
        if trial.measurements:
            trial = with_usage_and_power(trial, tools.platform, tools.meter)
        trial = watch.with_endpoints(trial, tools.platform)
        return trial.moved(Step.JUDGE, now)
    except AisbenchError as error:
        # The results are paid for, so wait for them; but a private cloud that is gone does not come back.
        if not error.retryable or not tools.platform.platform_id:
            raise
        return watch.sit_out_outage(trial, error, now, tools.limits)


def _judge(trial: Trial, tools: Tools) -> Trial:
    if trial.fault:
        return _ended(with_last_events_and_lines(trial, tools.platform, tools.folder), trial.fault, tools)
    trial = tools.verdict_step.judge(trial, tools.others(trial.case.workload.name), day(tools.clock.now()))
    if not trial.verdict.passed and not trial.another_trial:
        trial = with_last_events_and_lines(trial, tools.platform, tools.folder)
    return trial.moved(Step.DONE, tools.clock.now())


def _check_budget(tools: Tools) -> None:
    if tools.budget:
        tools.budget.check()


def _ended(trial: Trial, fault: Fault, tools: Tools) -> Trial:
    if fault.blame is Blame.PERSON:
        return trial.moved(Step.DONE, tools.clock.now(), fault=fault)  # nothing is said of workload or platform
    ruling = Ruling.BROKEN if fault.blame is Blame.PLATFORM else Ruling.FAILED
    return trial.moved(Step.DONE, tools.clock.now(), fault=fault, judged=Verdict(ruling, fault.text))


_STEPS = {Step.STAGE: _stage, Step.SUBMIT: _submit, Step.WATCH: _watch, Step.HARVEST: _collect, Step.JUDGE: _judge}


def taken_by_another_run(trial: Trial, now: float) -> Trial:
    """The trial as this run ends it after another run has taken its job over."""
    fault = Fault(Blame.PLATFORM, message("given away"))
    return trial.moved(Step.DONE, now, job=None, fault=fault, judged=Verdict(Ruling.BROKEN, fault.text))


def is_given_away(trial: Trial) -> bool:
    """True if another run has taken the trial over, and this run knows it."""
    return trial.fault is not None and trial.fault.text == message("given away")


def with_last_events_and_lines(trial: Trial, platform: Platform, folder: Path) -> Trial:
    """The trial with the last events and log lines of its job, for a case that did not pass."""
    events: Sequence[str] = ()
    # An error of the platform here changes no verdict.
    with ignored(_LOG, Exception, "%s: the events of its job", trial.name):
        events = [plain(event) for event in platform.events(trial.job_id or "")]
    _, lines = last_lines(trial, folder, _LAST)
    quoted = None
    with ignored(_LOG, Exception, "%s: the lines of its log that matter", trial.name):
        quoted = excerpt(trial, folder)
    return replace(trial, events=tuple(events[-_LAST:]), last_lines=tuple(lines), excerpt=quoted)


def why_another_trial(trial: Trial, max_trials: int) -> str:
    """The reason for another trial of the case; empty if none is due: a failed workload would fail again."""
    if trial.step is not Step.DONE or trial.number >= max_trials:
        return ""
    if trial.another_trial:
        return message("again", why=trial.another_trial)
    fault = trial.fault
    if fault is None or not fault.transient:
        return ""
    return message("again after", why=fault.text, trial=str(trial.number), job=str(trial.job_id))


def without_another_trial(trial: Trial, why: str) -> Trial:
    """The trial as the last of its case although another was due: its undecided findings say why none followed."""
    verdict = trial.judged
    if not trial.another_trial or verdict is None:
        return trial.noted(message("not again", why=why))
    no_other = message("no other", why=why)
    findings = tuple(
        replace(finding, text=joined((finding.text, no_other))) if finding.outcome is Outcome.UNDECIDED else finding
        for finding in verdict.findings
    )
    verdict = replace(verdict, reason=joined((verdict.reason, no_other)), findings=findings)
    return replace(trial, another_trial="", judged=verdict)


@dataclass(frozen=True)
class VerdictStep:
    """Judges the trials of a run by the user's rules and the history in the ledger."""

    rules: Rules = field(default_factory=Rules)
    history: History | None = None
    _speeds: dict[str, float | None] = field(default_factory=dict, repr=False)

    def judge(self, trial: Trial, others: Iterable[Trial], today: str) -> Trial:
        """The trial with its verdict, what that rests on, and whether another trial is due.

        `others` are the trials of its workload in this run.
        """
        evaluation, incomparable = self.evaluate(trial, others, today)
        trial = replace(
            trial, judged=evaluation.verdict, background=evaluation.background, another_trial=evaluation.another_trial
        )
        for text in filter(None, (incomparable, *evaluation.notes)):
            trial = trial.noted(text)
        return trial

    def evaluate(self, trial: Trial, others: Iterable[Trial], today: str = "") -> tuple[Evaluation, str]:
        """The evaluation; and, if the newest trial of the case is not comparable, a line that says why."""
        evidence, incomparable = self._evidence(trial, _siblings(trial, others))
        return evaluate(case_values(trial), evidence, self.rules, today), incomparable

    def scaling_chart(self, trial: Trial, others: Iterable[Trial]) -> tuple[ScalePoint, ...]:
        """The speeds of all shapes of its workload, as far as they are measured by now."""
        siblings = _siblings(trial, others)
        base = self._base(trial, siblings)
        return _chart(trial.case, base, self._shape_speeds(trial, siblings, base))

    def _evidence(self, trial: Trial, siblings: Sequence[Trial]) -> tuple[Evidence, str]:
        case, key, run = trial.case, traits_key(trial.traits), trial.run
        base = self._base(trial, siblings)
        chart = _chart(case, base, self._shape_speeds(trial, siblings, base))
        earlier = tuple(case_values(each) for each in siblings if _precedes(each, trial))
        if self.history is None:
            return Evidence(earlier, base=base, scaling=chart), ""
        past = self.history.of(case.id, key, without=run, counted=False)
        oldest = self.history.first(case.id, key, ANCHOR_TRIALS, without=run) if len(past) == NEWEST else ()
        other = self.history.newest(case.id, without=run, key=key)
        changed = trait_differences(self.history.traits(other.key), trial.traits) if other else ()
        incomparable = ""
        if other and (not past or past[-1].at < other.at):
            incomparable = message("not compared", run=other.run, changes="; ".join(changed))
        return Evidence(earlier, past, oldest, base, chart, changed), incomparable

    def _base(self, trial: Trial, siblings: Sequence[Trial]) -> Speed | None:
        """The base of its scaling, with its noise: as measured in this run, or else by its newest trials before."""
        shape = scaling_base(trial.case)
        if shape is None:
            return None
        at_base = ((each, self._speed(each)) for each in siblings if each.case.shape == shape)
        measured = [(each, speed) for each, speed in at_base if speed is not None]
        past = self._records(trial, shape, NEWEST)
        base = base_speed(shape, [speed for _, speed in measured], [each.throughput for each in past])
        if base is None:
            return None
        here = [each for each, _ in measured]
        return replace(base, source=_source_here(here, trial) if here else _source(past[-base.count :]))

    def _shape_speeds(self, trial: Trial, siblings: Sequence[Trial], base: Speed | None) -> dict[Shape, Speed]:
        """Of the shapes of the workload: as measured in this run, or else in its history."""
        by_shape: dict[Shape, list[float]] = {}
        for each in (*siblings, trial):
            if (speed := self._speed(each)) is not None:
                by_shape.setdefault(each.case.shape, []).append(speed)
        speeds = {shape: Speed(shape, average(values)) for shape, values in by_shape.items()}
        if base:
            speeds[base.shape] = base
        return {**self._speeds_of_history(trial, speeds), **speeds}

    def _speed(self, trial: Trial) -> float | None:
        """The throughput of a trial that is comparable, else None; cached, since every shape asks for all others."""
        if trial.step < Step.JUDGE:
            return None
        if trial.id not in self._speeds:
            measured = case_values(trial)
            comparable = not trial.fault and measured.is_comparable
            self._speeds[trial.id] = measured.values[THROUGHPUT] if comparable else None
        return self._speeds[trial.id]

    def _speeds_of_history(self, trial: Trial, measured: Collection[Shape]) -> dict[Shape, Speed]:
        if self.history is None or len(measured) >= _CHART_SHAPES:
            return {}
        shapes = self.history.shapes(trial.case.workload.name, family_key(trial.traits), _CHART_SHAPES)
        others = (shape for shape in map(Shape.parse, shapes) if shape not in measured)
        past = {shape: self._records(trial, shape, BASE_TRIALS) for shape in others}
        return {
            shape: Speed(shape, average([each.throughput for each in records]), _source(records))
            for shape, records in past.items()
            if records
        }

    def _records(self, trial: Trial, shape: Shape, limit: int) -> tuple[TrialRecord, ...]:
        """The newest of another shape that agree with the trial in every other trait."""
        if self.history is None:
            return ()
        family = family_key(trial.traits)
        return self.history.base(trial.case.workload.name, str(shape), family, limit, without=trial.run)


def _siblings(trial: Trial, others: Iterable[Trial]) -> list[Trial]:
    """The other trials of the same workload, in the same mode and with the same arguments."""
    how = trial.case.mode, trial.case.arguments
    return [each for each in others if each.id != trial.id and (each.case.mode, each.case.arguments) == how]


def _precedes(other: Trial, trial: Trial) -> bool:
    """Whether `other` is a complete earlier trial of the same case, which did not decide it."""
    earlier = other.case.id == trial.case.id and other.number < trial.number
    complete = other.step is Step.DONE and not other.fault and bool(other.measurements)
    return earlier and complete and not case_values(other).missing


def _source_here(bases: Sequence[Trial], trial: Trial) -> str:
    """This run, and how a base differs: the logs may show that it was trained by other software."""
    lines = (family_differences(each.traits, trial.traits) for each in bases)
    different = dict.fromkeys(line for each in lines for line in each)
    return THIS_RUN + message("unlike", changes="; ".join(different)) if different else THIS_RUN


def _source(records: Sequence[TrialRecord]) -> str:
    run, count = records[-1].run, len(records)
    return message("history of", count=str(count), run=run) if count > 1 else message("history", run=run)


def _chart(case: Case, base: Speed | None, speeds: Mapping[Shape, Speed]) -> tuple[ScalePoint, ...]:
    """Efficiencies against the threshold's base, or else the fewest cards; a selection if there are many shapes."""
    order = sorted(speeds, key=lambda shape: (shape.world, shape))
    base = base or (speeds[order[0]] if order else None)
    if base is None or case.single_server:  # nodes that train alone do not scale
        return ()
    selected = {base.shape, case.shape, *order[:: -(-len(order) // _CHART_SHAPES)]}
    shares = efficiencies((speeds[shape] for shape in order if shape in selected), base)
    return tuple(
        ScalePoint(str(shape), speeds[shape].value, share, speeds[shape].source) for shape, share in shares.items()
    )
