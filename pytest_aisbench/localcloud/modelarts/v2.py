"""ModelArts training jobs by the REST API V2. `ModelArts` is the whole endpoint: it hands requests of V1 to `v1`."""

from __future__ import annotations

import time
from typing import TYPE_CHECKING, Any

from pytest_aisbench.localcloud.engine.launch import Engine, node_address
from pytest_aisbench.localcloud.engine.process_engine import ProcessEngine
from pytest_aisbench.localcloud.iam import Account, Accounts, AuthenticationFailed, authenticate, gateway_error
from pytest_aisbench.localcloud.messages import Request, Response, json_text
from pytest_aisbench.localcloud.modelarts import rules
from pytest_aisbench.localcloud.modelarts.api import (
    Refusal,
    Routes,
    error_response,
    json_object,
    query_number,
    with_request_id,
)
from pytest_aisbench.localcloud.modelarts.jobs import CAPACITY, Job, Jobs
from pytest_aisbench.localcloud.modelarts.rules import (
    ASCEND,
    POOL,
    POOL_FLAVOR,
    QUOTA,
    USAGE_METRICS,
    Catalog,
    invalid,
    listed,
    text,
)
from pytest_aisbench.localcloud.modelarts.v1 import V1
from pytest_aisbench.localcloud.modelarts.v1_jobs import FIRST_ID
from pytest_aisbench.localcloud.obs.signature import presign

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

    from pytest_aisbench.localcloud.faulty import Faults
    from pytest_aisbench.localcloud.obs.storage import Objects


_END_REASONS = {"Completed": "succeeded", "Terminated": "terminated", "Failed": "training_failed"}
_LINK_LIFE = 3600.0  # seconds
_LIMIT = 50  # jobs of a page
_STATUS = '{"status": {'


