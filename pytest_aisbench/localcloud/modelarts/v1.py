"""ModelArts training jobs by the REST API V1: `V1` answers its requests, for the jobs of `v1_jobs`."""

from __future__ import annotations

import copy
import threading
from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING, Any

from pytest_aisbench.localcloud.iam import Account, Accounts, AuthenticationFailed, authenticate, gateway_error
from pytest_aisbench.localcloud.messages import Request, Response
from pytest_aisbench.localcloud.modelarts import rules
from pytest_aisbench.localcloud.modelarts.api import (
    Refusal,
    Routes,
    error_response,
    json_object,
    query_number,
    with_request_id,
)
from pytest_aisbench.localcloud.modelarts.jobs import FINAL, Job, Jobs, now_ms
from pytest_aisbench.localcloud.modelarts.rules import QUOTA, USAGE_METRICS, Catalog
from pytest_aisbench.localcloud.modelarts.v1_jobs import (
    FIRST_ID,
    Numbers,
    Series,
    V1Jobs,
    V1Rules,
    Version,
    engine_json,
    spec_json,
    status,
)

if TYPE_CHECKING:
    from pytest_aisbench.localcloud.engine.launch import Engine
    from pytest_aisbench.localcloud.obs.storage import Objects


_AS_ASKED = (  # fields that an answer repeats from the request
    "app_url", "boot_file_url", "data_url", "data_source", "dataset_id", "dataset_version_id", "train_url", "log_url",
    "user_image_url", "user_command", "spec_id", "pool_id", "volumes", "nas_type", "nas_share_addr", "nas_mount_path",
)  # fmt: skip
_PER_PAGE, _MOST_LINES = 1000, 500
_OWN_CODES = {
    "ModelArts.2788": "ModelArts.0104",
    "ModelArts.2764": "ModelArts.0104",
}  # V1's own codes; all others are those of V2
_SUCCESS = {"is_success": True}
_SORTS: dict[str, Callable[[Series], Any]] = {
    "job_name": lambda series: series.name,
    "job_desc": lambda series: series.newest.job.description,
    "status": lambda series: status(series.newest.job),
    "duration": lambda series: series.newest.job.duration,
    "version_count": lambda series: len(series.versions),
    "create_time": lambda series: series.newest.job.order,
}
_CONFIG_SORTS = ("config_name", "config_desc", "create_time")


