"""Checks before a run whether ModelArts offers what a job asks for: flavor, pool, engine, quota.

`CatalogV2` and `CatalogV1` know the lists of the two APIs. If the platform does not give a list, the check is a
warning: the job itself will tell.
"""

from __future__ import annotations

import difflib
from abc import ABC, abstractmethod
from collections.abc import Callable, Collection, Iterator, Mapping
from typing import Any

from pytest_aisbench.errors import AisbenchError, BadAnswer, Refused, Rejected
from pytest_aisbench.model.ports import Check, Health, failure, ok, warning
from pytest_aisbench.net.huawei import reading
from pytest_aisbench.platforms.modelarts.request import Placement
from pytest_aisbench.platforms.modelarts.session import Session

_MOST_PROPOSALS = 12  # of a list, those most like what the job asks for
_NO_LIST = (Refused, Rejected, BadAnswer)  # not every account may see every list, and not every centre has it
JOBS_V1 = "/v1/{project_id}/training-jobs"
_SPECS_V1 = "/v1/{project_id}/job/resource-specs"
_ENGINES_V1 = "/v1/{project_id}/job/ai-engines"
_TRAINING_V1 = {"job_type": "train"}
_FLAVORS = "/v2/{project_id}/training-job-flavors"
_POOL_FLAVORS = "/v2/{project_id}/training-pool-flavors"
_ENGINES = "/v2/{project_id}/training-job-engines"
_QUOTAS = "/v2/{project_id}/training-quotas"
_UNKNOWN_POOL = ("ModelArts.2886", "ModelArts.2890")


class Catalog(ABC):
    """What one API lists to one session."""

    flavors: tuple[str, Mapping[str, str] | None]  # path and query of the list of flavors

    def __init__(self, session: Session) -> None:
        self._lists = _Lists(session)

    def check(self, patience_s: float) -> None:
        """Raise unless the platform answers, and lets these keys list flavors."""
        self._lists.ask(*self.flavors, patience_s=patience_s)

    def vet(self, place: Placement) -> Iterator[Check]:
        resource = place.resource
        if pool := resource.get("pool_id"):
            yield check_if_listed("pool", lambda: self._check_pool(pool, resource.get("flavor_id")))
        else:
            wanted, nodes = str(resource["flavor_id"]), int(resource["node_count"])
            yield check_if_listed("flavor", lambda: check_flavor(wanted, nodes, self._most_nodes()))
        if name := place.engine_name:
            yield check_if_listed("engine", lambda: check_engine(name, self._engines()))
        yield check_if_listed("quota", self._check_quota)

    @abstractmethod
    def _most_nodes(self) -> dict[str, int]: ...
    @abstractmethod
    def _engines(self) -> Collection[str]: ...
    @abstractmethod
    def _check_pool(self, pool: str, flavor: str | None) -> Check: ...
    @abstractmethod
    def _check_quota(self) -> Check: ...


class CatalogV2(Catalog):
    flavors = _FLAVORS, None

    def _most_nodes(self) -> dict[str, int]:
        answer = self._lists.get(_FLAVORS)
        with reading("the list of its flavors"):
            return {
                str(row["flavor_id"]): int(row.get("max_num") or (row.get("flavor_info") or {}).get("max_num") or 0)
                for row in answer.get("flavors") or ()
            }

    def _engines(self) -> set[str]:
        answer = self._lists.get(_ENGINES)
        with reading("the list of its engines"):
            return {_engine_name(row) for row in answer.get("items") or ()}

    def _check_pool(self, pool: str, flavor: str | None) -> Check:
        """Asks what the pool has left for a flavor: the platform's answer says if it does not know the pool."""
        try:
            self._lists.get(_POOL_FLAVORS, {"pool_id": pool, "flavor_id": flavor})
        except Rejected as error:
            if not any(code in error.trail for code in _UNKNOWN_POOL):
                raise
            fix = "set pool_id in workload.toml to the id of one that ModelArts' console lists as dedicated"
            return failure("pool", f"there is no pool {pool!r}", fix)
        return ok("pool", f"{pool} is there" + (f" and knows {flavor}" if flavor else ""))

    def _check_quota(self) -> Check:
        answer = self._lists.get(_QUOTAS, {"resource": "job-num"})
        with reading("its quotas"):
            (row,) = [row for row in answer["quotas"] if row["resource"] == "job-num"]
            return check_quota(int(row["used"]), int(row["quota"]))


