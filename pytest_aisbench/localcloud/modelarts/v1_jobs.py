"""The jobs of V1: a `Series` has a name and versions, and each version is one `Job` in the queue of V2.

`V1Rules` turns a request into a `Launch`.
"""

from __future__ import annotations

import itertools
import secrets
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from pytest_aisbench.localcloud.engine.launch import Channel, Launch, Volume
from pytest_aisbench.localcloud.faults import Fault
from pytest_aisbench.localcloud.modelarts import rules
from pytest_aisbench.localcloud.modelarts.api import Refusal
from pytest_aisbench.localcloud.modelarts.jobs import job_id
from pytest_aisbench.localcloud.modelarts.rules import (
    ASCEND,
    POOL,
    POOL_FLAVOR,
    Catalog,
    Engine,
    Flavor,
    Rules,
    environment,
    invalid,
    listed,
    node_count,
    parameters,
    section,
    text,
)

if TYPE_CHECKING:
    from pytest_aisbench.localcloud.iam import Account
    from pytest_aisbench.localcloud.modelarts.jobs import Job, Jobs
    from pytest_aisbench.localcloud.obs.storage import Objects


# The names of the states; V1 gives a state as its place in this list.
NAMES = (
    "UNKNOWN", "INIT", "IMAGE_CREATING", "IMAGE_FAILED", "SUBMIT_TRYING", "SUBMIT_FAILED", "DELETE_FAILED", "WAITING",
    "RUNNING", "KILLING", "COMPLETED", "FAILED", "KILLED", "CANCELED", "LOST", "SCALING", "SUBMIT_MODEL_FAILED",
    "DEPLOY_SERVICE_FAILED", "CHECK_INIT", "CHECK_RUNNING", "CHECK_RUNNING_COMPLETED", "CHECK_FAILED", "MOUNT_FAILED",
)  # fmt: skip
REVIEW = ("CHECK_INIT", "CHECK_RUNNING", "CHECK_RUNNING_COMPLETED")
"""The first job with a custom image shows these states first."""
_NAMED = {
    "Creating": "INIT",
    "Pending": "WAITING",
    "Running": "RUNNING",
    "Terminating": "KILLING",
    "Completed": "COMPLETED",
    "Failed": "FAILED",
}
_OCCUPYING = {"Creating", "Pending", "Running"}
_ASCEND_TYPE = 13  # the vendor's engine_type
_MOST_VOLUMES = 8
FIRST_ID = 1001
_TAKEN = ("/cache", "/home/ma-user/modelarts")  # a volume cannot be mounted here


class V1Jobs:
    """Call `get`, `version`, `of_project` and `describe` under the lock of `Jobs`; the others take it."""

    def __init__(self, jobs: Jobs, rules: V1Rules, first_id: int = FIRST_ID) -> None:
        """Number jobs from `first_id` on, and versions apart from them."""
        self._jobs = jobs
        self._rules = rules
        self._series: dict[int, Series] = {}
        self._series_ids = itertools.count(first_id)
        self._version_ids = itertools.count(first_id + 4000)
        self._reviewed_images: set[str] = set()

    def create(self, account: Account, body: dict[str, Any]) -> tuple[Series, Version]:
        name = rules.job_name({"name": body.get("job_name")})
        launch = self._launch(name, body)
        with self._jobs.lock:
            if self._jobs.has_name(account.project_id, name, "V1"):
                raise Refusal(400, "0103", f"Job name:{name} is existed.")
            series = Series(next(self._series_ids), name, account.project_id)
            version = self._accept(account, series, launch, body, previous=0)
            self._series[series.id] = series
            return series, version

    def create_version(self, account: Account, series: Series, body: dict[str, Any]) -> Version:
        previous_id = rules.section(body, "config").get("pre_version_id", body.get("pre_version_id"))
        if not previous_id:
            raise rules.invalid("pre_version_id is missing")
        launch = self._launch(series.name, body)
        with self._jobs.lock:
            previous = self.version(series, str(previous_id))
            return self._accept(account, series, launch, body, previous.id)

    def get(self, project_id: str, job_id: str) -> Series:
        series = self._series.get(int(job_id)) if job_id.isdigit() else None
        if series is None or series.project_id != project_id or not series.versions:
            raise Refusal(400, "2775", f"Training job {job_id} not found.")
        return series

    def version(self, series: Series, version_id: str) -> Version:
        for version in series.versions:
            if str(version.id) == version_id:
                return version
        raise Refusal(400, "2775", f"Training job {series.id}/{version_id} not found.")

    def of_project(self, project_id: str) -> list[Series]:
        return [series for series in self._series.values() if series.project_id == project_id and series.versions]

    def describe(self, series: Series, description: object) -> None:
        for version in series.versions:
            self._jobs.describe(version.job, description)

    def _launch(self, name: str, body: dict[str, Any]) -> Launch:
        rules.description(body.get("job_desc"))
        return self._rules.version(job_id(), name, rules.section(body, "config"))

    def _accept(self, account: Account, series: Series, launch: Launch, body: dict[str, Any], previous: int) -> Version:
        self._check_output(launch)
        number = next(self._version_ids)
        description = rules.description(body.get("job_desc"))
        alias = f"{series.id}/{number}"
        job = self._jobs.accept(account, launch, body, series.name, description, alias=alias)
        if launch.image and launch.image not in self._reviewed_images and job.planned_fault is None:
            job.set_fault(Fault(phases=REVIEW))
        self._reviewed_images.add(launch.image)
        version = Version(number, f"V{next(series.numbers):04d}", previous, job)
        series.add(version)
        return version

    def _check_output(self, launch: Launch) -> None:
        """Refuse a second job that writes to the same place; a job that is being stopped does not count."""
        place = launch.outputs[0].place
        for series in self._series.values():
            for version in series.versions:
                job = version.job
                if job.phase in _OCCUPYING and job.launch.outputs[0].place == place:
                    raise Refusal(400, "0105", f"Operation failed. Other running job contain train_url: {place}")


