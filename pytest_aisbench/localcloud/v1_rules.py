"""V1's rules: the `config` of a request becomes a `Launch`, or is refused."""

from __future__ import annotations

import secrets
from pathlib import PurePosixPath
from typing import TYPE_CHECKING, Any

from pytest_aisbench.localcloud.launch import Channel, Launch, Volume
from pytest_aisbench.localcloud.refusal import Refusal
from pytest_aisbench.localcloud.rules import Rules, environment, invalid, listed, node_count, parameters, section, text

if TYPE_CHECKING:
    from pytest_aisbench.localcloud.catalog import Catalog, Engine, Flavor
    from pytest_aisbench.localcloud.objects import Objects
    from pytest_aisbench.localcloud.v1_catalog import Numbers

_MOST_VOLUMES = 8
_TAKEN = ("/", "/cache", "/home/ma-user/modelarts")  # where nothing can be mounted


class V1Rules(Rules):
    def __init__(self, catalog: Catalog, objects: Objects, numbers: Numbers) -> None:
        super().__init__(catalog, objects)
        self._numbers = numbers

    def version(self, job_id: str, name: str, config: dict[str, Any]) -> Launch:
        """One version of the job `name`; `job_id` is the engine's."""
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
        """1 is the vendor's default."""
        number = config.get("engine_id") or 1
        engine = self._numbers.engine(number)
        if engine is None:
            raise Refusal(400, "2780", f"Engine {number} not found.")
        return engine


def _data_url(config: dict[str, Any]) -> str:
    """Exactly one of three says where the data is."""
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
    given = [(section(each, "nfs") or section(each, "host_path")) for each in listed(config, "volumes")]
    if address := text(config, "nas_share_addr", ""):
        if text(config, "nas_type", "nfs") != "nfs":
            raise invalid("nas_type must be nfs")
        given.append({"src_path": address, "dest_path": config.get("nas_mount_path")})
    volumes = tuple(
        Volume(text(each, "src_path"), text(each, "dest_path"), read_only=bool(each.get("read_only"))) for each in given
    )
    for volume in volumes:
        folder = PurePosixPath(volume.folder)
        if not folder.is_absolute() or ".." in folder.parts or str(folder) in _TAKEN:
            raise invalid(f"nothing can be mounted at {volume.folder}")
    if len(volumes) > _MOST_VOLUMES:
        raise invalid(f"more than {_MOST_VOLUMES} volumes")
    return volumes