class V1:
    def __init__(
        self,
        accounts: Accounts,
        objects: Objects,
        catalog: Catalog,
        engine: Engine,
        jobs: Jobs,
        *,
        status_strings: bool = False,
        first_id: int = FIRST_ID,
    ) -> None:
        self._accounts = accounts
        self._engine = engine
        self._jobs = jobs
        self._numbers = Numbers(catalog)
        rules = V1Rules(catalog, objects, self._numbers)
        self._series = V1Jobs(jobs, rules, first_id)
        self._answers = Answers(rules, status_strings=status_strings)
        self._configs = Configs()
        job = r"training-jobs/(?P<job>[^/]+)"
        version, config = rf"{job}/versions/(?P<version>[^/]+)", r"training-job-configs/(?P<config>[^/]+)"
        self._routes = Routes(
            "v1",
            [
                ("create", "POST", "training-jobs", self._create),
                ("search", "GET", "training-jobs", self._search),
                ("describe", "PUT", job, self._describe),
                ("delete", "DELETE", job, self._delete),
                ("create-version", "POST", f"{job}/versions", self._create_version),
                ("versions", "GET", f"{job}/versions", self._versions),
                ("show", "GET", version, self._show),
                ("stop", "POST", f"{version}/stop", self._stop),
                ("delete-version", "DELETE", version, self._delete_version),
                ("log-names", "GET", f"{version}/log/file-names", self._log_names),
                ("log", "GET", f"{version}/aom-log", self._log),
                ("flavors", "GET", "job/resource-specs", self._specs),
                ("engines", "GET", "job/ai-engines", self._engines),
                ("create-config", "POST", "training-job-configs", self._create_config),
                ("configs", "GET", "training-job-configs", self._list_configs),
                ("show-config", "GET", config, self._show_config),
                ("update-config", "PUT", config, self._update_config),
                ("delete-config", "DELETE", config, self._delete_config),
            ],
        )
        self.operations = self._routes.operations
        self.operation = self._routes.operation

    def answer(self, request: Request) -> Response:
        try:
            account = authenticate(request, self._accounts)
            return with_request_id(self._route(request, account))
        except AuthenticationFailed as failure:
            return error_response(failure.status, failure.code, failure.message, "Check the keys, and the clock.")
        except Refusal as refusal:
            return _error(refusal.status, _OWN_CODES.get(refusal.code, refusal.code), refusal.message)

    def refuse(self, request: Request, status: int, code: str = "", message: str = "") -> Response:
        return _error(status, *gateway_error(status, code, message))

    def crash(self, request: Request, error: Exception) -> Response:
        return _error(500, "ModelArts.0010", f"Internal error: {type(error).__name__}.")

    def _route(self, request: Request, account: Account) -> Response:
        route, names = self._routes.find(request, account)
        with self._jobs.lock:
            if "job" in names:
                names["job"] = self._series.get(account.project_id, names["job"])
            if "version" in names:
                names["version"] = self._series.version(names["job"], names["version"])
        return route.answer(request, account, **names)

    def _create(self, request: Request, account: Account) -> Response:
        return self._created(*self._series.create(account, json_object(request)))

    def _create_version(self, request: Request, account: Account, job: Series) -> Response:
        return self._created(job, self._series.create_version(account, job, json_object(request)))

    def _created(self, job: Series, version: Version) -> Response:
        with self._jobs.lock:
            answer = self._answers.created(job, version)
        self._jobs.admit()
        return Response.json(200, answer)

    def _search(self, request: Request, account: Account) -> Response:
        state, content = request.query.get("status", ""), request.query.get("search_content", "")
        with self._jobs.lock:
            matches = [
                series
                for series in self._series.of_project(account.project_id)
                if content in series.name and state in {"", str(status(series.newest.job))}
            ]
            matches = _sorted(request, matches, _SORTS, "job_name", "asc")
            jobs = [self._answers.row(series) for series in _page(request, matches, first=1)]
        counts = {"job_total_count": len(matches), "job_count_limit": QUOTA - len(matches), "quotas": QUOTA}
        return Response.json(200, _SUCCESS | counts | {"jobs": jobs})

    def _describe(self, request: Request, account: Account, job: Series) -> Response:
        with self._jobs.lock:
            self._series.describe(job, json_object(request).get("job_desc"))
        return Response.json(200, _SUCCESS)

    def _delete(self, request: Request, account: Account, job: Series) -> Response:
        for version in job.versions:
            self._jobs.delete(version.job)
        return Response.json(200, _SUCCESS)

    def _versions(self, request: Request, account: Account, job: Series) -> Response:
        with self._jobs.lock:
            versions = job.versions[::-1]
            top = {"job_id": job.id, "job_name": job.name, "job_desc": job.newest.job.description}
            page = [self._answers.version(version, {}) for version in _page(request, versions, first=0)]
        return Response.json(200, _SUCCESS | top | {"version_count": len(versions), "versions": page})

    def _show(self, request: Request, account: Account, job: Series, version: Version) -> Response:
        usage = self._engine.usage(version.job.id, version.job.tasks[0])
        with self._jobs.lock:
            top = {"job_id": job.id, "job_name": job.name, "job_desc": version.job.description}
            return Response.json(200, _SUCCESS | top | self._answers.version(version, usage))

    def _stop(self, request: Request, account: Account, job: Series, version: Version) -> Response:
        self._jobs.terminate(version.job)
        self._jobs.admit()
        return Response.json(200, _SUCCESS)

    def _delete_version(self, request: Request, account: Account, job: Series, version: Version) -> Response:
        self._jobs.delete(version.job)
        return Response.json(200, _SUCCESS)

    def _log_names(self, request: Request, account: Account, job: Series, version: Version) -> Response:
        tasks = zip(log_files(version.job), version.job.tasks, strict=True)
        names = [name for name, task in tasks if self._engine.log(version.job.id, task) is not None]
        return Response.json(200, _SUCCESS | {"log_file_list": names})

    def _log(self, request: Request, account: Account, job: Series, version: Version) -> Response:
        tasks = dict(zip(log_files(version.job), version.job.tasks, strict=True))
        base, order = request.query.get("base_line", "").strip(), request.query.get("order", "desc")
        count = query_number(request, "lines", 50)
        task = tasks.get(request.query.get("log_file", ""))
        if task is None:
            raise rules.invalid(f"log_file must be one of {', '.join(tasks)}")
        if count > _MOST_LINES or order not in {"asc", "desc"} or not (base.isdigit() or not base):
            raise rules.invalid(f"lines are 0 to {_MOST_LINES}, order is asc or desc, base_line is from another answer")
        log = self._engine.log(version.job.id, task)
        if log is None:
            raise Refusal(400, "2818", f"The log of {task} has not been generated yet.")
        return Response.json(200, log_page(version.job, log, base, count, order))

    def _specs(self, request: Request, account: Account) -> Response:
        specs = self._numbers.specs()
        return Response.json(200, _SUCCESS | {"spec_total_count": len(specs), "specs": specs})

    def _engines(self, request: Request, account: Account) -> Response:
        return Response.json(200, _SUCCESS | {"engines": self._numbers.engines()})

    def _create_config(self, request: Request, account: Account) -> Response:
        self._configs.create(account.project_id, json_object(request))
        return Response.json(200, _SUCCESS)

    def _list_configs(self, request: Request, account: Account) -> Response:
        content = request.query.get("search_content", "")
        matches = [each for each in self._configs.of_project(account.project_id) if content in each["config_name"]]
        sorts = {key: lambda each, key=key: each.get(key, "") for key in _CONFIG_SORTS}
        matches = _sorted(request, matches, sorts, "config_name", "desc")
        page = _page(request, matches, first=1)
        return Response.json(200, _SUCCESS | {"config_total_count": len(matches), "configs": page})

    def _show_config(self, request: Request, account: Account, config: str) -> Response:
        return Response.json(200, _SUCCESS | self._configs.show(account.project_id, config))

    def _update_config(self, request: Request, account: Account, config: str) -> Response:
        self._configs.update(account.project_id, config, json_object(request))
        return Response.json(200, _SUCCESS)

    def _delete_config(self, request: Request, account: Account, config: str) -> Response:
        self._configs.delete(account.project_id, config)
        return Response.json(200, _SUCCESS)


