"""The numbers by which V1 names the states of a job."""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from pytest_aisbench.localcloud.job import Job

NAMES = (
    "UNKNOWN", "INIT", "IMAGE_CREATING", "IMAGE_FAILED", "SUBMIT_TRYING", "SUBMIT_FAILED", "DELETE_FAILED", "WAITING",
    "RUNNING", "KILLING", "COMPLETED", "FAILED", "KILLED", "CANCELED", "LOST", "SCALING", "SUBMIT_MODEL_FAILED",
    "DEPLOY_SERVICE_FAILED", "CHECK_INIT", "CHECK_RUNNING", "CHECK_RUNNING_COMPLETED", "CHECK_FAILED", "MOUNT_FAILED",
)  # fmt: skip
REVIEW = ("CHECK_INIT", "CHECK_RUNNING", "CHECK_RUNNING_COMPLETED")
"""What the first job with a custom image goes through."""

_NAMED = {
    "Creating": "INIT",
    "Pending": "WAITING",
    "Running": "RUNNING",
    "Terminating": "KILLING",
    "Completed": "COMPLETED",
    "Failed": "FAILED",
}


def status(job: Job) -> int:
    """A fault may show any number, also one that V1 does not have yet, or any of its names."""
    phase = job.shown_phase
    if phase.isdigit():
        return int(phase)
    if phase == "Terminated":
        name = "KILLED" if job.started else "CANCELED"
    elif phase == "Abnormal":
        name = "LOST" if job.started else "SUBMIT_FAILED"
    else:
        name = _NAMED.get(phase, phase)
    return NAMES.index(name) if name in NAMES else 0
