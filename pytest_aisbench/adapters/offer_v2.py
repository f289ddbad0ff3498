"""What ModelArts offers by API V2, and whether a job can have what it asks for."""

from __future__ import annotations

from collections.abc import Iterator

from pytest_aisbench.adapters import vetting
from pytest_aisbench.adapters.answers import reading
from pytest_aisbench.adapters.signed import Session
from pytest_aisbench.adapters.training_job import Placement
from pytest_aisbench.domain.checkup import Check, failure, fine
from pytest_aisbench.errors import Rejected

_FLAVORS = "/v2/{project_id}/training-job-flavors"
_POOL_FLAVORS = "/v2/{project_id}/training-pool-flavors"
_ENGINES = "/v2/{project_id}/training-job-engines"
_QUOTAS = "/v2/{project_id}/training-quotas"
_UNKNOWN_POOL = ("ModelArts.2886", "ModelArts.2890")


class OfferV2:
    """Of one session."""

    def __init__(self, session: Session) -> None:
        self._lists = vetting.Lists(session)

    def check(self, patience_s: float) -> None:
        self._lists.ask(_FLAVORS, patience_s=patience_s)

    def vet(self, place: Placement) -> Iterator[Check]:
        resource = place.resource
        if pool := resource.get("pool_id"):
            yield vetting.as_listed("pool", lambda: self._pool(pool, resource.get("flavor_id")))
        else:
            wanted, nodes = str(resource["flavor_id"]), int(resource["node_count"])
            yield vetting.as_listed("flavor", lambda: vetting.flavor(wanted, nodes, self._most_nodes()))
        if name := place.engine_name:
            yield vetting.as_listed("engine", lambda: vetting.engine(name, self._engines()))
        yield vetting.as_listed("quota", self._quota)

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
        return fine("pool", f"{pool} is there" + (f" and knows {flavor}" if flavor else ""))

    def _quota(self) -> Check:
        answer = self._lists.get(_QUOTAS, {"resource": "job-num"})
        with reading("its quotas"):
            (row,) = [row for row in answer["quotas"] if row["resource"] == "job-num"]
            return vetting.quota(int(row["used"]), int(row["quota"]))
