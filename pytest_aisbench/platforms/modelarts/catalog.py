"""What a job asks for, held against what ModelArts itself lists."""

from __future__ import annotations

import difflib
from collections.abc import Callable, Collection, Iterator, Mapping
from typing import Any, NamedTuple

from pytest_aisbench.errors import AisbenchError, BadAnswer, Refused, Rejected
from pytest_aisbench.model.ports import Check, Health, failure, ok, warning
from pytest_aisbench.net.huawei import reading
from pytest_aisbench.platforms.modelarts.request import Placement
from pytest_aisbench.platforms.modelarts.session import Session

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


def check_flavor(name: str, nodes: int, most_nodes: Mapping[str, int]) -> Check:
    """`most_nodes`: of each flavor that is listed; 0 where that is not told."""
    if name not in most_nodes:
        return _absent("flavor", name, most_nodes, "flavor")
    most = most_nodes[name]
    if most and nodes > most:
        fix = f"choose --nodes {most} or fewer, or another flavor"
        return failure("flavor", f"{nodes} nodes are asked for, and a job may have {most} of flavor {name}", fix)
    return ok("flavor", f"{name} is offered" + (f", up to {most} nodes" if most else ""))


def check_engine(name: str, offered: Collection[str]) -> Check:
    if name in offered:
        return ok("engine", f"{name} is offered")
    return _absent("engine", name, offered, "framework_type and framework_version")


def check_quota(used: int, allowed: int) -> Check:
    text = f"{used} of {allowed} jobs are there"
    if used < allowed:
        return ok("quota", text)
    return Check(
        "quota", Health.FAILURE, text, "delete jobs that are not needed, or have the quota raised", lasting=False
    )


def check_if_listed(name: str, look: Callable[[], Check]) -> Check:
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


# -- What ModelArts offers by API V1, and whether a job can have what it asks for. V1 has numbers where we have names.

JOBS = "/v1/{project_id}/training-jobs"
_SPECS = "/v1/{project_id}/job/resource-specs"
_ENGINES_V1 = "/v1/{project_id}/job/ai-engines"
_TRAINING = {"job_type": "train"}


class _Listed(NamedTuple):
    """A list of V1, in which names have numbers."""

    path: str
    rows: str
    name_of: Callable[[Mapping[str, Any]], str]


# By the key that a request has the number under.
_LISTED = {
    "spec_id": _Listed(_SPECS, "specs", lambda row: str(row["spec_code"])),
    "engine_id": _Listed(_ENGINES_V1, "engines", lambda row: f"{row['engine_name']} {row['engine_version']}"),
}


class CatalogV1:
    """Of one session."""

    def __init__(self, session: Session) -> None:
        self._lists = Lists(session)

    def check(self, patience_s: float) -> None:
        self._lists.ask(_SPECS, _TRAINING, patience_s=patience_s)

    def vet(self, place: Placement) -> Iterator[Check]:
        resource = place.resource
        if pool := resource.get("pool_id"):
            yield warning("pool", f"not checked, since V1 has no list of pools: {pool}")
        else:
            wanted, nodes = str(resource["flavor_id"]), int(resource["node_count"])
            yield check_if_listed("flavor", lambda: check_flavor(wanted, nodes, self._most_nodes()))
        if name := place.engine_name:
            yield check_if_listed("engine", lambda: check_engine(name, self._numbers("engine_id")))
        yield check_if_listed("quota", self._quota)

    def numbered(self, config: Mapping[str, Any]) -> dict[str, Any]:
        """Names replaced by this platform's numbers; a name that it does not have is answered with those it has."""
        known = dict(config)
        for key, listed in _LISTED.items():
            if key not in config:
                continue
            numbers = self._numbers(key)
            if config[key] not in numbers:
                names = ", ".join(sorted(numbers))
                raise Rejected(f"ModelArts has no {config[key]!r}", advice=f"its {listed.rows} are {names}")
            known[key] = numbers[config[key]]
        return known

    def _numbers(self, key: str) -> dict[str, Any]:
        """Of flavors or engines, by their names."""
        path, rows, name_of = _LISTED[key]
        answer = self._lists.get(path, _TRAINING)
        with reading(f"the list of its {rows}"):
            return {name_of(row): row[key] for row in answer[rows]}

    def _most_nodes(self) -> dict[str, int]:
        answer = self._lists.get(_SPECS, _TRAINING)
        with reading("the list of its specs"):
            return {str(row["spec_code"]): int(row.get("max_num") or 0) for row in answer["specs"]}

    def _quota(self) -> Check:
        answer = self._lists.get(JOBS, {"per_page": 1})
        with reading("its quotas"):
            allowed = int(answer["quotas"])
            return check_quota(allowed - int(answer["job_count_limit"]), allowed)


# -- What ModelArts offers by API V2, and whether a job can have what it asks for.

_FLAVORS = "/v2/{project_id}/training-job-flavors"
_POOL_FLAVORS = "/v2/{project_id}/training-pool-flavors"
_ENGINES_V2 = "/v2/{project_id}/training-job-engines"
_QUOTAS = "/v2/{project_id}/training-quotas"
_UNKNOWN_POOL = ("ModelArts.2886", "ModelArts.2890")


class CatalogV2:
    """Of one session."""

    def __init__(self, session: Session) -> None:
        self._lists = Lists(session)

    def check(self, patience_s: float) -> None:
        self._lists.ask(_FLAVORS, patience_s=patience_s)

    def vet(self, place: Placement) -> Iterator[Check]:
        resource = place.resource
        if pool := resource.get("pool_id"):
            yield check_if_listed("pool", lambda: self._pool(pool, resource.get("flavor_id")))
        else:
            wanted, nodes = str(resource["flavor_id"]), int(resource["node_count"])
            yield check_if_listed("flavor", lambda: check_flavor(wanted, nodes, self._most_nodes()))
        if name := place.engine_name:
            yield check_if_listed("engine", lambda: check_engine(name, self._engines()))
        yield check_if_listed("quota", self._quota)

    def _most_nodes(self) -> dict[str, int]:
        answer = self._lists.get(_FLAVORS)
        with reading("the list of its flavors"):
            return {
                str(row["flavor_id"]): int(row.get("max_num") or (row.get("flavor_info") or {}).get("max_num") or 0)
                for row in answer.get("flavors") or ()
            }

    def _engines(self) -> set[str]:
        answer = self._lists.get(_ENGINES_V2)
        with reading("the list of its engines"):
            return {f"{row['engine_name']} {row['engine_version']}" for row in answer.get("items") or ()}

    def _pool(self, pool: str, flavor: str | None) -> Check:
        """The platform tells what the pool has left for a flavor; of a pool that it does not know, that."""
        try:
            self._lists.get(_POOL_FLAVORS, {"pool_id": pool, "flavor_id": flavor})
        except Rejected as error:
            if not any(code in error.trail for code in _UNKNOWN_POOL):
                raise
            fix = "set pool_id in workload.toml to the id of one that ModelArts' console lists as dedicated"
            return failure("pool", f"there is no pool {pool!r}", fix)
        return ok("pool", f"{pool} is there" + (f" and knows {flavor}" if flavor else ""))

    def _quota(self) -> Check:
        answer = self._lists.get(_QUOTAS, {"resource": "job-num"})
        with reading("its quotas"):
            (row,) = [row for row in answer["quotas"] if row["resource"] == "job-num"]
            return check_quota(int(row["used"]), int(row["quota"]))
