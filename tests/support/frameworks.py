"""Train the suites with their real frameworks on the local cloud, and print what was seen, as a table in Markdown.

    scripts/frameworks [NAME...] [--python FILE] [--environments FOLDER] [--shapes 1x1,2x1-single] [--suites NAME,...]

Each framework is an extra of this project. It gets a virtual environment, `.venv-NAME`, which is made once; `--python`
names one that is there already. A row of the table is one case. An extra that cannot be installed here is one line. The
exit code is 0 if something was trained, all of it passed, and the ranks that trained together ended with the same
weights.
"""

from __future__ import annotations

import argparse
import json
import os
import re
import subprocess
import sys
import tempfile
import time
from dataclasses import astuple, dataclass, fields
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parents[2]
SUITES = {
    "mindspore": ("resnet50_cifar10", "resnet50", "bert"),
    "paddle": ("paddle_mlp",),
    "torch": ("torch_mlp",),
    "horovod": ("horovod_mnist",),
}
PACKAGES = {"paddle": "paddlepaddle"}  # on PyPI, where it is not called as an import names it
# What must be there before the extra is: Horovod is compiled against the TensorFlow that it finds, here with Gloo.
FIRST = {"horovod": ("tensorflow-cpu==2.12.1", "setuptools<81", "wheel", "hatchling")}
BUILD = {"horovod": {"HOROVOD_WITH_TENSORFLOW": "1", "HOROVOD_WITH_GLOO": "1", "HOROVOD_WITHOUT_MPI": "1"}}
PARTS = {"horovod": "horovod.tensorflow"}  # it installs without a word where it was not built for TensorFlow
SHAPES = "1x1,1x2,2x2,2x1-single"
MORE_SHAPES = dict.fromkeys(("paddle", "torch"), ",1x2-v1,2x2-v1")  # an image is told other things by the other API
WAYS = {"single": ["--aisbench-single-server"], "v1": ["--aisbench-modelarts-version", "V1"]}
LONGEST_S = 1800
VERSION = "import importlib.metadata, sys; print(importlib.metadata.version(sys.argv[1]))"
CHECKSUM = re.compile(r"weights crc32:(\w{8})")


@dataclass(frozen=True)
class Shape:
    nodes: int
    devices: int
    way: str

    @classmethod
    def parse(cls, text: str) -> Shape:
        shape, _, way = text.partition("-")
        nodes, _, devices = shape.partition("x")
        if not (nodes.isdecimal() and devices.isdecimal()) or way not in {"", *WAYS}:
            raise argparse.ArgumentTypeError(f"{text!r} is not a shape such as 2x1, 2x1-single or 2x1-v1")
        return cls(int(nodes), int(devices), way)

    @classmethod
    def parse_all(cls, text: str) -> list[Shape]:
        return [cls.parse(part) for part in text.split(",")]

    def options(self) -> list[str]:
        return ["--nodes", str(self.nodes), "--aisbench-devices", str(self.devices), *WAYS.get(self.way, [])]


@dataclass(frozen=True)
class Row:
    case: str
    framework: str
    samples_per_s: str
    accuracy: str
    weights: str
    wall: str
    verdict: str

    def is_good(self) -> bool:
        return self.verdict == "PASSED" and self.weights.startswith("same")

    def show(self) -> None:
        widths = (28, 18, 13, 8, 15, 5, 7)
        cells = [str(cell).ljust(width) for cell, width in zip(astuple(self), widths, strict=True)]
        print(f"| {' | '.join(cells)} |", flush=True)


HEAD = Row(*(field.name.replace("_per_", "/") for field in fields(Row)))
RULE = Row(*["---"] * len(fields(Row)))


def environment(framework: str, environments: Path) -> Path | None:
    """The Python of a virtual environment with the extra, made where there is none; None where it cannot be made."""
    folder = environments.absolute() / f".venv-{framework}"
    python = folder / "bin" / "python"
    done = folder / "installed"
    if not done.exists():
        print(f"{framework}: installing pytest-aisbench[{framework}] into {folder.name}", flush=True)
        subprocess.run([sys.executable, "-m", "venv", "--clear", folder], check=True)
        install = [str(python), "-m", "pip", "install", "--quiet", "--disable-pip-version-check"]
        steps = [[*install, f"{ROOT}[{framework}]"]]
        if first := FIRST.get(framework):
            steps = [[*install, *first], [*install, "--no-build-isolation", f"{ROOT}[{framework}]"]]
        steps.append([str(python), "-c", f"import {PARTS.get(framework, framework)}"])
        for step in steps:
            made = subprocess.run(
                step, env={**os.environ, **BUILD.get(framework, {})}, capture_output=True, text=True, check=False
            )
            if made.returncode:
                reason = next(reversed(made.stderr.strip().splitlines()), f"exit code {made.returncode}")
                print(f"{framework}: not here, its suites are left out: {reason}", flush=True)
                return None
        done.touch()
    return python


