"""The vendor's rules: `Rules.launch` turns a request to create a job into a `Launch`, or refuses it with the vendor's
error code. `Catalog` is what the local ModelArts offers: engines, flavors and one dedicated pool.
"""

from __future__ import annotations

import re
import sys
from dataclasses import dataclass
from pathlib import PurePosixPath
from typing import TYPE_CHECKING, Any

from pytest_aisbench.localcloud.engine.launch import Channel, Launch, Place, Volume
from pytest_aisbench.localcloud.modelarts.api import Refusal

if TYPE_CHECKING:
    from collections.abc import Collection, Mapping

    from pytest_aisbench.localcloud.obs.storage import Objects


ASCEND = "Ascend-Powered-Engine"
POOL = "pool-local"
"""The dedicated pool. Its jobs name a `modelarts.pool.visual` flavor, or get whole nodes of 8 cards."""
POOL_FLAVOR = "modelarts.pool.visual.8xlarge"
QUOTA = 10000  # jobs of a project
LOCAL_CARDS = 64
USAGE_METRICS = ("cpuUsage", "memUsage", "npuUtil", "npuMemUsage", "gpuUtil", "gpuMemUsage")
_MAX_NODES = 64
_SIZES = {"xlarge": 1, "2xlarge": 2, "4xlarge": 4, "8xlarge": 8}
_VERSIONS = (
    "mindspore_1.3.0-cann_5.0.2-py_3.7-euler_2.8.3-aarch64",
    "mindspore_1.7.0-cann_5.1.0-py_3.7-euler_2.8.3-aarch64",
    "mindspore_2.0.0-cann_6.3.0-py_3.7-euler_2.8.3-aarch64",
    "tensorflow_1.15-cann_5.0.2-py_3.7-euler_2.8.3-aarch64",
    "python-local",
    "horovod-local",
    "torch-local",
    "paddle-local",
)
# V1 spells versions in its own way: as the vendor's documents and the configurations of ais-bench-stubs have them.
_VERSIONS_V1 = (
    "MindSpore-1.3-cann_5.0.2-python3.7-euleros2.8-aarch64",
    "MindSpore-1.3.0-c78-python3.7-euleros2.8-aarch64",
    "MindSpore-1.2.0-c77-python3.7-euleros2.8-aarch64",
    "Mindspore-1.1.1-python3.7-aarch64",
    "TF-1.15-python3.7-aarch64",
)
_SHORT_NAMES = {"tf": "tensorflow"}


_JOB_NAME = re.compile(r"[A-Za-z0-9_-]{1,64}")
_VARIABLE = re.compile(r"[A-Za-z_][A-Za-z0-9_]*")
_OBS_PATH = re.compile(r"(?:obs:/)?/(?P<bucket>[a-z0-9][a-z0-9.-]{1,61}[a-z0-9])/(?P<prefix>(?:[^/]+/)*)")
_CODE_SIZE = 5 << 30
_CODE_DEPTH = 32
_VARIABLES, _VARIABLE_NAME, _VARIABLE_VALUE = 100, 8192, 4096
_DESCRIPTION = 256
# The vendor has only HOURS, from 1 to 72; the smaller units are the local cloud's own.
_UNITS = {"HOURS": 3600.0, "MINUTES": 60.0, "SECONDS": 1.0}
_MOST_HOURS = 72


class Catalog:
    def __init__(self, interpreters: Mapping[str, str] | None = None) -> None:
        """`interpreters`: the Python of each framework, by name; the others use the one of this process."""
        self._interpreters = dict(interpreters or {})
        self._engines = {version: Engine(version) for version in _VERSIONS}
        flavors = [Flavor(f"modelarts.kat1.{size}", cards) for size, cards in _SIZES.items()]
        flavors += [Flavor(f"modelarts.pool.visual.{size}", cards, pool=POOL) for size, cards in _SIZES.items()]
        flavors += [Flavor(f"modelarts.local.{cards}", cards) for cards in range(1, LOCAL_CARDS + 1)]
        self._flavors = {flavor.id: flavor for flavor in flavors}

    def engines(self) -> list[Engine]:
        return list(self._engines.values())

    def engines_v1(self) -> list[Engine]:
        """Those of V2 first: V1 takes their names too, so that one workload can be tried by both."""
        return self.engines() + [Engine(version) for version in _VERSIONS_V1]

    def engine(self, version: str) -> Engine | None:
        return self._engines.get(version)

    def interpreter(self, engine: Engine) -> str:
        return self._interpreters.get(engine.framework, sys.executable)

    def interpreter_in(self, image: str) -> str:
        """The Python for a custom image, which is only a name here: that of the framework in the name, if any."""
        name = image.rpartition("/")[2].partition(":")[0].lower()
        return next((python for framework, python in self._interpreters.items() if framework in name), sys.executable)

    def flavors(self, kind: str = "") -> list[Flavor]:
        """The flavors of the public pool, of one type or of all."""
        return [flavor for flavor in self._flavors.values() if not flavor.pool and kind in {"", "Ascend"}]

    def flavor(self, flavor_id: str) -> Flavor | None:
        return self._flavors.get(flavor_id)


