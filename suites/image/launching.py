"""The command of an image: a framework's own launcher starts a rank for each card of this node, and counts them.

Launchers may write their whole environment to a log, keys included if there are any. So they get none: where data and
results are urls, this process alone copies them, once for each node.
"""

from __future__ import annotations

import os
import subprocess
import sys
from dataclasses import dataclass
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import TYPE_CHECKING

from contract import ContractError, Job, is_remote, known_arguments, number
from nodes import Node, arguments, read_node, without_keys

if TYPE_CHECKING:
    import argparse
    from collections.abc import Callable, Iterable, Mapping, Sequence


@dataclass(frozen=True)
class Launcher:
    command: Callable[[Node, str], list[str]]  # for this node, with a folder for the logs of its ranks
    variables: Callable[[Node], Mapping[str, str]]  # that the ranks need beside those of the node
    taken: frozenset[str]  # variables that it takes for its own: a platform may have set them for something else
    logs: str  # where in the folder it keeps what each rank said
    shows: Callable[[Path], bool]  # which of these it shows by itself


def alone(environment: Mapping[str, str]) -> bool:
    """Whether every server trains by itself."""
    return environment.get("SINGLESERVER_MODE") == "True"


def for_ranks(launcher: Launcher, node: Node, environment: Mapping[str, str]) -> dict[str, str]:
    kept = {name: value for name, value in without_keys(environment).items() if name not in launcher.taken}
    return {**kept, **launcher.variables(node)}


def launch(launcher: Launcher, script: Path, parser: argparse.ArgumentParser) -> None:
    """Train on this node, and bring its results to where they belong."""
    if number(os.environ, "DEVICE_ID", 0):
        return  # a platform that starts the command for each card: the first one starts them all
    node = read_node(os.environ).by_itself() if alone(os.environ) else read_node(os.environ)
    given = arguments(parser, sys.argv[1:], os.environ)
    train_url = next((text.partition("=")[2] for text in given if text.startswith("--train_url=")), "")
    if not train_url:
        raise ContractError("there is no --train_url, where the results belong")
    with TemporaryDirectory(prefix="ranks-") as scratch:
        results = f"{scratch}/results" if is_remote(train_url) else train_url
        logs = Path(scratch, "logs")
        for folder in (Path(results), logs):
            folder.mkdir(parents=True, exist_ok=True)
        rest = [text for text in given if not text.startswith(("--train_url=", "--data_url="))]
        command = [*launcher.command(node, str(logs)), str(script), *rest, f"--train_url={results}"]
        done = subprocess.run(command, env=for_ranks(launcher, node, os.environ), check=False)
        lines_by_log = {log: log.read_text(errors="replace").splitlines() for log in sorted(logs.glob(launcher.logs))}
        for log, lines in lines_by_log.items():
            if not launcher.shows(log):
                print(*(f"[{log.name}]: {line}" for line in lines), sep="\n", flush=True)
        if done.returncode:
            raise ContractError(f"exit code {done.returncode}: {reason(lines_by_log.values())}")
        if results != train_url:
            import moxing

            moxing.file.copy_parallel(results, train_url)


def reason(logs: Iterable[Sequence[str]]) -> str:
    """The last that a rank said which failed by itself, and not because another had left."""
    ends = [next((line for line in reversed(log) if line.strip()), "") for log in logs]
    return next((end for end in ends if "[ERROR]" in end), next(filter(None, ends), "the ranks said nothing"))


def read_rank(
    parser: argparse.ArgumentParser, argv: Sequence[str], environment: Mapping[str, str], *, rank: str, size: str
) -> Job:
    """What a rank is told: its number by these variables of the launcher, and a folder for its results."""
    parser.add_argument("--train_url", required=True)
    own, all_of_them = number(environment, rank, 0), number(environment, size, 1)
    options = known_arguments(parser, argv, own)
    if not alone(environment):
        return Job(options, options.train_url, own, all_of_them, None, all_of_them)
    node = read_node(environment)
    everywhere = len(node.hosts) * all_of_them
    return Job(options, options.train_url, own, all_of_them, None, everywhere, server=node.index)
