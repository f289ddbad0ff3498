"""The command of the image: starts a rank for each card of this node, and brings its results to where they belong.

The launcher writes the whole environment to its log folder, keys included if there are any. So it gets none: where data
and results are urls, this process alone copies them, once for each node.
"""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import TYPE_CHECKING

from contract import ContractError, answer_for, is_remote, number
from nodes import Node, arguments, read_node, without_keys
from train import parser, require_paddle

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping, Sequence

SCRIPT = Path(__file__).with_name("train.py")
FIRST = "workerlog.0"  # which the launcher shows by itself


def launcher(node: Node, logs: str, *, alone: bool) -> list[str]:
    """Nodes are named without ports: the n-th rank of each listens at the n-th port from the first."""
    cards = ",".join(map(str, range(node.cards)))
    devices = [f"--devices={cards}"] if node.accelerated else [f"--nproc_per_node={node.cards}"]
    others = [f"--ips={','.join(node.hosts)}", f"--host={node.host}", f"--start_port={node.port}"]
    together = [] if alone or len(node.hosts) == 1 else others
    kept = [f"--log_dir={logs}", "--log_level=WARNING"]
    return [sys.executable, "-m", "paddle.distributed.launch", *devices, *together, *kept]


def for_ranks(environment: Mapping[str, str], node: Node) -> dict[str, str]:
    backend = {} if node.accelerated else {"PADDLE_DISTRI_BACKEND": "gloo"}
    # The launcher takes these for its own: a platform may have set them for something else.
    taken = {"POD_IP", "PADDLE_MASTER", "PADDLE_TRAINER_ID"}
    kept = {name: value for name, value in without_keys(environment).items() if name not in taken}
    return {**kept, **backend}


def main() -> None:
    if number(os.environ, "DEVICE_ID", 0):
        return  # a platform that starts it for each card: the first one starts them all
    require_paddle()
    node = read_node(os.environ)
    told = arguments(parser(), sys.argv[1:], os.environ)
    train_url = next((text.partition("=")[2] for text in told if text.startswith("--train_url=")), "")
    if not train_url:
        raise ContractError("there is no --train_url, where the results belong")
    with TemporaryDirectory(prefix="paddle-") as scratch:
        results = f"{scratch}/results" if is_remote(train_url) else train_url
        Path(results).mkdir(parents=True, exist_ok=True)
        logs = f"{scratch}/logs"
        command = launcher(node, logs, alone=os.environ.get("SINGLESERVER_MODE") == "True")
        rest = [text for text in told if not text.startswith(("--train_url=", "--data_url="))]
        done = subprocess.run(
            [*command, str(SCRIPT), *rest, f"--train_url={results}"], env=for_ranks(os.environ, node), check=False
        )
        said = {
            log.name: log.read_text(errors="replace").splitlines() for log in sorted(Path(logs).glob("workerlog.*"))
        }
        for name, lines in said.items():
            if name != FIRST:
                print(*(f"[{name}]: {line}" for line in lines), sep="\n")
        if done.returncode:
            raise ContractError(f"exit code {done.returncode}: {reason(said.values())}")
        if results != train_url:
            import moxing

            moxing.file.copy_parallel(results, train_url)


def reason(logs: Iterable[Sequence[str]]) -> str:
    """The last that a rank said which failed by itself, and not because another had left."""
    ends = [next((line for line in reversed(log) if line.strip()), "") for log in logs]
    return next((end for end in ends if "[ERROR]" in end), next(filter(None, ends), "the ranks said nothing"))


if __name__ == "__main__":
    answer_for(main, "of this node")