@dataclass(frozen=True)
class Engine:
    version: str

    @property
    def framework(self) -> str:
        name = self.version.replace("-", "_").partition("_")[0].lower()
        return _SHORT_NAMES.get(name, name)

    def as_json(self) -> dict[str, Any]:
        return {
            "engine_id": self.version,
            "engine_name": ASCEND,
            "engine_version": self.version,
            "v1_compatible": False,
            "run_user": "1000",
            "image_info": {"cpu_image_url": "", "gpu_image_url": "", "image_version": ""},
        }


@dataclass(frozen=True)
class Flavor:
    id: str
    cards: int
    max_nodes: int = _MAX_NODES
    pool: str = ""  # the dedicated pool that alone offers it; empty: the public pool

    def details(self) -> dict[str, Any]:
        return {
            "flavor_type": "Ascend",
            "billing": {"code": self.id, "unit_num": 1},
            "flavor_info": {
                "max_num": self.max_nodes,
                "cpu": {"arch": "aarch64", "core_num": 24 * self.cards},
                "npu": {"unit_num": str(self.cards), "product_name": "snt9", "memory": "32GB"},
                "memory": {"size": 96 * self.cards, "unit": "GB"},
                "disk": {"size": 500, "unit": "GB"},
            },
        }

    @property
    def name(self) -> str:
        return f"Computing NPU({self.cards}*Ascend) instance"

    def as_json(self) -> dict[str, Any]:
        named = {"flavor_id": self.id, "flavor_name": self.name}
        return named | {"pool_id": self.pool, "max_num": self.max_nodes} | self.details()


