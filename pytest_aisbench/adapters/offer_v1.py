"""What ModelArts offers by API V1, and whether a job can have what it asks for. V1 has numbers where we have names."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from typing import Any, NamedTuple

from pytest_aisbench.adapters import vetting
from pytest_aisbench.adapters.answers import reading
from pytest_aisbench.adapters.signed import Session
from pytest_aisbench.adapters.training_job import Placement
from pytest_aisbench.domain.checkup import Check, warning
from pytest_aisbench.errors import Rejected

JOBS = "/v1/{project_id}/training-jobs"
_SPECS = "/v1/{project_id}/job/resource-specs"
_ENGINES = "/v1/{project_id}/job/ai-engines"
_TRAINING = {"job_type": "train"}


class _Listed(NamedTuple):
    """A list of V1, in which names have numbers."""

    path: str
    rows: str
    name_of: Callable[[Mapping[str, Any]], str]


# By the key that a request has the number under.
_LISTED = {
    "spec_id": _Listed(_SPECS, "specs", lambda row: str(row["spec_code"])),
    "engine_id": _Listed(_ENGINES, "engines", lambda row: f"{row['engine_name']} {row['engine_version']}"),
}


class OfferV1:
    """Of one session."""

    def __init__(self, session: Session) -> None:
        self._lists = vetting.Lists(session)

    def check(self, patience_s: float) -> None:
        self._lists.ask(_SPECS, _TRAINING, patience_s=patience_s)

    def vet(self, place: Placement) -> Iterator[Check]:
        resource = place.resource
        if pool := resource.get("pool_id"):
            yield warning("pool", f"not checked, since V1 has no list of pools: {pool}")
        else:
            wanted, nodes = str(resource["flavor_id"]), int(resource["node_count"])
            yield vetting.as_listed("flavor", lambda: vetting.flavor(wanted, nodes, self._most_nodes()))
        if name := place.engine_name:
            yield vetting.as_listed("engine", lambda: vetting.engine(name, self._numbers("engine_id")))
        yield vetting.as_listed("quota", self._quota)

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
            return vetting.quota(allowed - int(answer["job_count_limit"]), allowed)
