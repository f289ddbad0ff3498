"""The command of the image: PaddlePaddle's launcher starts `train.py` for each card of this node."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import TYPE_CHECKING

from contract import answer_for
from launching import Launcher, launch
from train import parser, require_paddle

if TYPE_CHECKING:
    from nodes import Node


def command(node: Node, logs: str) -> list[str]:
    """Nodes are named without ports: the n-th rank of each listens at the n-th port from the first."""
    cards = ",".join(map(str, range(node.cards)))
    devices = [f"--devices={cards}"] if node.accelerated else [f"--nproc_per_node={node.cards}"]
    others = [f"--ips={','.join(node.hosts)}", f"--host={node.host}", f"--start_port={node.port}"]
    together = others if len(node.hosts) > 1 else []
    kept = [f"--log_dir={logs}", "--log_level=WARNING"]
    return [sys.executable, "-m", "paddle.distributed.launch", *devices, *together, *kept]


def variables(node: Node) -> dict[str, str]:
    return {} if node.accelerated else {"PADDLE_DISTRI_BACKEND": "gloo"}


LAUNCHER = Launcher(
    command,
    variables,
    taken=frozenset({"POD_IP", "PADDLE_MASTER", "PADDLE_TRAINER_ID"}),
    logs="workerlog.*",
    shows=lambda log: log.name == "workerlog.0",
)


def main() -> None:
    require_paddle()
    launch(LAUNCHER, Path(__file__).with_name("train.py"), parser())


if __name__ == "__main__":
    answer_for(main, "of this node")