class Rules:
    def __init__(self, catalog: Catalog, objects: Objects) -> None:
        self._catalog = catalog
        self._objects = objects

    def launch(self, job_id: str, body: dict[str, Any]) -> Launch:
        if body.get("kind", "job") != "job":
            raise invalid("kind must be job")
        algorithm, spec = section(body, "algorithm"), section(body, "spec")
        if "code_dir" not in algorithm and algorithm.get("id"):
            raise Refusal(400, "2755", f"Algorithm {algorithm['id']} not found.")
        resource = section(spec, "resource")
        flavor = self._flavor(resource)
        image, command = text(section(algorithm, "engine"), "image_url", ""), text(algorithm, "command", "")
        if (command and not image) or (image and not (command or algorithm.get("boot_file"))):
            raise Refusal(400, "2806", "A custom image needs both engine.image_url and command.")
        engine = Engine("") if command else self._engine(section(algorithm, "engine"))
        # A custom image may bring all the code it needs.
        code = None if command and not algorithm.get("code_dir") else self._code(text(algorithm, "code_dir"))
        log_path = section(spec, "log_export_path").get("obs_url")
        return Launch(
            job_id=job_id,
            nodes=node_count(resource, "node_count", flavor),
            cards=flavor.cards,
            engine_version=engine.version,
            interpreter=self._catalog.interpreter_in(image) if command else self._catalog.interpreter(engine),
            code=code,
            boot_file="" if command or code is None else self._boot_file(text(algorithm, "boot_file"), code),
            parameters=parameters(listed(algorithm, "parameters")),
            inputs=self._channels(listed(algorithm, "inputs"), "inputs"),
            outputs=self._channels(listed(algorithm, "outputs"), "outputs"),
            environment=environment(section(algorithm, "environments")),
            logs=self._place(log_path) if log_path else None,
            time_limit=_time_limit(spec.get("auto_stop")),
            image=image if command else "",
            command=command,
            volumes=_volumes(listed(spec, "volumes")),
        )

    def _flavor(self, resource: dict[str, Any]) -> Flavor:
        flavor_id, pool_id = text(resource, "flavor_id", ""), text(resource, "pool_id", "")
        if not flavor_id and not pool_id:
            raise invalid("spec.resource names neither a flavor_id (public pool) nor a pool_id (dedicated pool)")
        if pool_id not in {"", POOL}:
            raise Refusal(404, "2890", f"Pool {pool_id} not found.")
        flavor = self._catalog.flavor(flavor_id or POOL_FLAVOR)
        if flavor is None:
            raise Refusal(400, "2781", f"Flavor {flavor_id} not found.")
        if pool_id and not flavor.pool:
            raise invalid(f"{flavor_id} is a flavor of the public pool; give it or a pool_id, not both")
        if flavor.pool and not pool_id:
            raise invalid(f"{flavor_id} is a flavor of dedicated pools; a pool_id is missing")
        return flavor

    def _engine(self, fields: dict[str, Any]) -> Engine:
        name = text(fields, "engine_name", ASCEND)
        version = text(fields, "engine_version", text(fields, "engine_id", ""))
        engine = self._catalog.engine(version)
        if engine is None or name != ASCEND:
            raise Refusal(400, "2780", f"Engine {name} {version} not found.")
        return engine

    def _place(self, path: object) -> Place:
        def refused(reason: str) -> Refusal:
            return Refusal(400, "2791", f"Invalid obs path: {path}, reason: {reason}.")

        if not isinstance(path, str) or not path.endswith("/"):
            raise refused("the path of a folder must end with /")
        match = _OBS_PATH.fullmatch(path)
        if match is None:
            raise refused("it must be /bucket/folder/")
        if not self._objects.has_bucket(match["bucket"]):
            raise refused("the bucket does not exist")
        return Place(match["bucket"], match["prefix"])

    def _code(self, path: str) -> Place:
        place = self._place(path)
        files = [meta for meta in self._objects.walk(place.bucket, place.prefix) if not meta.key.endswith("/")]
        if not files:
            raise Refusal(400, "2757", f"Invalid code_dir {path}: there is nothing in it.")
        if max(meta.key[len(place.prefix) :].count("/") for meta in files) > _CODE_DEPTH:
            raise Refusal(400, "2760", f"The folders in {path} are nested deeper than {_CODE_DEPTH}.")
        if sum(meta.size for meta in files) > _CODE_SIZE:
            raise Refusal(400, "2761", f"The files in {path} have more than 5 GB.")
        return place

    def _boot_file(self, path: str, code: Place) -> str:
        key = path.removeprefix("obs:/")
        relative = key.removeprefix(str(code))
        if relative == key or not relative.endswith(".py"):
            raise Refusal(400, "2758", f"Invalid boot_file {path}: it must be a .py file in {code}.")
        if self._objects.head(code.bucket, code.prefix + relative) is None:
            raise Refusal(400, "2758", f"Invalid boot_file {path}: it does not exist.")
        return relative

    def _channels(self, entries: list[dict[str, Any]], kind: str) -> tuple[Channel, ...]:
        channels = []
        for index, entry in enumerate(entries):
            name, method = text(entry, "name"), text(entry, "access_method", "parameter")
            remote = section(entry, "remote")
            if not _VARIABLE.fullmatch(name) or method not in {"parameter", "env"}:
                raise Refusal(400, "2753", f"The {kind} are malformed: {name}, {method}.")
            if "dataset" in remote:
                raise Refusal(400, "2782", f"The dataset of {name} was not found.")
            local_dir = text(entry, "local_dir", f"/home/ma-user/modelarts/{kind}/{name}_{index}")
            if "local_dir" in entry:
                path = PurePosixPath(local_dir)
                if not path.is_absolute() or ".." in path.parts or len(path.parts) < 3:
                    raise Refusal(400, "2753", f"The {kind} are malformed: {local_dir} cannot be a local_dir.")
            place = self._place(section(remote, "obs").get("obs_url"))
            channels.append(Channel(name, place, local_dir, by_environment=method == "env"))
        return tuple(channels)


def _volumes(entries: list[dict[str, Any]]) -> tuple[Volume, ...]:
    shares = [section(entry, "nfs") for entry in entries if "nfs" in entry]
    return tuple(volume(share, "nfs_server_path", "local_path") for share in shares)


