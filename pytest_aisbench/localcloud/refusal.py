"""A request that ModelArts does not grant, and how it says so."""

from __future__ import annotations

import uuid
from dataclasses import replace

from pytest_aisbench.localcloud.message import Response

_SOLUTIONS = {
    "2751": "Choose another job name.",
    "2775": "Check the training job ID.",
    "2786": "Use the project ID of the account that signed the request.",
    "2791": "Check the OBS path.",
    "2796": "Only a job that is being created, waits or runs can be terminated.",
}

# What is said with a status where nobody has a better reason; most of it by the gateway.
USUAL = {
    401: ("APIGW.0307", "The token must be updated."),
    403: ("APIGW.0302", "The IAM user is not authorized to access the API."),
    429: ("APIGW.0308", "The throttling threshold has been reached: policy user over ratelimit,limit:10,time:1 second"),
    500: ("ModelArts.2950", "Internal error."),
    502: ("APIGW.0202", "Backend unavailable."),
    503: ("APIGW.0202", "Backend unavailable."),
    504: ("APIGW.0203", "Backend timeout."),
}
UNUSUAL = ("APIGW.9999", "System error.")


class Refusal(Exception):
    def __init__(self, status: int, number: str, message: str) -> None:
        super().__init__(message)
        self.status = status
        self.code = f"ModelArts.{number}"
        self.message = message
        self.solution = _SOLUTIONS.get(number, "Check the parameters of the request.")


def refused(status: int, code: str, message: str, solution: str) -> Response:
    content = {"error_msg": message, "error_code": code, "error_solution": solution}
    return identified(Response.json(status, content))


def identified(response: Response) -> Response:
    return replace(response, headers={**response.headers, "X-Request-Id": uuid.uuid4().hex})
