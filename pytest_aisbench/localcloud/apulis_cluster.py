"""The machines that the local Apulis has: who may use them, and how many of their cards are taken."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from pytest_aisbench.localcloud.apulis_pods import NPU

if TYPE_CHECKING:
    from collections.abc import Iterable

    from pytest_aisbench.localcloud.apulis_pods import Pods

VC = "platform"
ADMIN = "admin"
GPU = "nvidia_gpu_amd64"
CARDS = 8  # of each machine
NPU_COUNTS = (0, 1, 2, 4, 8)
_MACHINES = 8  # of each kind


@dataclass(frozen=True)
class Device:
    name: str
    resource: str
    machine: str

    def can_hold(self, cards: int, nodes: int) -> bool:
        counts = NPU_COUNTS if self.name == NPU else range(CARDS + 1)
        return cards in counts and nodes <= _MACHINES

    def as_json(self, running: Iterable[Pods]) -> dict[str, Any]:
        free = [CARDS] * _MACHINES
        for pods in running:
            if pods.device != self.name:
                continue
            for role in pods.trainers:
                emptiest = free.index(max(free))
                free[emptiest] = max(0, free[emptiest] - role.cards)
        detail = [
            {"allocatable": left, "capacity": CARDS, "nodeName": f"{self.machine}{number:02d}"}
            for number, left in enumerate(free, 1)
        ]
        return {"capacity": CARDS * _MACHINES, "detail": detail, "deviceStr": self.resource}


DEVICES = {
    device.name: device for device in (Device(NPU, "npu.huawei.com/NPU", "atlas"), Device(GPU, "nvidia.com/gpu", "gpu"))
}