def _time_limit(auto_stop: object) -> float | None:
    if auto_stop is None:
        return None
    fields = auto_stop if isinstance(auto_stop, dict) else {}
    unit, duration = text(fields, "time_unit", ""), fields.get("duration")
    if unit not in _UNITS or not isinstance(duration, int) or isinstance(duration, bool) or duration < 1:
        raise invalid(f"auto_stop needs a time_unit ({', '.join(_UNITS)}) and a duration from 1")
    seconds = duration * _UNITS[unit]
    if seconds > _MOST_HOURS * 3600:
        raise invalid(f"auto_stop after more than {_MOST_HOURS} hours")
    return seconds


# Fields of a request, for V1 as well.


def invalid(what: str) -> Refusal:
    return Refusal(400, "2788", f"Invalid parameter: {what}.")


def section(body: dict[str, Any], key: str) -> dict[str, Any]:
    """An object inside the request; empty where it is absent or null."""
    value = body.get(key)
    if value is not None and not isinstance(value, dict):
        raise invalid(f"{key} must be an object")
    return value or {}


def listed(body: dict[str, Any], key: str) -> list[dict[str, Any]]:
    value = body.get(key)
    if value is None:
        return []
    if not isinstance(value, list) or not all(isinstance(entry, dict) for entry in value):
        raise invalid(f"{key} must be a list of objects")
    return value


def text(body: dict[str, Any], key: str, default: str | None = None) -> str:
    """A text inside the request; the default where it is absent, null or empty."""
    value = body.get(key) or default
    if value is None:
        raise invalid(f"{key} is missing")
    if not isinstance(value, str) or "\0" in value:
        raise invalid(f"{key} must be a text")
    return value


def job_name(metadata: dict[str, Any]) -> str:
    name = text(metadata, "name")
    if not _JOB_NAME.fullmatch(name):
        raise invalid(f"name {name!r} must have 1 to 64 letters, digits, underscores and hyphens")
    return name


def description(value: object) -> str:
    if not isinstance(value or "", str) or len(str(value or "")) > _DESCRIPTION:
        raise invalid(f"description must be a text of at most {_DESCRIPTION} characters")
    return str(value or "")


def volume(share: dict[str, Any], source: str, folder: str, taken: Collection[str] = ()) -> Volume:
    """The volume of a share, by the names of its fields; `taken` are folders at which nothing can be mounted."""
    volume = Volume(text(share, source), text(share, folder), read_only=bool(share.get("read_only")))
    path = PurePosixPath(volume.folder)
    if not path.is_absolute() or ".." in path.parts or len(path.parts) < 2 or str(path) in taken:
        raise invalid(f"nothing can be mounted at {volume.folder}")
    return volume


def node_count(resource: dict[str, Any], key: str, flavor: Flavor) -> int:
    count = resource.get(key, 1)
    if not isinstance(count, int) or isinstance(count, bool) or count < 1:
        raise invalid(f"{key} must be a number from 1")
    if count > flavor.max_nodes:
        raise Refusal(400, "2793", f"{key} {count} is more than max_num {flavor.max_nodes} of {flavor.id}.")
    return count


def parameters(entries: list[dict[str, Any]]) -> tuple[tuple[str, str], ...]:
    names = [text(entry, "name") for entry in entries]
    if repeated := {name for name in names if names.count(name) > 1}:
        raise Refusal(400, "2767", f"Repeated parameter: {', '.join(sorted(repeated))}.")
    values = ["" if entry.get("value") is None else str(entry["value"]) for entry in entries]
    if any("\0" in value for value in values):
        raise invalid("a parameter has a zero byte in its value")
    return tuple(zip(names, values, strict=True))


def environment(variables: dict[str, Any]) -> dict[str, str]:
    if len(variables) > _VARIABLES:
        raise invalid(f"more than {_VARIABLES} environments")
    for name, value in variables.items():
        if not _VARIABLE.fullmatch(name) or len(name) > _VARIABLE_NAME or name.startswith("MA_"):
            raise invalid(f"environments cannot hold {name[:80]!r}; names that start with MA_ are the platform's")
        if len(str(value)) > _VARIABLE_VALUE or "\0" in str(value):
            raise invalid(f"the value of {name[:80]} has more than {_VARIABLE_VALUE} characters, or a zero byte")
    return {name: str(value) for name, value in variables.items()}
