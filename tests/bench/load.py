"""What a pytest run that does not use us pays for us: an empty test with the plugin, and with it disabled.

    python tests/bench/load.py [ROUNDS]

Interleaved, the order changing with each round; pytest-html, allure-pytest and xdist are loaded in both.
"""

from __future__ import annotations

import os
import resource
import statistics
import subprocess
import sys
import tempfile
import time
from pathlib import Path

WITHOUT = ("-p", "no:pytest_aisbench.plugin")


def measured(folder: Path, *arguments: str) -> tuple[float, float]:
    """Wall and CPU seconds of one run."""
    command = [sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider", *arguments]
    before = resource.getrusage(resource.RUSAGE_CHILDREN)
    start = time.perf_counter()
    subprocess.run(command, cwd=folder, check=True, stdout=subprocess.DEVNULL, env=os.environ | {"COLUMNS": "80"})
    wall = time.perf_counter() - start
    after = resource.getrusage(resource.RUSAGE_CHILDREN)
    return wall, after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime


def main() -> None:
    rounds = int(sys.argv[1]) if len(sys.argv) > 1 else 30
    runs: dict[str, list[tuple[float, float]]] = {"with": [], "without": []}
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        (folder / "test_empty.py").write_text("def test_empty():\n    pass\n")
        measured(folder)
        measured(folder, *WITHOUT)
        for number in range(rounds):
            for kind in ("with", "without") if number % 2 else ("without", "with"):
                runs[kind].append(measured(folder, *(WITHOUT if kind == "without" else ())))
    print(f"{'plugin':<10}{'wall ms':>10}{'cpu ms':>10}   median of {rounds}")
    medians = {}
    for kind, values in runs.items():
        wall, cpu = (statistics.median(column) * 1000 for column in zip(*values, strict=True))
        medians[kind] = (wall, cpu)
        print(f"{kind:<10}{wall:>10.1f}{cpu:>10.1f}")
    ratios = [with_ / without for with_, without in zip(medians["with"], medians["without"], strict=True)]
    print(f"{'ratio':<10}{ratios[0]:>10.3f}{ratios[1]:>10.3f}")


if __name__ == "__main__":
    main()
