"""Delivering what runs left in the spool, from another shell."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import closing
from dataclasses import replace

from pytest_aisbench.domain.ports import Clock
from pytest_aisbench.domain.upload import Parcel, State, Transport
from pytest_aisbench.errors import UsageFault
from pytest_aisbench.services.courier import Words, collect, deliver
from pytest_aisbench.services.spool import Spool


def flush(
    spool: Spool, words: Words, open_transport: Callable[[str], Transport], clock: Clock, *, patience_s: float
) -> list[Parcel]:
    """Deliver what is spooled of all runs, and what a killed run could not spool; what became of each."""
    spool.bury(clock.now())
    collect(spool, words, clock.now())
    spool.bury(clock.now())
    parcels = spool.waiting()
    by_tester: dict[str, list[Parcel]] = {}
    for parcel in parcels:
        by_tester.setdefault(parcel.tester, []).append(parcel)
    for tester, bound in by_tester.items():
        with closing(open_transport(tester)) as transport:
            deliver(spool, bound, transport, clock, patience_s)
    return [found for parcel in parcels for found in spool.named(parcel.key)]


def requeue(spool: Spool, beginning: str, clock: Clock) -> Parcel:
    """A dead letter is to be tried again."""
    found = [parcel for parcel in spool.named(beginning) if parcel.state is State.DEAD]
    if len(found) != 1:
        what = "no dead letter has" if not found else f"{len(found)} dead letters have"
        raise UsageFault(f"{what} a key that begins with {beginning!r}", advice="`aisbench flush --dead` shows them")
    spool.settle(found[0].key, State.SPOOLED, "to be tried again", clock.now())
    return replace(found[0], state=State.SPOOLED)
