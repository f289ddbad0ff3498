"""Ready first: a test runs when what it waits for is there, not when its turn has come."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING

import pytest

from pytest_aisbench.session import collection

if TYPE_CHECKING:
    from pytest_aisbench.services.fleet import Fleet

_GLANCE_S = 0.5  # how often it is looked at what runs, where nothing is ready


class _Anchor(pytest.Item):
    """Stands for the next test while nobody knows which that will be: it needs what all the others need."""

    def runtest(self) -> None:
        raise AssertionError("never run")


def run_ready_first(session: pytest.Session, fleet: Fleet, tick: Callable[[], None]) -> bool:
    """pytest's own loop in another order. Fixtures of a module or class are set up again if the order jumps."""
    goals = {item: (collection.case_of(item), collection.until(item)) for item in session.items}

    def is_ready(item: pytest.Item) -> bool:
        case, until = goals[item]
        return case is None or until is None or fleet.is_ready(case, until)

    waiting = list(session.items)
    while waiting:
        ready = [item for item in waiting if is_ready(item)]
        if not ready:
            tick()
            fleet.wait(_GLANCE_S)
            continue
        for item, following in zip(ready, [*ready[1:], None], strict=True):
            waiting.remove(item)
            session.config.hook.pytest_runtest_protocol(item=item, nextitem=following or _next(waiting))
            if session.shouldfail:
                raise session.Failed(session.shouldfail)
            if session.shouldstop:
                raise session.Interrupted(session.shouldstop)
    return True


def _next(waiting: Sequence[pytest.Item]) -> pytest.Item | None:
    if not waiting:
        return None
    if len(waiting) == 1:
        return waiting[0]
    chains = [item.listchain()[:-1] for item in waiting]
    shared = set(chains[0]).intersection(*chains[1:])
    nearest = next(node for node in reversed(chains[0]) if node in shared)
    assert isinstance(nearest, pytest.Collector)
    anchor: _Anchor = _Anchor.from_parent(nearest, name="whichever is ready")
    return anchor