class ModelArts:
    def __init__(
        self,
        accounts: Accounts,
        objects: Objects,
        work: Path,
        obs_endpoint: str,
        *,
        catalog: Catalog | None = None,
        engine: Engine | None = None,
        capacity: int = CAPACITY,
        faults: Faults | None = None,
        v1_status_strings: bool = False,
        v1_first_id: int = FIRST_ID,
    ) -> None:
        self._accounts = accounts
        self._objects = objects
        self._obs_endpoint = obs_endpoint.rstrip("/")
        self.catalog = self._catalog = catalog or Catalog()
        self.engine = self._engine = engine or ProcessEngine(objects, work, self._obs_endpoint, accounts=accounts)
        self.jobs = self._jobs = Jobs(self._engine, rules.Rules(self._catalog, objects), capacity, faults)
        job, task = r"training-jobs/(?P<job>[^/]+)", r"tasks/(?P<task>[^/]+)"
        self._routes = Routes(
            "v2",
            [
                ("create", "POST", "training-jobs", self._create),
                ("show", "GET", job, self._show),
                ("describe", "PUT", job, self._describe),
                ("delete", "DELETE", job, self._delete),
                ("stop", "POST", f"{job}/actions", self._act),
                ("search", "POST", "training-job-searches", self._search),
                ("tasks", "GET", f"{job}/tasks", self._tasks),
                ("log", "GET", f"{job}/{task}/logs/preview", self._preview),
                ("log-link", "GET", f"{job}/{task}/logs/url", self._log_link),
                ("metrics", "GET", f"{job}/metrics/(?P<task>[^/]+)", self._metrics),
                ("events", "GET", f"{job}/events", self._events),
                ("engines", "GET", "training-job-engines", self._engines),
                ("flavors", "GET", "training-job-flavors", self._flavors),
                ("pool-flavors", "GET", "training-pool-flavors", self._pool_flavors),
                ("quotas", "GET", "training-quotas", self._quotas),
                ("name", "GET", "training-job-names", self._name),
            ],
        )
        self._v1 = V1(
            accounts,
            objects,
            self._catalog,
            self._engine,
            self._jobs,
            status_strings=v1_status_strings,
            first_id=v1_first_id,
        )
        self.operations = sorted({*self._routes.operations, *self._v1.operations})

    def answer(self, request: Request) -> Response:
        if _is_v1(request):
            return self._v1.answer(request)
        try:
            return with_request_id(self._route(request))
        except AuthenticationFailed as failure:
            return error_response(failure.status, failure.code, failure.message, "Check the keys, and the clock.")
        except Refusal as refusal:
            return error_response(refusal.status, refusal.code, refusal.message, refusal.solution)

    def quick(self, request: Request) -> bool:
        """All that is polled, and to create a job: engines start it in a thread of their own."""
        return request.method != "DELETE" and not _is_v1(request)

    def crash(self, request: Request, error: Exception) -> Response:
        if _is_v1(request):
            return self._v1.crash(request, error)
        text = f"Internal error: {type(error).__name__}."
        return error_response(500, "ModelArts.2950", text, "Look at the log of the local cloud.")

    def operation(self, request: Request) -> str:
        return (self._v1 if _is_v1(request) else self._routes).operation(request)

    def refuse(self, request: Request, status: int, code: str = "", message: str = "") -> Response:
        if _is_v1(request):
            return self._v1.refuse(request, status, code, message)
        return error_response(status, *gateway_error(status, code, message), "Try again later.")

    def close(self) -> None:
        """End every process of every job, and return when they are gone."""
        self._jobs.close()

    def _route(self, request: Request) -> Response:
        account = authenticate(request, self._accounts)
        route, names = self._routes.find(request, account)
        if "job" in names:
            names["job"] = self._jobs.get(account.project_id, names["job"])
        if "task" in names and names["task"] not in names["job"].tasks:
            raise rules.invalid(f"the job has no task {names['task']}")
        return route.answer(request, account, **names)

    def _create(self, request: Request, account: Account) -> Response:
        job = self._jobs.create(account, json_object(request))
        answer = self._job_text(job)
        self._jobs.admit()
        return Response.json_text(201, answer)

    def _show(self, request: Request, account: Account, job: Job) -> Response:
        return Response.json_text(200, self._job_text(job))

    def _describe(self, request: Request, account: Account, job: Job) -> Response:
        self._jobs.describe(job, json_object(request).get("description"))
        return Response.json(200, None)

    def _delete(self, request: Request, account: Account, job: Job) -> Response:
        self._jobs.delete(job)
        return Response.json(202, "")

    def _act(self, request: Request, account: Account, job: Job) -> Response:
        action = json_object(request).get("action_type")
        if action != "terminate":
            raise Refusal(400, "2812", f"Unsupported action_type {action}.")
        with self._jobs.lock:  # so that the answer says Terminating however quickly the job ends
            self._jobs.terminate(job)
            answer = self._job_text(job)
        self._jobs.admit()
        return Response.json_text(202, answer)

    def _search(self, request: Request, account: Account) -> Response:
        search = Search(json_object(request))
        with self._jobs.lock:
            total, page_jobs = search.select(self._jobs.of_project(account.project_id))
            items = [self._job_text(job) for job in page_jobs]
        page = {"total": total, "count": len(items), "limit": search.limit, "offset": search.offset}
        order = {"sort_by": search.sort_by, "order": search.order, "group_by": search.group_by}
        head = json_text(page | order | {"workspace_id": search.workspace_id})
        return Response.json_text(200, f'{head[:-1]}, "items": [{", ".join(items)}]}}')

    def _tasks(self, request: Request, account: Account, job: Job) -> Response:
        addresses = [node_address(node) for node in range(job.launch.nodes)]
        tasks = zip(job.tasks, addresses, strict=True)
        return Response.json(200, [{"task": task, "ip": ip, "host_ip": ip, "schedule_count": 1} for task, ip in tasks])

    def _preview(self, request: Request, account: Account, job: Job, task: str) -> Response:
        log = self._engine.log(job.id, task)
        if log is None:
            return Response(204)
        content, size = log
        text = content.decode(errors="replace")
        return Response.json(200, {"content": text, "current_size": len(content), "full_size": size})

    def _log_link(self, request: Request, account: Account, job: Job, task: str) -> Response:
        place = job.launch.logs
        if place is None:
            raise Refusal(400, "2822", "The job has no log_export_path.")
        key = place.prefix + job.launch.log_name(task)
        if self._objects.head(place.bucket, key) is None:
            raise Refusal(400, "2818", f"The log of {task} has not been generated yet.")
        link = presign(account, place.bucket, key, _LINK_LIFE)
        return Response.json(200, {"obs_url": self._obs_endpoint + link})

    def _metrics(self, request: Request, account: Account, job: Job, task: str) -> Response:
        """One value for each second, where the vendor has one for each minute; -1 means no sample, as it does there."""
        usage = self._engine.usage(job.id, task)
        if not usage:
            return Response(204)
        none = [-1.0] * max(map(len, usage.values()))
        rows = [
            {"metric": name, "value": [round(value, 2) for value in usage.get(name, none)]} for name in USAGE_METRICS
        ]
        return Response.json(200, {"metrics": rows})

    def _events(self, request: Request, account: Account, job: Job) -> Response:
        offset, limit = (query_number(request, name, value) for name, value in (("offset", 0), ("limit", 50)))
        order, level = request.query.get("order", "desc"), request.query.get("level", "")
        with self._jobs.lock:
            events = [event for event in job.events if level in {"", event[1]}]
        if order == "desc":
            events.reverse()
        page = {"total": len(events), "limit": limit, "offset": offset, "order": order}
        return Response.json(200, page | {"events": [event_json(*each) for each in events[offset : offset + limit]]})

    def _engines(self, request: Request, account: Account) -> Response:
        items = [engine.as_json() for engine in self._catalog.engines()]
        return Response.json(200, {"total": len(items), "items": items})

    def _flavors(self, request: Request, account: Account) -> Response:
        kind = request.query.get("flavor_type", "")
        if kind not in {"", "CPU", "GPU", "Ascend"}:
            raise rules.invalid("flavor_type must be CPU, GPU or Ascend")
        flavors = [flavor.as_json() for flavor in self._catalog.flavors(kind)]
        return Response.json(200, {"total_count": len(flavors), "flavors": flavors})

    def _pool_flavors(self, request: Request, account: Account) -> Response:
        """The CPU cores and the memory of a node of the flavor."""
        pool = request.query.get("pool_id", "")
        if pool not in {"", POOL}:
            raise Refusal(404, "2890", f"Pool {pool} not found.")
        flavor = self._catalog.flavor(request.query.get("flavor_id") or POOL_FLAVOR)
        if flavor is None or flavor.pool != pool:
            raise Refusal(400, "2781", f"Flavor {request.query.get('flavor_id')} not found.")
        info = flavor.details()["flavor_info"]
        return Response.json(200, {"cpu_core_num": info["cpu"]["core_num"], "mem_size": info["memory"]["size"]})

    def _quotas(self, request: Request, account: Account) -> Response:
        if request.query.get("resource", "job-num") != "job-num":
            raise rules.invalid("resource must be job-num")
        with self._jobs.lock:
            used = len(self._jobs.of_project(account.project_id))
        return Response.json(200, {"quotas": [{"resource": "job-num", "quota": QUOTA, "used": used}]})

    def _name(self, request: Request, account: Account) -> Response:
        name = rules.job_name({"name": request.query.get("job_name")})
        return Response.json(200, {"is_duplicate": self._jobs.has_name(account.project_id, name)})

    def _job_text(self, job: Job) -> str:
        with self._jobs.lock:
            answer = job_text(job, self._catalog)
            job.count_answer()
            return answer


