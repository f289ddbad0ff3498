"""Whether a case needs one more trial, and why."""

from __future__ import annotations

from pytest_aisbench.domain.trial import Step, Trial


def why_again(trial: Trial, max_trials: int) -> str:
    """Empty where the trial decides its case. A workload that failed would only fail again, at the same cost."""
    fault = trial.fault
    if trial.step is not Step.DONE or not fault or not fault.passing or trial.number >= max_trials:
        return ""
    return f"tried again: {fault.text} (trial {trial.number}, job {trial.job_id})"
