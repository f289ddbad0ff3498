"""The parts of the guard by name: what each measures, and whether a figure of it can turn the guard red."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from typing import Any

import fleet
import jobs
import load
import localcloud
import report
import staging
import verdict
from figures import Figure

_LOAD_ROUNDS = 7
_OURS_S = 0.25  # what may be ours of a start-up


@dataclass(frozen=True)
class Part:
    measure: Callable[[bool], list[Figure]]  # given whether the slow rows are wanted
    guarded: bool = False
    slow: bool = False  # only with --full, or by name


def _load() -> Iterator[Figure]:
    """Imports and start-up. A ratio near 1 hides what is ours: what the plugin adds is given in percent."""
    numbers = load.measure(_LOAD_ROUNDS)
    unused = "what the plugin adds to a run that does not use it"
    if exact := numbers.get("unused_instructions_ratio"):
        yield Figure("unused", f"{unused}, instructions", 100 * (exact - 1), "%", target=2.0, guarded=True, slack=0.5)
    else:
        yield Figure("unused_cpu", f"{unused}, CPU", 100 * (numbers["unused_cpu_ratio"] - 1), "%", target=2.0)
    alone = numbers["pytest_alone_s"] + numbers["sdk_imports_s"]
    peer = f"pytest, the vendor's imports and {_OURS_S} s"
    yield Figure(
        "startup", "a run of one job of no length", numbers["startup_s"], "s", peer, alone + _OURS_S, target=1.0
    )
    alone = 1000 * (numbers["pytest_alone_cpu_s"] + numbers["sdk_imports_cpu_s"])
    peer, cpu = "pytest and the vendor's imports", 1000 * numbers["startup_cpu_s"]
    yield Figure("startup_cpu", "CPU of a run of one job", cpu, "ms", peer, alone, guarded=True)
    jobs_command, python = numbers["jobs_command_ms"], ("`python -c pass`", numbers["python_ms"])
    what = "`aisbench jobs` on an empty ledger"
    yield Figure("jobs_command", what, jobs_command, "ms", *python, target=120.0, target_of_value=True)
    python = ("`python -c pass`", numbers["python_cpu_ms"])
    yield Figure("jobs_command_cpu", f"{what}: CPU", numbers["jobs_command_cpu_ms"], "ms", *python, guarded=True)


def _staging(*, full: bool) -> Iterator[Figure]:
    files, mib = 2000, 256 if full else 64
    numbers = staging.measure(files=files, mib=mib, rounds=3 if full else 2)
    small, large, far = f"{files:,} files of 10 KiB", f"4 files of {mib} MiB", "1,000 files of 10 KiB at 20 ms RTT"
    for way, client in {"vendor": "the vendor's client", "obstore": "obstore"}.items():
        if f"small_{way}_files_per_s" in numbers:
            seconds = files / numbers[f"small_{way}_files_per_s"]
            yield _beside_obstore(f"small_{way}", f"{small}, by {client}", seconds, numbers)
            cpu = numbers[f"small_{way}_cpu_ms_per_file"]
            yield Figure(f"small_{way}_cpu", f"{small}, by {client}: CPU per file", cpu, "ms")
        if f"large_{way}_mib_per_s" in numbers:
            seconds = 4 * mib / numbers[f"large_{way}_mib_per_s"]
            yield _beside_obstore(f"large_{way}", f"{large}, by {client}", seconds, numbers)
        elif f"large_{way}_per_obstore" in numbers:
            ratio = numbers[f"large_{way}_per_obstore"]
            yield Figure(f"large_{way}", f"{large}, by {client}: time beside obstore's own", ratio, target=1.05)
        if f"far_{way}_s" in numbers:
            yield Figure(f"far_{way}", f"{far}, by {client}", numbers[f"far_{way}_s"], "s", target=1.0)
    yield Figure("again_requests", "requests for a tree that is there already", numbers["again_requests"], target=1.0)


def _beside_obstore(name: str, what: str, seconds: float, numbers: Mapping[str, float]) -> Figure:
    """Only our own way through obstore can be held to what obstore itself reaches."""
    ratio = numbers.get(f"{name}_per_obstore")
    if ratio is None:
        return Figure(name, what, seconds, "s")
    target = 1.05 if name.endswith("obstore") else None
    return Figure(name, what, seconds, "s", "obstore itself", seconds / ratio, target=target)


def _local_cloud() -> Iterator[Figure]:
    numbers = localcloud.measure()
    for kind, what in localcloud.KINDS.items():
        if kind.startswith("nginx") or f"{kind}_cpu_us" not in numbers:
            continue
        sink = numbers.get(f"nginx_{kind}_cpu_us")
        peer: Any = (f"nginx, {kind.upper()}", sink) if sink else ()
        yield Figure(f"{kind}_cpu", f"{what}: CPU of the server", numbers[f"{kind}_cpu_us"], "µs", *peer)
    yield Figure("start", "a private cloud, from its start to its card", numbers["startup_ms"], "ms")
    yield Figure("start_cpu", "CPU of that", numbers["startup_cpu_ms"], "ms")


PARTS: Mapping[str, Part] = {
    "jobs": Part(lambda full: jobs.measure(full=full), guarded=True),
    "load": Part(lambda _: list(_load()), guarded=True),
    "flight": Part(lambda full: jobs.measure_flight(full=full)),
    "fleet": Part(lambda full: fleet.measure(full=full)),
    "staging": Part(lambda full: list(_staging(full=full))),
    "localcloud": Part(lambda _: list(_local_cloud())),
    "verdict": Part(lambda _: verdict.measure(), slow=True),
    "page": Part(lambda _: report.measure(), slow=True),
}