def _error(status: int, code: str, message: str) -> Response:
    """Word an error as V1 does, or as the gateway if the code is the gateway's."""
    if not code.startswith("ModelArts."):
        return error_response(status, code, message, "Try again later.")
    content = {"is_success": False, "error_message": message, "error_code": code}
    return with_request_id(Response.json(status, content))


def _sorted(request: Request, entries: list[Any], sorts: dict[str, Any], key: str, order: str) -> list[Any]:
    key, order = request.query.get("sortBy", key), request.query.get("order", order)
    if key not in sorts or order not in {"asc", "desc"}:
        raise rules.invalid(f"nothing is sorted by {key} {order}; sortBy is {', '.join(sorts)}")
    return sorted(entries, key=sorts[key], reverse=order == "desc")


def _page(request: Request, entries: list[Any], *, first: int) -> list[Any]:
    """The requested page; pages count from 1, and page 0 has all entries."""
    size, page = query_number(request, "per_page", 10), query_number(request, "page", first)
    if not 1 <= size <= _PER_PAGE or page < first:
        raise rules.invalid(f"per_page is 1 to {_PER_PAGE}, page is from {first}")
    return entries[(page - 1) * size : page * size] if page else entries


class Answers:
    def __init__(self, rules: V1Rules, *, status_strings: bool) -> None:
        self._rules = rules
        self._status_strings = status_strings

    def created(self, series: Series, version: Version) -> dict[str, Any]:
        """The answer to a create; the vendor's example has texts here where all other answers have numbers."""
        job = version.job
        return {
            "is_success": True,
            "job_id": str(series.id),
            "job_name": series.name,
            "status": str(status(job)),
            "create_time": str(job.created),
            "version_id": str(version.id),
            "version_name": version.name,
            "resource_id": job.launch.resource_id,
        }

    def row(self, series: Series) -> dict[str, Any]:
        """One row of a list of jobs: it shows the newest version."""
        newest = series.newest
        row = {
            "job_id": series.id,
            "job_name": series.name,
            "job_desc": newest.job.description,
            "version_id": newest.id,
            "version_count": len(series.versions),
            "status": self._status(newest.job),
            "create_time": newest.job.created,
            "duration": newest.job.duration,
        }
        newest.job.count_answer()
        return row

    def version(self, version: Version, usage: Mapping[str, Sequence[float]]) -> dict[str, Any]:
        job, config = version.job, version.job.request["config"]
        answer = {
            "version_id": version.id,
            "version_name": version.name,
            "pre_version_id": version.previous,
            "status": self._status(job),
            "create_time": job.created,
            "start_time": job.started,
            "duration": job.duration,
            "resource_id": job.launch.resource_id,
            "worker_server_num": job.launch.nodes,
            "engine_id": int(config.get("engine_id") or 1),
            "parameter": config.get("parameter") or [],
            "system_metric_list": {
                name: [f"{max(0.0, value):.2f}" for value in usage.get(name, ())] for name in USAGE_METRICS
            },
        }
        answer |= {key: config[key] for key in _AS_ASKED if config.get(key) is not None}
        answer |= engine_json(self._rules.engine(config)) | spec_json(self._rules.spec(config))
        job.count_answer()
        return answer

    def _status(self, job: Job) -> int | str:
        return str(status(job)) if self._status_strings else status(job)


