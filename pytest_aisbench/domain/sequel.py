"""Whether a case needs one more trial, and why; and which other case a trial waits for."""

from __future__ import annotations

from dataclasses import replace

from pytest_aisbench.domain.messages import joined, message
from pytest_aisbench.domain.trial import Step, Trial
from pytest_aisbench.domain.verdict import Outcome


def why_again(trial: Trial, max_trials: int) -> str:
    """Empty where the trial decides its case. A workload that failed would only fail again, at the same cost."""
    if trial.step is not Step.DONE or trial.number >= max_trials:
        return ""
    if trial.due:
        return message("again", why=trial.due)
    fault = trial.fault
    if fault is None or not fault.transient:
        return ""
    return message("again after", why=fault.text, trial=str(trial.number), job=str(trial.job_id))


def not_again(trial: Trial, why: str) -> Trial:
    """The trial as its case's last, though another was due: what it left open stays so, and says why."""
    verdict = trial.judged
    if not trial.due or verdict is None:
        return trial.noted(message("not again", why=why))
    open_ends = message("no other", why=why)
    findings = tuple(
        replace(finding, text=joined((finding.text, open_ends))) if finding.outcome is Outcome.UNDECIDED else finding
        for finding in verdict.findings
    )
    verdict = replace(verdict, reason=joined((verdict.reason, open_ends)), findings=findings)
    return replace(trial, due="", judged=verdict)
