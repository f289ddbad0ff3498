"""A node's log, as it grows."""

from __future__ import annotations

from collections.abc import Iterator

from pytest_aisbench.domain.ports import Clock, Platform
from pytest_aisbench.errors import Throttled, Unreachable
from pytest_aisbench.logs import get_logger, log_ignored

_LOG = get_logger("monitor")
OUTAGE_S = 900.0  # a platform that does not answer for so long is not waited for any more


def follow(platform: Platform, clock: Clock, job_id: str, node: int = 0) -> Iterator[str]:
    """Its text from the beginning, each piece once, until the job is final and all was said."""
    since, heard, final = 0, clock.now(), False
    while True:
        # What a job says last may be shown after its end: once it is final, one reading more must find nothing.
        last = final
        try:
            final = final or platform.inspect([job_id])[job_id].phase.is_final
            part = platform.logs(job_id, node, since)
        except (Unreachable, Throttled) as error:
            if clock.now() - heard > OUTAGE_S:
                raise
            log_ignored(_LOG, error, "one look at the log of job %s", job_id)
        else:
            since, heard = part.next, clock.now()
            if part.text:
                yield part.text
            elif last:
                return
        clock.sleep(platform.poll_s)