@dataclass(eq=False)
class Series:
    """A job of V1: a name and its versions."""

    id: int
    name: str
    project_id: str
    numbers: itertools.count[int] = field(default_factory=lambda: itertools.count(1))
    _versions: list[Version] = field(default_factory=list)

    def add(self, version: Version) -> None:
        self._versions.append(version)

    @property
    def versions(self) -> list[Version]:
        """The versions that were neither deleted nor lost, the oldest first."""
        return [version for version in self._versions if not version.job.gone]

    @property
    def newest(self) -> Version:
        return self.versions[-1]


@dataclass(frozen=True, eq=False)
class Version:
    id: int
    name: str
    previous: int  # 0 for the first one
    job: Job


def status(job: Job) -> int:
    """The number of the state. A fault may show any number, also one that V1 does not have yet, or any name."""
    phase = job.reported_phase
    if phase.isdigit():
        return int(phase)
    if phase == "Terminated":
        name = "KILLED" if job.started else "CANCELED"
    elif phase == "Abnormal":
        name = "LOST" if job.started else "SUBMIT_FAILED"
    else:
        name = _NAMED.get(phase, phase)
    return NAMES.index(name) if name in NAMES else 0


class V1Rules(Rules):
    def __init__(self, catalog: Catalog, objects: Objects, numbers: Numbers) -> None:
        super().__init__(catalog, objects)
        self._numbers = numbers

    def version(self, job_id: str, name: str, config: dict[str, Any]) -> Launch:
        """The launch of one version of the job `name`; `job_id` is the id for the engine."""
        if config.get("model_id"):
            raise Refusal(400, "2755", f"Algorithm {config['model_id']} not found.")
        if config.get("create_version", True) is not True:
            raise invalid("create_version must be true: jobs without a version are not emulated")
        flavor = self.spec(config)
        image, command = text(config, "user_image_url", ""), text(config, "user_command", "")
        if bool(image) != bool(command):
            raise Refusal(400, "2806", "A custom image needs both user_image_url and user_command.")
        engine = self.engine(config)
        code = self._code(text(config, "app_url"))
        boot_file = text(config, "boot_file_url", "") if image else text(config, "boot_file_url")
        pairs = parameters([{"name": each.get("label"), **each} for each in listed(config, "parameter")])
        log_url = text(config, "log_url", "")
        data = self._place(_data_url(config))
        return Launch(
            job_id=job_id,
            nodes=node_count(config, "worker_server_num", flavor),
            cards=flavor.cards,
            engine_version=engine.version,
            interpreter=self._catalog.interpreter_in(image) if image else self._catalog.interpreter(engine),
            code=code,
            boot_file=self._boot_file(boot_file, code) if boot_file else "",
            # With a custom image the parameters are the container's environment.
            parameters=() if image else pairs,
            environment=environment(dict(pairs)) if image else {},
            inputs=(Channel("data_url", data, ""),),
            outputs=(Channel("train_url", self._place(text(config, "train_url")), ""),),
            logs=self._place(log_url) if log_url else None,
            contract="V1",
            name=name,
            resource_id=f"job{secrets.token_hex(4)}",
            image=image,
            command=command,
            volumes=_volumes(config),
        )

    def spec(self, config: dict[str, Any]) -> Flavor:
        spec_id, pool_id = config.get("spec_id"), text(config, "pool_id", "")
        if bool(spec_id) == bool(pool_id):
            raise invalid("config needs a spec_id (public pool) or a pool_id (dedicated pool), and not both")
        if pool_id:
            flavor, unknown = self._numbers.pool_flavor(pool_id), Refusal(404, "2890", f"Pool {pool_id} not found.")
        else:
            flavor, unknown = self._numbers.flavor(spec_id), Refusal(400, "2781", f"Flavor {spec_id} not found.")
        if flavor is None:
            raise unknown
        return flavor

    def engine(self, config: dict[str, Any]) -> Engine:
        """Engine 1 is the vendor's default."""
        number = config.get("engine_id") or 1
        engine = self._numbers.engine(number)
        if engine is None:
            raise Refusal(400, "2780", f"Engine {number} not found.")
        return engine