class CatalogV1(Catalog):
    """V1's requests have numbers for flavors and engines, which this class looks up by their names."""

    flavors = _SPECS_V1, _TRAINING_V1

    def replace_names(self, config: Mapping[str, Any]) -> dict[str, Any]:
        """The `config` of a request with this platform's numbers for the names of flavor and engine."""
        numbered = dict(config)
        for key, rows in (("spec_id", "specs"), ("engine_id", "engines")):
            if key not in config:
                continue
            numbers = self._numbers(key, rows)
            if config[key] not in numbers:
                names = ", ".join(sorted(numbers))
                raise Rejected(f"ModelArts has no {config[key]!r}", advice=f"its {rows} are {names}")
            numbered[key] = numbers[config[key]]
        return numbered

    def _numbers(self, key: str, rows: str) -> dict[str, Any]:
        answer = self._lists.get(_SPECS_V1 if rows == "specs" else _ENGINES_V1, _TRAINING_V1)
        with reading(f"the list of its {rows}"):
            name_of = _engine_name if rows == "engines" else lambda row: str(row["spec_code"])
            return {name_of(row): row[key] for row in answer[rows]}

    def _most_nodes(self) -> dict[str, int]:
        answer = self._lists.get(_SPECS_V1, _TRAINING_V1)
        with reading("the list of its specs"):
            return {str(row["spec_code"]): int(row.get("max_num") or 0) for row in answer["specs"]}

    def _engines(self) -> Collection[str]:
        return self._numbers("engine_id", "engines")

    def _check_pool(self, pool: str, flavor: str | None) -> Check:
        return warning("pool", f"not checked, since V1 has no list of pools: {pool}")

    def _check_quota(self) -> Check:
        answer = self._lists.get(JOBS_V1, {"per_page": 1})
        with reading("its quotas"):
            allowed = int(answer["quotas"])
            return check_quota(allowed - int(answer["job_count_limit"]), allowed)


def _engine_name(row: Mapping[str, Any]) -> str:
    return f"{row['engine_name']} {row['engine_version']}"


class _Lists:
    """The lists that one session has read. A list that the platform refused is not asked for again."""

    def __init__(self, session: Session) -> None:
        self._session = session
        self._answers: dict[str, dict[str, Any] | AisbenchError] = {}

    def ask(self, path: str, query: Mapping[str, Any] | None = None, patience_s: float | None = None) -> dict[str, Any]:
        """Read a list, even if it was read before. `patience_s` limits the whole and each attempt."""
        key = f"{path} {query}"
        try:
            answer = self._session.call("GET", path, query=query, patience_s=patience_s, timeout_s=patience_s)
            self._answers[key] = answer
        except _NO_LIST as error:
            self._answers[key] = error
            raise
        return answer

    def get(self, path: str, query: Mapping[str, Any] | None = None) -> dict[str, Any]:
        """The list as it was read first."""
        answer = self._answers.get(f"{path} {query}")
        if isinstance(answer, AisbenchError):
            raise answer
        return self.ask(path, query) if answer is None else answer


def check_flavor(name: str, nodes: int, most_nodes: Mapping[str, int]) -> Check:
    """`most_nodes`: how many a job may have, by flavor; 0 if the list does not say."""
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
    """The result of `look`, or a warning if the platform does not give the list."""
    try:
        return look()
    except _NO_LIST as error:
        return warning(name, f"not checked, since the platform does not list it: {error.message}", error.advice)


def _absent(what: str, name: str, offered: Collection[str], key: str) -> Check:
    if not offered:
        return warning(what, f"not checked, since the platform lists none: {name}")
    alike = sorted(offered, key=lambda other: (-difflib.SequenceMatcher(None, name, other).ratio(), other))[
        :_MOST_PROPOSALS
    ]
    more = f" and {len(offered) - _MOST_PROPOSALS} more" if len(offered) > _MOST_PROPOSALS else ""
    return failure(
        what, f"there is no {what} {name!r}", f"set {key} in workload.toml to one of {', '.join(alike)}{more}"
    )
