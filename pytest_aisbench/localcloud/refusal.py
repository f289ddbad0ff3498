"""A request that ModelArts does not grant."""

from __future__ import annotations

_SOLUTIONS = {
    "2751": "Choose another job name.",
    "2775": "Check the training job ID.",
    "2786": "Use the project ID of the account that signed the request.",
    "2791": "Check the OBS path.",
    "2796": "Only a job that is being created, waits or runs can be terminated.",
}


class Refusal(Exception):
    def __init__(self, status: int, number: str, message: str) -> None:
        super().__init__(message)
        self.status = status
        self.code = f"ModelArts.{number}"
        self.message = message
        self.solution = _SOLUTIONS.get(number, "Check the parameters of the request.")