def log_files(job: Job) -> list[str]:
    return [f"job-{job.name}.{node}" for node in range(job.launch.nodes)]


def log_page(job: Job, log: tuple[bytes, int], base: str, count: int, order: str) -> dict[str, Any]:
    """Lines after (`desc`) or before (`asc`) the position `base`, or the newest. A position is the offset of a line."""
    content, size = log
    position = size - len(content)
    lines: list[tuple[int, bytes]] = []
    for line in content.splitlines(keepends=True):
        if line.endswith(b"\n") or job.phase in FINAL:  # an incomplete line comes with the next page
            lines.append((position, line))
        position += len(line)
    if not base:
        lines = lines[-count:] if count else []
    elif order == "desc":
        lines = [line for line in lines if line[0] > int(base)][:count]
    else:
        lines = [line for line in lines if line[0] < int(base)][-count:] if count else []
    first, last = (str(lines[0][0]), str(lines[-1][0])) if lines else (base, base)
    text = b"".join(line for _, line in lines).decode(errors="replace")
    return {"is_success": True, "content": text, "lines": len(lines), "start_line": first, "end_line": last}


class Configs:
    """Keeps configurations unchecked: the rules check the job that is made of one."""

    def __init__(self) -> None:
        self._configs: dict[tuple[str, str], dict[str, Any]] = {}
        self._lock = threading.Lock()

    def create(self, project_id: str, body: dict[str, Any]) -> None:
        name = rules.job_name({"name": body.get("config_name")})
        rules.description(body.get("config_desc"))
        with self._lock:
            if (project_id, name) in self._configs:
                raise Refusal(400, "0103", f"Config name:{name} is existed.")
            self._configs[project_id, name] = copy.deepcopy(body) | {"create_time": now_ms()}

    def update(self, project_id: str, name: str, body: dict[str, Any]) -> None:
        with self._lock:
            self._get(project_id, name).update(copy.deepcopy(body) | {"config_name": name})

    def show(self, project_id: str, name: str) -> dict[str, Any]:
        with self._lock:
            return copy.deepcopy(self._get(project_id, name))

    def delete(self, project_id: str, name: str) -> None:
        with self._lock:
            self._get(project_id, name)
            del self._configs[project_id, name]

    def of_project(self, project_id: str) -> list[dict[str, Any]]:
        with self._lock:
            return [copy.deepcopy(config) for (project, _), config in self._configs.items() if project == project_id]

    def _get(self, project_id: str, name: str) -> dict[str, Any]:
        if (project_id, name) not in self._configs:
            raise rules.invalid(f"there is no configuration {name}")
        return self._configs[project_id, name]
