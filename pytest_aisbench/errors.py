"""Every error we raise; each knows whom it blames and what to do about it.

AisbenchError
├── UsageFault              the user; one line for each mistake, exit 4, before anything is paid for
│   └── Refused             the platform does not know these keys, or they may not do this
├── WorkloadError           the training code                                   → FAILED
│   └── JobOverdue          it ran longer than it may
├── PlatformError           the cloud, the network, this machine's disk         → BROKEN
│   ├── Unreachable         no answer, or the connection broke; retryable
│   ├── Throttled           asked too often; retryable
│   ├── BadAnswer           an answer that is not what the vendor documents
│   │   └── Garbled         a page or half an answer, from whatever stands between; retryable
│   ├── Rejected            a request the platform understood and turned down    → FAILED
│   ├── OutOfQuota          no room for another job
│   ├── StagingFailed       an upload or download did not arrive whole
│   │   └── Damaged         a download that changed on the way; retryable
│   ├── QueueOverdue        it waited longer than it may
│   └── JobLost             the platform no longer knows the job, or lost its nodes
├── BudgetSpent             the run has cost what it may                        → FAILED
├── GivenUp                 the run is ending; no one is to blame               → not judged
├── LedgerError             the ledger cannot be read or written                → exit 3
└── Crashed                 a mistake of ours, or of a platform's adapter       → exit 3
NotPassed (AssertionError)  a verdict that is not PASSED, raised in a test's call
"""

from __future__ import annotations

import enum
from collections.abc import Iterable


class Blame(enum.Enum):
    """Who must act."""

    USER = "user"
    WORKLOAD = "workload"
    PLATFORM = "platform"
    PERSON = "person"  # stopped the job; no one has to act


class AisbenchError(Exception):
    """`message` says what happened and where; `advice` what to do; `trail` what a person may look up later;
    `pause_s` how long the server asked to be left alone."""

    blame = Blame.PLATFORM
    retryable = False

    def __init__(self, message: str, *, advice: str = "", trail: str = "", pause_s: float = 0.0) -> None:
        super().__init__(message)
        self.message = message
        self.advice = advice
        self.trail = trail
        self.pause_s = pause_s

    def __str__(self) -> str:
        text = self.message
        if self.trail:
            text += f" ({self.trail})"
        if self.advice:
            text += f"; {self.advice}"
        return text

    def __reduce__(self) -> tuple[object, ...]:
        # An error may cross from the controller to a worker of xdist: keyword arguments do not survive pickling.
        return (_rebuild, (type(self), self.message, self.advice, self.trail, self.pause_s))


def _rebuild(kind: type[AisbenchError], message: str, advice: str, trail: str, pause_s: float) -> AisbenchError:
    return kind(message, advice=advice, trail=trail, pause_s=pause_s)


class UsageFault(AisbenchError):
    """Something that was typed or written down is wrong; `raise_together` makes one of several."""

    blame = Blame.USER

    @property
    def lines(self) -> list[str]:
        return str(self).splitlines()


class Refused(UsageFault):
    """The platform does not accept these credentials, or not for this.

    Before a run that is a usage error; in its middle it is the platform's fault, and the case is BROKEN.
    """

    blame = Blame.PLATFORM


class WorkloadError(AisbenchError):
    """The training code is to blame."""

    blame = Blame.WORKLOAD


class JobOverdue(WorkloadError):
    """The job ran longer than the run timeout."""


class PlatformError(AisbenchError):
    """The platform, or the way to it, is to blame."""


class Unreachable(PlatformError):
    """No answer: refused, reset, timed out, or a server error. The request may or may not have been carried out."""

    retryable = True


class Throttled(PlatformError):
    """Too many requests."""

    retryable = True


class BadAnswer(PlatformError):
    """The answer cannot be understood."""


class Garbled(BadAnswer):
    """What came is no answer of the service: a gateway's page, or half of what was sent."""

    retryable = True


class Rejected(PlatformError):
    """The platform understood the request and refused it: the user must change the request."""

    blame = Blame.USER


class OutOfQuota(PlatformError):
    """The account or pool has no room."""


class StagingFailed(PlatformError):
    """What was to be in the Store, or to come from it, did not arrive whole."""


class Damaged(StagingFailed):
    """What came from the Store is not what it has: cut, or changed on the way. The next download may be whole."""

    retryable = True


class QueueOverdue(PlatformError):
    """The job waited longer than the queue timeout."""


class JobLost(PlatformError):
    """The platform no longer has the job."""


class BudgetSpent(AisbenchError):
    """The run has cost more than it may, or one more trial would."""

    blame = Blame.USER


class GivenUp(AisbenchError):
    """The run ended before this could."""


class Crashed(AisbenchError):
    """The Fleet ended by an unforeseen error, which judges no case."""

    @classmethod
    def of(cls, error: BaseException) -> AisbenchError:
        return error if isinstance(error, AisbenchError) else cls(f"{type(error).__name__}: {error}")


class LedgerError(AisbenchError):
    """The ledger cannot be read or written."""


class NotPassed(AssertionError):
    """A verdict that is not PASSED, as a test's failure."""


def raise_together(faults: Iterable[UsageFault]) -> None:
    """Raise all mistakes at once, each in a line of its own and only once; do nothing if there are none."""
    by_line = {str(fault): fault for fault in faults}
    if len(by_line) == 1:
        raise next(iter(by_line.values()))
    if by_line:
        raise UsageFault("\n".join(by_line))


def near_names(name: str, valid: Iterable[str]) -> list[str]:
    """Up to three valid names that look like this one, or have a whole word of it; the nearest first."""
    import difflib

    names, words = list(valid), set(name.split("_"))
    near = difflib.get_close_matches(name, names)
    return [*near, *(each for each in names if each not in near and words & set(each.split("_")))][:3]


def perhaps(key: str, valid: Iterable[str]) -> str:
    """Advice about an unknown name."""
    import difflib

    close = difflib.get_close_matches(key, names := list(valid), n=1)
    return f"did you mean {close[0]!r}?" if close else f"known: {', '.join(sorted(names))}"
