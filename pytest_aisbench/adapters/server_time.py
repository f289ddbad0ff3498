"""What the headers of an answer tell of time: how long to stay away, and how wrong this machine's clock is."""

from __future__ import annotations

from datetime import datetime, timedelta, timezone
from email.utils import parsedate_to_datetime

_IN_STEP = timedelta(minutes=5)  # the vendor's services bear 15


class ServerClock:
    """The server's clock, which signatures must be dated by: this machine's, until a refusal shows them apart."""

    def __init__(self) -> None:
        self.ahead = timedelta(0)
        """Of this machine's."""

    def now(self) -> datetime:
        return datetime.now(timezone.utc) + self.ahead

    def explains_refusal(self, date: str, ahead: timedelta) -> bool:
        """Whether a request that was signed when the server seemed so far `ahead` was refused for its age, going by
        the header `Date` of the refusal. If so, signing it again will do."""
        told = moment(date)
        if told is None:
            return False
        truly = told - datetime.now(timezone.utc)
        if abs(truly - ahead) < _IN_STEP:
            return False
        self.ahead = truly
        return True


def pause_of(retry_after: str, date: str) -> float:
    """How many seconds the header `Retry-After` asks for, as a number or a date; 0 where it asks for nothing."""
    if retry_after.isascii() and retry_after.isdigit():
        return float(retry_after)
    until = moment(retry_after)
    if until is None:
        return 0.0
    # By the server's own clock: ours may be wrong.
    return max(0.0, (until - (moment(date) or datetime.now(timezone.utc))).total_seconds())


def moment(text: str) -> datetime | None:
    """Of a header; None where it tells none."""
    try:
        moment = parsedate_to_datetime(text)
    except (ValueError, IndexError, OverflowError):
        return None
    return moment if moment.tzinfo else moment.replace(tzinfo=timezone.utc)
