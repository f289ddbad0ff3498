"""What the local ModelArts offers: engines, flavors and one dedicated pool.

Beside the vendor's names there are some of the local cloud's own: the flavors `modelarts.local.<n>` with any number
of cards from 1 to 64, the engine version `python-local`, which promises nothing but Python, and `horovod-local`,
which starts the ranks as all of these engines do: the vendor's own starts them by mpirun, on GPUs.
"""

from __future__ import annotations

import sys
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from collections.abc import Mapping

ASCEND = "Ascend-Powered-Engine"
POOL = "pool-local"
"""The dedicated pool. A job there names a `modelarts.pool.visual` flavor, or gets whole nodes of 8 cards."""
POOL_FLAVOR = "modelarts.pool.visual.8xlarge"
PYTHON_HELP = "the Python for jobs of a framework, such as mindspore=/venv/bin/python; again for each"
QUOTA = 10000  # jobs of a project
LOCAL_CARDS = 64
_MAX_NODES = 64
_SIZES = {"xlarge": 1, "2xlarge": 2, "4xlarge": 4, "8xlarge": 8}
_VERSIONS = (
    "mindspore_1.3.0-cann_5.0.2-py_3.7-euler_2.8.3-aarch64",
    "mindspore_1.7.0-cann_5.1.0-py_3.7-euler_2.8.3-aarch64",
    "mindspore_2.0.0-cann_6.3.0-py_3.7-euler_2.8.3-aarch64",
    "tensorflow_1.15-cann_5.0.2-py_3.7-euler_2.8.3-aarch64",
    "python-local",
    "horovod-local",
)


@dataclass(frozen=True)
class Engine:
    version: str

    @property
    def framework(self) -> str:
        return self.version.replace("-", "_").partition("_")[0]

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
    pool: str = ""  # offered to jobs of this dedicated pool only

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

    def as_json(self) -> dict[str, Any]:
        named = {"flavor_id": self.id, "flavor_name": f"Computing NPU({self.cards}*Ascend) instance"}
        return named | {"pool_id": self.pool, "max_num": self.max_nodes} | self.details()


class Catalog:
    def __init__(self, interpreters: Mapping[str, str] | None = None) -> None:
        """`interpreters`: the Python that has a framework, by the framework's name; otherwise it is this one."""
        self._interpreters = dict(interpreters or {})
        self._engines = {version: Engine(version) for version in _VERSIONS}
        flavors = [Flavor(f"modelarts.kat1.{size}", cards) for size, cards in _SIZES.items()]
        flavors += [Flavor(f"modelarts.pool.visual.{size}", cards, pool=POOL) for size, cards in _SIZES.items()]
        flavors += [Flavor(f"modelarts.local.{cards}", cards) for cards in range(1, LOCAL_CARDS + 1)]
        self._flavors = {flavor.id: flavor for flavor in flavors}

    def engines(self) -> list[Engine]:
        return list(self._engines.values())

    def engine(self, version: str) -> Engine | None:
        return self._engines.get(version)

    def interpreter(self, engine: Engine) -> str:
        return self._interpreters.get(engine.framework, sys.executable)

    def interpreter_in(self, image: str) -> str:
        """An image is a name only: one that is called after a framework has the Python of that framework."""
        name = image.rpartition("/")[2].partition(":")[0].lower()
        return next((python for known, python in self._interpreters.items() if known in name), sys.executable)

    def flavors(self, kind: str = "") -> list[Flavor]:
        """The public ones, of one type (`Ascend`) or of all."""
        return [flavor for flavor in self._flavors.values() if not flavor.pool and kind in {"", "Ascend"}]

    def flavor(self, flavor_id: str) -> Flavor | None:
        return self._flavors.get(flavor_id)