def trained(suite: str, shape: Shape, framework: str, python: Path, reports: Path) -> list[Row]:
    """One row for each case."""
    command = [sys.executable, "-m", "pytest", str(ROOT / "suites" / suite), "-q", *shape.options()]
    command += ["--aisbench-frameworks", f"{framework}={python}", "--aisbench-reports", str(reports)]
    command += ["--aisbench-tester", "none"]
    answer = subprocess.run(
        [python, "-c", VERSION, PACKAGES.get(framework, framework)], capture_output=True, text=True, check=False
    )
    named = f"{framework} {answer.stdout.strip()}"
    started = time.monotonic()
    try:
        done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, timeout=LONGEST_S, check=False)
    except subprocess.TimeoutExpired:
        return [Row(suite, named, "-", "-", "-", f"{LONGEST_S} s", "not ended")]
    wall = time.monotonic() - started
    if done.returncode:
        print(done.stdout[-4000:], done.stderr[-2000:], sep="\n")
    results = reports / "latest" / "results.json"
    cases: list[dict[str, Any]] = json.loads(results.read_text())["cases"] if results.exists() else []
    return [
        Row(
            case["id"] + (" by V1" if shape.way == "v1" else ""),
            named,
            _number(case["metrics"]["throughput"]["value"], ".1f"),
            _number(case["metrics"]["accuracy"]["value"], ".4f"),
            compared(list(checksums(reports, case["id"]).values()), shape),
            f"{wall / len(cases):.0f} s",
            str(case["verdict"]),
        )
        for case in cases
    ] or [Row(suite, named, "-", "-", "-", f"{wall:.0f} s", f"exit {done.returncode}")]


def checksums(reports: Path, case: str) -> dict[str, list[str]]:
    """Of the weights that the ranks of each node ended with, as they said in its log."""
    logs = sorted((reports / "latest" / "logs" / case / "1").glob("worker-*.log"))
    return {log.stem: CHECKSUM.findall(log.read_text()) for log in logs}


def compared(told: list[list[str]], shape: Shape) -> str:
    """Whether the ranks that trained together have the same weights; every one must have said which."""
    if [len(of_node) for of_node in told] != [shape.devices] * shape.nodes:
        return f"of {sum(map(len, told))} ranks only"
    groups = told if shape.way == "single" else [[one for of_node in told for one in of_node]]
    if any(len(set(group)) > 1 for group in groups):
        return "differ"
    return f"same on {len(groups[0])} rank{'s' * (len(groups[0]) > 1)}"


def _number(value: float | None, form: str) -> str:
    return "-" if value is None else format(value, form)


def main() -> int:
    parser = argparse.ArgumentParser(prog="scripts/frameworks")
    parser.add_argument("frameworks", nargs="*", metavar="NAME", help=f"of {', '.join(SUITES)} (default: all)")
    parser.add_argument("--python", type=Path, help="one that has the framework already; for a single NAME")
    parser.add_argument("--environments", type=Path, default=ROOT, help="where they are made (default: here)")
    parser.add_argument("--shapes", type=Shape.parse_all, help=f"default: {SHAPES}, and for some frameworks more")
    parser.add_argument("--suites", type=lambda text: text.split(","), help="default: all of the framework")
    options = parser.parse_args()
    wanted = options.frameworks or list(SUITES)
    if unknown := set(wanted) - set(SUITES):
        parser.error(f"unknown framework {min(unknown)!r}; there are {', '.join(SUITES)}")
    suites = [suite for framework in wanted for suite in SUITES[framework]]
    if options.suites and (unknown := set(options.suites) - set(suites)):
        parser.error(f"unknown suite {min(unknown)!r}; there are {', '.join(suites)}")
    if options.python and len(wanted) != 1:
        parser.error("--python is for a single framework: name it")
    rows: list[Row] = []
    for framework in wanted:
        # Without resolving: the link of a virtual environment is what makes it one.
        python = options.python.absolute() if options.python else environment(framework, options.environments)
        if python is None:
            continue
        HEAD.show()
        RULE.show()
        for suite in [name for name in SUITES[framework] if name in (options.suites or suites)]:
            for shape in options.shapes or Shape.parse_all(SHAPES + MORE_SHAPES.get(framework, "")):
                with tempfile.TemporaryDirectory(prefix="aisbench-frameworks-") as folder:
                    for row in trained(suite, shape, framework, python, Path(folder)):
                        row.show()
                        rows.append(row)
    return 0 if rows and all(row.is_good() for row in rows) else 1


if __name__ == "__main__":
    sys.exit(main())