def _data_url(config: dict[str, Any]) -> str:
    """Read where the data is: exactly one of three fields says it."""
    sources, dataset = listed(config, "data_source"), text(config, "dataset_id", "")
    if [bool(config.get("data_url")), bool(sources), bool(dataset)].count(True) != 1:
        raise invalid("config needs exactly one of data_url, data_source, and dataset_id with dataset_version_id")
    if len(sources) > 1:
        raise invalid("data_source has more than one entry, which is not emulated")
    source = sources[0] if sources else {"data_url": config.get("data_url")}
    if dataset or text(source, "type", "obs") == "dataset":
        raise Refusal(400, "2782", f"Dataset {dataset or source.get('dataset_id')} not found.")
    return text(source, "data_url")


def _volumes(config: dict[str, Any]) -> tuple[Volume, ...]:
    entries = [(section(each, "nfs") or section(each, "host_path")) for each in listed(config, "volumes")]
    if address := text(config, "nas_share_addr", ""):
        if text(config, "nas_type", "nfs") != "nfs":
            raise invalid("nas_type must be nfs")
        entries.append({"src_path": address, "dest_path": config.get("nas_mount_path")})
    volumes = tuple(rules.volume(each, "src_path", "dest_path", _TAKEN) for each in entries)
    if len(volumes) > _MOST_VOLUMES:
        raise invalid(f"more than {_MOST_VOLUMES} volumes")
    return volumes


class Numbers:
    """The catalog, with numbers from 1."""

    def __init__(self, catalog: Catalog) -> None:
        self._flavors = catalog.flavors()
        self._engines = catalog.engines_v1()
        self._pool_flavor = catalog.flavor(POOL_FLAVOR)  # the only one that V1 offers there

    def flavor(self, spec_id: object) -> Flavor | None:
        return _numbered(self._flavors, spec_id)

    def pool_flavor(self, pool_id: str) -> Flavor | None:
        return self._pool_flavor if pool_id == POOL else None

    def engine(self, engine_id: object) -> Engine | None:
        return _numbered(self._engines, engine_id)

    def specs(self) -> list[dict[str, Any]]:
        return [{"spec_id": number} | spec_json(flavor) for number, flavor in enumerate(self._flavors, 1)]

    def engines(self) -> list[dict[str, Any]]:
        return [{"engine_id": number} | engine_json(each) for number, each in enumerate(self._engines, 1)]


def spec_json(flavor: Flavor) -> dict[str, Any]:
    return {
        "spec_code": flavor.id,
        "core": str(24 * flavor.cards),
        "cpu": str(96 * flavor.cards),
        "gpu_num": 0,
        "gpu_type": "",
        "npu_info": {"npu": str(flavor.cards), "type": "ascend-snt9"},
        "max_num": flavor.max_nodes,
        "unit_num": 1,
        "storage": "",
        "interface_type": 1,
        "no_resource": False,
    }


def engine_json(engine: Engine) -> dict[str, Any]:
    return {"engine_type": _ASCEND_TYPE, "engine_name": ASCEND, "engine_version": engine.version}


def _numbered(entries: list[Any], number: object) -> Any | None:
    """The entry with this number, which may come as a text."""
    text = str(number)
    return entries[int(text) - 1] if text.isdigit() and 0 < int(text) <= len(entries) else None
