"""What a list request selects: filters, order and page, with the vendor's codes for what is none."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from pytest_aisbench.localcloud.refusal import Refusal
from pytest_aisbench.localcloud.rules import invalid, listed, text

if TYPE_CHECKING:
    from collections.abc import Callable

    from pytest_aisbench.localcloud.job import Job

_LIMIT = 50

_KEYS: dict[str, Callable[[Job], Any]] = {
    "name": lambda job: job.name,
    "phase": lambda job: job.shown_phase,
    "create_time": lambda job: job.created,
    "algorithm_name": lambda job: job.request.get("algorithm", {}).get("name", ""),
    "kind": lambda _: "job",
    "user_id": lambda job: job.user,
    "runtime_type": lambda _: "",
}
_SORTS: dict[str, Callable[[Job], Any]] = {
    "create_time": lambda job: job.order,  # finer than its milliseconds
    "name": lambda job: (job.name, job.order),
    "start_time": lambda job: (job.started, job.order),
    "duration": lambda job: (job.duration, job.order),
    "phase": lambda job: (job.shown_phase, job.order),
}


class Search:
    def __init__(self, body: dict[str, Any]) -> None:
        self.offset = _number(body, "offset", 0)
        self.limit = _number(body, "limit", _LIMIT)
        self.sort_by = text(body, "sort_by", "create_time")
        self.order = text(body, "order", "desc")
        self.group_by = text(body, "group_by", "")
        self.workspace_id = text(body, "workspace_id", "0")
        if self.offset < 0:
            raise invalid("offset must be a number from 0")
        if not 1 <= self.limit <= _LIMIT:
            raise invalid(f"limit must be a number from 1 to {_LIMIT}")
        if self.sort_by not in _SORTS or self.order not in {"asc", "desc"}:
            raise Refusal(400, "2790", f"Jobs cannot be sorted by {self.sort_by} {self.order}.")
        self._conditions = [_condition(entry) for entry in listed(body, "filters")]

    def select(self, jobs: list[Job]) -> tuple[int, list[Job]]:
        """How many jobs match, and those of the page. The offset counts jobs, not pages."""
        found = [job for job in jobs if all(condition(job) for condition in self._conditions)]
        found.sort(key=_SORTS[self.sort_by], reverse=self.order == "desc")
        return len(found), found[self.offset : self.offset + self.limit]


def _number(body: dict[str, Any], key: str, default: int) -> int:
    value = body.get(key)
    if value is None:
        return default
    if not isinstance(value, int) or isinstance(value, bool):
        raise invalid(f"{key} must be a number")
    return value


def _condition(entry: dict[str, Any]) -> Callable[[Job], bool]:
    key, operator, values = text(entry, "key", ""), text(entry, "operator", ""), entry.get("value")
    if key not in _KEYS:
        raise Refusal(400, "2807", f"Jobs cannot be filtered by {key}.")
    if operator not in {"like", "in", "not", "between"}:
        raise Refusal(400, "2808", f"{operator} is no operator of a filter.")
    wanted: list[Any] = values if isinstance(values, list) else [values]
    read = _KEYS[key]
    if operator == "between":
        if len(wanted) != 2 or not all(str(value).isdigit() for value in wanted):
            raise Refusal(400, "2809", f"The filter of {key} needs two times in milliseconds.")
        first, last = (int(value) for value in wanted)
        return lambda job: first <= int(read(job)) <= last
    if not wanted or not all(isinstance(value, str) for value in wanted):
        raise Refusal(400, "2809", f"The filter of {key} needs a list of texts.")
    if operator == "like":
        return lambda job: any(value in str(read(job)) for value in wanted)
    if operator == "in":
        return lambda job: str(read(job)) in wanted
    return lambda job: str(read(job)) not in wanted