def _is_v1(request: Request) -> bool:
    return request.path.startswith("/v1/")


# Jobs as V2 shows them.


def job_text(job: Job, catalog: Catalog) -> str:
    """The job as JSON. All but its duration is worded once for each of its states, since thousands of jobs are asked
    about again and again."""
    state = (job.reported_phase, len(job.events), job.description)  # every change is an event, except of these two
    worded = job.worded
    if worded is None or worded[0] != state:
        worded = job.worded = (state, *_around_duration(job, catalog))
    return f"{worded[1]}{job.duration}{worded[2]}"


def _around_duration(job: Job, catalog: Catalog) -> tuple[str, str]:
    """What stands before the duration, and what stands behind it."""
    request = job.request
    metadata = request["metadata"]
    before = {
        "kind": "job",
        "metadata": {
            "id": job.id,
            "name": job.name,
            "workspace_id": metadata.get("workspace_id") or "0",
            "description": job.description,
            "create_time": job.created,
            "user_name": job.user,
            "annotations": metadata.get("annotations") or {},
        },
        "status": {"phase": job.reported_phase, "secondary_phase": job.secondary_phase},
    }
    behind = {
        "status": {
            "start_time": job.started,
            "node_count_metrics": [[job.started, job.launch.nodes]] if job.started else None,
            "tasks": job.tasks,
            "task_statuses": job.task_statuses,
            "running_records": _running_records(job),
        },
        "algorithm": _algorithm(job),
        "spec": request["spec"] | {"resource": _resource(job, catalog)},
        "endpoints": request.get("endpoints") or {},
    }
    return f'{json_text(before)[:-2]}, "duration": ', f", {json_text(behind).removeprefix(_STATUS)}"


