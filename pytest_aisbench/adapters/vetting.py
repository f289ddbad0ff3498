"""What a job asks for, held against what ModelArts itself lists."""

from __future__ import annotations

import difflib
from collections.abc import Callable, Collection, Mapping
from typing import Any

from pytest_aisbench.adapters.signed import Session
from pytest_aisbench.domain.checkup import Check, Health, failure, fine, warning
from pytest_aisbench.errors import AisbenchError, BadAnswer, Refused, Rejected

_SHOWN = 12  # of a list, those most like what was asked for
_NO_LIST = (Refused, Rejected, BadAnswer)  # not every account may see every list, and not every centre has it


class Lists:
    """What was listed in one session. A list that is not to be had is not asked for again either."""

    def __init__(self, session: Session) -> None:
        self._session = session
        self._answers: dict[str, dict[str, Any] | AisbenchError] = {}

    def ask(self, path: str, query: Mapping[str, Any] | None = None, patience_s: float | None = None) -> dict[str, Any]:
        """Anew. `patience_s` bounds the whole and each attempt."""
        key = f"{path} {query}"
        try:
            answer = self._session.call("GET", path, query=query, patience_s=patience_s, timeout_s=patience_s)
            self._answers[key] = answer
        except _NO_LIST as error:
            self._answers[key] = error
            raise
        return answer

    def get(self, path: str, query: Mapping[str, Any] | None = None) -> dict[str, Any]:
        known = self._answers.get(f"{path} {query}")
        if isinstance(known, AisbenchError):
            raise known
        return self.ask(path, query) if known is None else known


def flavor(name: str, nodes: int, most_nodes: Mapping[str, int]) -> Check:
    """`most_nodes`: of each flavor that is listed; 0 where that is not told."""
    if name not in most_nodes:
        return _absent("flavor", name, most_nodes, "flavor")
    most = most_nodes[name]
    if most and nodes > most:
        fix = f"choose --nodes {most} or fewer, or another flavor"
        return failure("flavor", f"{nodes} nodes are asked for, and a job may have {most} of flavor {name}", fix)
    return fine("flavor", f"{name} is offered" + (f", up to {most} nodes" if most else ""))


def engine(name: str, offered: Collection[str]) -> Check:
    if name in offered:
        return fine("engine", f"{name} is offered")
    return _absent("engine", name, offered, "framework_type and framework_version")


def quota(used: int, allowed: int) -> Check:
    text = f"{used} of {allowed} jobs are there"
    if used < allowed:
        return fine("quota", text)
    return Check(
        "quota", Health.FAILURE, text, "delete jobs that are not needed, or have the quota raised", lasting=False
    )


def as_listed(name: str, look: Callable[[], Check]) -> Check:
    """Where the list is not to be had, the job itself will tell."""
    try:
        return look()
    except _NO_LIST as error:
        return warning(name, f"not checked, since the platform does not list it: {error.message}", error.advice)


def _absent(what: str, name: str, offered: Collection[str], key: str) -> Check:
    if not offered:
        return warning(what, f"not checked, since the platform lists none: {name}")
    alike = sorted(offered, key=lambda known: (-difflib.SequenceMatcher(None, name, known).ratio(), known))[:_SHOWN]
    more = f" and {len(offered) - _SHOWN} more" if len(offered) > _SHOWN else ""
    return failure(
        what, f"there is no {what} {name!r}", f"set {key} in workload.toml to one of {', '.join(alike)}{more}"
    )
