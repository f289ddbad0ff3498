"""The command of the image: torchrun starts `train.py` for each card of this node."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import TYPE_CHECKING

from contract import answer_for
from launching import Launcher, launch
from train import parser, require_torch

if TYPE_CHECKING:
    from nodes import Node


def command(node: Node, logs: str) -> list[str]:
    """Ranks of several nodes meet at the first of them. Those of one meet at any port that is free."""
    first = [f"--master_addr={node.hosts[0]}", f"--master_port={node.port}"]
    together = [f"--nnodes={len(node.hosts)}", f"--node_rank={node.index}", *first]
    return [
        *(sys.executable, "-m", "torch.distributed.run", f"--nproc_per_node={node.cards}"),
        *(together if len(node.hosts) > 1 else ["--standalone"]),
        *(f"--local_addr={node.host}", f"--log_dir={logs}", "--tee=3"),  # each line says whose it is
    ]


def variables(node: Node) -> dict[str, str]:
    # Otherwise gloo listens where the machine's name leads to, which on one machine may be nowhere.
    return {"GLOO_SOCKET_IFNAME": "lo"} if node.host.startswith("127.") else {}


LAUNCHER = Launcher(command, variables, taken=frozenset(), logs="*/attempt_*/*/std*.log", shows=lambda _: True)


def main() -> None:
    require_torch()
    launch(LAUNCHER, Path(__file__).with_name("train.py"), parser())


if __name__ == "__main__":
    answer_for(main, "of this node")