def event_json(time_ms: int, level: str, message: str, source: str) -> dict[str, Any]:
    stamp = time.strftime("%Y-%m-%dT%H:%M:%S+08:00", time.gmtime(time_ms / 1000 + 8 * 3600))
    return {"time": stamp, "level": level, "message": message, "source": source}


def _running_records(job: Job) -> list[dict[str, Any]]:
    """At most one record: the local cloud restarts nothing. Its times are in seconds, unlike all others."""
    if not job.started:
        return []
    record: dict[str, Any] = {"start_at": job.started // 1000, "start_type": "init_or_rescheduled"}
    if job.end:
        record |= {
            "end_at": job.ended // 1000,
            "end_reason": job.end.message or _END_REASONS.get(job.phase, "abnormal"),
            "end_related_task": job.end.task,
        }
    return [record]


def _algorithm(job: Job) -> dict[str, Any]:
    """The algorithm of the request, completed by what the platform chose."""
    launch = job.launch
    algorithm = dict(job.request["algorithm"])
    algorithm["engine"] = (
        algorithm.get("engine")
        if launch.image
        else {
            "engine_id": launch.engine_version,
            "engine_name": ASCEND,
            "engine_version": launch.engine_version,
            "v1_compatible": False,
        }
    )
    for kind, channels in (("inputs", launch.inputs), ("outputs", launch.outputs)):
        algorithm[kind] = [
            entry | {"local_dir": channel.local_dir, "access_method": "env" if channel.by_environment else "parameter"}
            for entry, channel in zip(algorithm.get(kind) or [], channels, strict=True)
        ]
    return algorithm


def _resource(job: Job, catalog: Catalog) -> dict[str, Any]:
    resource = {"policy": "regular", "node_count": job.launch.nodes, **job.request["spec"]["resource"]}
    if flavor := catalog.flavor(resource.get("flavor_id") or ""):
        resource |= {"flavor_name": flavor.name, "flavor_detail": flavor.details()}
    return resource


# The filters, the order and the page of a list request.

_KEYS: dict[str, Callable[[Job], Any]] = {
    "name": lambda job: job.name,
    "phase": lambda job: job.reported_phase,
    "create_time": lambda job: job.created,
    "algorithm_name": lambda job: job.request.get("algorithm", {}).get("name", ""),
    "kind": lambda _: "job",
    "user_id": lambda job: job.user,
    "runtime_type": lambda _: "",
}
_SORTS: dict[str, Callable[[Job], Any]] = {
    "create_time": lambda job: job.order,
    "name": lambda job: (job.name, job.order),
    "start_time": lambda job: (job.started, job.order),
    "duration": lambda job: (job.duration, job.order),
    "phase": lambda job: (job.reported_phase, job.order),
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
        """The number of jobs that match, and those of the page. The jobs are given in the order of creation. The
        offset counts jobs, not pages."""
        matches = jobs
        for condition in self._conditions:
            matches = [job for job in matches if condition(job)]
        if self.sort_by != "create_time":
            matches.sort(key=_SORTS[self.sort_by], reverse=self.order == "desc")
        elif self.order == "desc":
            matches.reverse()
        return len(matches), matches[self.offset : self.offset + self.limit]


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
    choices: list[Any] = values if isinstance(values, list) else [values]
    read = _KEYS[key]
    if operator == "between":
        if len(choices) != 2 or not all(str(value).isdigit() for value in choices):
            raise Refusal(400, "2809", f"The filter of {key} needs two times in milliseconds.")
        first, last = (int(value) for value in choices)
        return lambda job: first <= int(read(job)) <= last
    if not choices or not all(isinstance(value, str) for value in choices):
        raise Refusal(400, "2809", f"The filter of {key} needs a list of texts.")
    if operator == "like":
        return lambda job: any(value in str(read(job)) for value in choices)
    if operator == "in":
        return lambda job: str(read(job)) in choices
    return lambda job: str(read(job)) not in choices
