"""Train the suites with their real frameworks on the local cloud, and print what was seen.

    scripts/frameworks [NAME...] [--python FILE] [--shapes 1x1,1x2,2x2,2x1-single,2x1-v1] [--suites NAME,...]

Each framework is an extra of this project. It gets a virtual environment, `.venv-NAME`, which is made once; `--python`
names one that is there already. A row of the table is one case. An extra that cannot be installed here is one line. The
exit code is 0 if something was trained, and all of it passed.
"""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import sys
import tempfile
import time
from dataclasses import dataclass
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parents[2]
SUITES = {
    "mindspore": ("resnet50_cifar10", "resnet50", "bert"),
    "paddle": ("paddle_mlp",),
    "horovod": ("horovod_mnist",),
}
PACKAGES = {"paddle": "paddlepaddle"}  # on PyPI, where it is not called as an import names it
# What must be there before the extra is: Horovod is compiled against the TensorFlow that it finds, here with Gloo.
FIRST = {"horovod": ("tensorflow-cpu==2.12.1", "setuptools<81", "wheel", "hatchling")}
BUILD = {"horovod": {"HOROVOD_WITH_TENSORFLOW": "1", "HOROVOD_WITH_GLOO": "1", "HOROVOD_WITHOUT_MPI": "1"}}
SHAPES = "1x1,1x2,2x2,2x1-single"
MORE_SHAPES = {"paddle": ",1x2-v1,2x2-v1"}  # its container is told other things by the other API
WAYS = {"single": ["--aisbench-single-server"], "v1": ["--aisbench-modelarts-version", "V1"]}
LONGEST_S = 1800
VERSION = "import importlib.metadata, sys; print(importlib.metadata.version(sys.argv[1]))"
HEAD = ("case", "framework", "samples/s", "accuracy", "wall", "verdict")


@dataclass(frozen=True)
class Shape:
    nodes: str
    devices: str
    way: str

    @classmethod
    def parse(cls, text: str) -> Shape:
        shape, _, way = text.partition("-")
        nodes, _, devices = shape.partition("x")
        if not (nodes.isdecimal() and devices.isdecimal()) or way not in {"", *WAYS}:
            raise argparse.ArgumentTypeError(f"{text!r} is not a shape such as 2x1, 2x1-single or 2x1-v1")
        return cls(nodes, devices, way)

    def options(self) -> list[str]:
        return ["--nodes", self.nodes, "--aisbench-devices", self.devices, *WAYS.get(self.way, [])]


def environment(framework: str) -> Path | None:
    """The Python of a virtual environment with the extra, made where there is none; None where it cannot be made."""
    folder = ROOT / f".venv-{framework}"
    python = folder / "bin" / "python"
    done = folder / "installed"
    if not done.exists():
        print(f"{framework}: installing pytest-aisbench[{framework}] into {folder.name}", flush=True)
        subprocess.run([sys.executable, "-m", "venv", "--clear", folder], check=True)
        install = [str(python), "-m", "pip", "install", "--quiet", "--disable-pip-version-check"]
        steps = [[*install, f"{ROOT}[{framework}]"]]
        if first := FIRST.get(framework):
            steps = [[*install, *first], [*install, "--no-build-isolation", f"{ROOT}[{framework}]"]]
        steps.append([str(python), "-c", f"import {framework}"])
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


def trained(suite: str, shape: Shape, framework: str, python: Path, reports: Path) -> list[tuple[str, ...]]:
    """One row for each case."""
    command = [sys.executable, "-m", "pytest", str(ROOT / "suites" / suite), "-q", *shape.options()]
    command += ["--aisbench-frameworks", f"{framework}={python}", "--aisbench-reports", str(reports)]
    command += ["--aisbench-tester", "none"]
    started = time.monotonic()
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, timeout=LONGEST_S, check=False)
    wall = time.monotonic() - started
    results = reports / "latest" / "results.json"
    cases: list[dict[str, Any]] = json.loads(results.read_text())["cases"] if results.exists() else []
    if not cases:
        print(done.stdout[-2000:], done.stderr[-2000:], sep="\n")
    version = subprocess.run(
        [python, "-c", VERSION, PACKAGES.get(framework, framework)], capture_output=True, text=True, check=False
    )
    named = f"{framework} {version.stdout.strip()}"
    return [
        (
            case["id"] + (" by V1" if shape.way == "v1" else ""),
            named,
            _number(case["metrics"]["throughput"]["value"], ".1f"),
            _number(case["metrics"]["accuracy"]["value"], ".4f"),
            f"{wall / len(cases):.0f} s",
            str(case["verdict"]),
        )
        for case in cases
    ] or [(suite, named, "-", "-", f"{wall:.0f} s", f"exit {done.returncode}")]


def _number(value: float | None, form: str) -> str:
    return "-" if value is None else format(value, form)


def show(row: tuple[str, ...]) -> None:
    widths = (28, 18, 11, 9, 7, 0)
    print("  ".join(cell.ljust(width) for cell, width in zip(row, widths, strict=True)), flush=True)


def main() -> int:
    parser = argparse.ArgumentParser(prog="scripts/frameworks")
    parser.add_argument("frameworks", nargs="*", metavar="NAME", help=f"of {', '.join(SUITES)} (default: all)")
    parser.add_argument("--python", type=Path, help="one that has the framework already; for a single NAME")
    parser.add_argument("--shapes", default="", help=f"default: {SHAPES}, and for some frameworks more")
    parser.add_argument("--suites", default="", help="default: all of the framework")
    options = parser.parse_args()
    wanted = options.frameworks or list(SUITES)
    if unknown := set(wanted) - set(SUITES):
        parser.error(f"unknown framework {min(unknown)!r}; there are {', '.join(SUITES)}")
    if options.python and len(wanted) != 1:
        parser.error("--python is for a single framework: name it")
    verdicts = set()
    for framework in wanted:
        # Without resolving: the link of a virtual environment is what makes it one.
        python = options.python.absolute() if options.python else environment(framework)
        if python is None:
            continue
        told = options.shapes or SHAPES + MORE_SHAPES.get(framework, "")
        shapes = [Shape.parse(text) for text in told.split(",")]
        show(HEAD)
        for suite in options.suites.split(",") if options.suites else SUITES[framework]:
            for shape in shapes:
                with tempfile.TemporaryDirectory(prefix="aisbench-frameworks-") as folder:
                    for row in trained(suite, shape, framework, python, Path(folder)):
                        show(row)
                        verdicts.add(row[-1])
    return 0 if verdicts == {"PASSED"} else 1


if __name__ == "__main__":
    sys.exit(main())
