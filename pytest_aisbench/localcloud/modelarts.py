"""ModelArts training jobs, REST API V2: from requests to answers. What is asked of V1, V1 answers."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from pytest_aisbench.localcloud import rules
from pytest_aisbench.localcloud.answers import event_json, job_json
from pytest_aisbench.localcloud.catalog import POOL, POOL_FLAVOR, QUOTA, Catalog
from pytest_aisbench.localcloud.engine import ProcessEngine
from pytest_aisbench.localcloud.jobs import CAPACITY, Jobs
from pytest_aisbench.localcloud.message import Response
from pytest_aisbench.localcloud.obs_signature import presign
from pytest_aisbench.localcloud.refusal import UNUSUAL, USUAL, Refusal, identified, refused
from pytest_aisbench.localcloud.rendezvous import node_address
from pytest_aisbench.localcloud.routes import Routes, body, query_number
from pytest_aisbench.localcloud.search import Search
from pytest_aisbench.localcloud.signature import AuthenticationFailed, authenticate
from pytest_aisbench.localcloud.v1 import V1

if TYPE_CHECKING:
    from pathlib import Path

    from pytest_aisbench.localcloud.accounts import Account, Accounts
    from pytest_aisbench.localcloud.faults import Faults
    from pytest_aisbench.localcloud.job import Job
    from pytest_aisbench.localcloud.launch import Engine
    from pytest_aisbench.localcloud.message import Request
    from pytest_aisbench.localcloud.objects import Objects

_LINK_LIFE = 3600.0
_METRICS = ("cpuUsage", "memUsage", "npuUtil", "npuMemUsage", "gpuUtil", "gpuMemUsage")


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
    ) -> None:
        self._accounts = accounts
        self._objects = objects
        self._obs_endpoint = obs_endpoint.rstrip("/")
        self._catalog = catalog or Catalog()
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
        self._v1 = V1(accounts, objects, self._catalog, self._engine, self._jobs, status_strings=v1_status_strings)
        self.operations = sorted({*self._routes.operations, *self._v1.operations})

    def answer(self, request: Request) -> Response:
        if _is_v1(request):
            return self._v1.answer(request)
        try:
            return identified(self._route(request))
        except AuthenticationFailed as failure:
            return refused(failure.status, failure.code, failure.message, "Check the keys, and the clock.")
        except Refusal as refusal:
            return refused(refusal.status, refusal.code, refusal.message, refusal.solution)

    def crash(self, request: Request, error: Exception) -> Response:
        if _is_v1(request):
            return self._v1.crash(request, error)
        text = f"Internal error: {type(error).__name__}."
        return refused(500, "ModelArts.2950", text, "Look at the log of the local cloud.")

    def operation(self, request: Request) -> str:
        return (self._v1 if _is_v1(request) else self._routes).operation(request)

    def refuse(self, request: Request, status: int, code: str = "", message: str = "") -> Response:
        if _is_v1(request):
            return self._v1.refuse(request, status, code, message)
        usual, text = USUAL.get(status, UNUSUAL)
        return refused(status, code or usual, message or text, "Try again later.")

    def books(self) -> list[dict[str, Any]]:
        """Every job that was ever accepted, in the order of creation, as it truly is: also what was deleted or lost."""
        return self._jobs.books()

    def close(self) -> None:
        """End every process of every job; returns when they are gone."""
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
        job = self._jobs.create(account, body(request))
        answer = self._job_json(job)
        self._jobs.admit()
        return Response.json(201, answer)

    def _show(self, request: Request, account: Account, job: Job) -> Response:
        return Response.json(200, self._job_json(job))

    def _describe(self, request: Request, account: Account, job: Job) -> Response:
        self._jobs.describe(job, body(request).get("description"))
        return Response.json(200, None)

    def _delete(self, request: Request, account: Account, job: Job) -> Response:
        self._jobs.delete(job)
        return Response.json(202, "")

    def _act(self, request: Request, account: Account, job: Job) -> Response:
        action = body(request).get("action_type")
        if action != "terminate":
            raise Refusal(400, "2812", f"Unsupported action_type {action}.")
        with self._jobs.lock:  # so that the answer says Terminating, however quickly it ends
            self._jobs.terminate(job)
            answer = self._job_json(job)
        self._jobs.admit()
        return Response.json(202, answer)

    def _search(self, request: Request, account: Account) -> Response:
        search = Search(body(request))
        with self._jobs.lock:
            total, found = search.select(self._jobs.of(account.project_id))
            items = [self._job_json(job) for job in found]
        page = {"total": total, "count": len(items), "limit": search.limit, "offset": search.offset}
        order = {"sort_by": search.sort_by, "order": search.order, "group_by": search.group_by}
        return Response.json(200, page | order | {"workspace_id": search.workspace_id, "items": items})

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
        """The vendor has one value for each minute, we for each second; -1 is the vendor's word for no sample."""
        usage = self._engine.usage(job.id, task)
        if not usage:
            return Response(204)
        none = [-1.0] * max(map(len, usage.values()))
        rows = [{"metric": name, "value": [round(value, 2) for value in usage.get(name, none)]} for name in _METRICS]
        return Response.json(200, {"metrics": rows})

    def _events(self, request: Request, account: Account, job: Job) -> Response:
        offset, limit = (query_number(request, name, value) for name, value in (("offset", 0), ("limit", 50)))
        order, level = request.query.get("order", "desc"), request.query.get("level", "")
        with self._jobs.lock:
            events = [event for event in job.events if level in {"", event[1]}]
        if order == "desc":
            events.reverse()
        page = {"total": len(events), "limit": limit, "offset": offset, "order": order}
        shown = [event_json(*event) for event in events[offset : offset + limit]]
        return Response.json(200, page | {"events": shown})

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
        """The most that a job could have of a flavor, there."""
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
            used = len(self._jobs.of(account.project_id))
        return Response.json(200, {"quotas": [{"resource": "job-num", "quota": QUOTA, "used": used}]})

    def _name(self, request: Request, account: Account) -> Response:
        name = rules.job_name({"name": request.query.get("job_name")})
        return Response.json(200, {"is_duplicate": self._jobs.named(account.project_id, name)})

    def _job_json(self, job: Job) -> dict[str, Any]:
        with self._jobs.lock:
            answer = job_json(job, self._catalog)
            job.seen()
            return answer


def _is_v1(request: Request) -> bool:
    return request.path.startswith("/v1/")
