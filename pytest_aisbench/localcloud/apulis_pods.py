"""The pods of one Apulis job: their roles, names and addresses, and when their success is the job's.

Workers come first in the list and the parameter server (`ps`) last, so that worker i is node i of the engine.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from pathlib import Path, PurePosixPath
from typing import TYPE_CHECKING

from pytest_aisbench.localcloud.rendezvous import card_address, node_address

if TYPE_CHECKING:
    from collections.abc import Collection, Mapping

NPU = "huawei_npu_arm64"


@dataclass(frozen=True)
class Role:
    name: str  # master (of a regular job), ps or worker
    index: int
    cards: int
    command: str = field(repr=False)
    node: int  # of the engine
    ssh_port: int

    @property
    def key(self) -> str:
        """As it stands in the names of variables and pods."""
        return f"{self.name}{self.index}"

    @property
    def host(self) -> str:
        return "master" if self.name == "master" else f"{self.name}-{self.index}"

    @property
    def task(self) -> str:
        """As the engine calls it."""
        return f"worker-{self.node}"

    @property
    def address(self) -> str:
        return node_address(self.node)

    @property
    def cards_addresses(self) -> list[str]:
        return [card_address(self.node, card) for card in range(self.cards)]


@dataclass(frozen=True)
class Pods:
    job_id: str  # as clients know it
    user: str
    vc: str
    device: str
    roles: tuple[Role, ...]
    mounts: Mapping[str, Path]  # the shared folders, by their paths in the pods
    environment: Mapping[str, str] = field(repr=False)
    """The platform's, the same for all pods. There are tokens in it."""
    results: Path | None = None  # where the results are expected, if that is a shared folder

    @property
    def is_distributed(self) -> bool:
        return self.roles[0].name == "worker"

    @property
    def is_npu(self) -> bool:
        return self.device == NPU

    @property
    def trainers(self) -> list[Role]:
        """Those with cards: the workers, or the one pod of a regular job."""
        return [role for role in self.roles if role.name != "ps"]

    @property
    def head(self) -> Role:
        """The one that sets the others up."""
        return next((role for role in self.roles if role.name == "ps"), self.roles[0])

    @property
    def ranks(self) -> int:
        return sum(max(1, role.cards) for role in self.trainers)

    def name(self, role: Role) -> str:
        return f"{self.job_id}-{role.key}" if self.is_distributed else self.job_id

    def is_done(self, succeeded: Collection[str]) -> bool:
        """A ps is enough, or all workers."""
        of_ps = {role.task for role in self.roles if role.name == "ps"}
        return bool(of_ps & set(succeeded)) or {role.task for role in self.trainers} <= set(succeeded)


def on_host(path: str, mounts: Mapping[str, Path]) -> Path | None:
    """Where something lies that pods know by its path in a shared folder."""
    wanted = PurePosixPath(path)
    if ".." in wanted.parts:
        return None
    for folder in sorted(mounts, key=len, reverse=True):
        if wanted.is_relative_to(folder):
            return mounts[folder] / wanted.relative_to(folder)
    return None
