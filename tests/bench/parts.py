"""The parts of the guard by name: what each measures, and whether a figure of it can turn the guard red."""

from __future__ import annotations

import importlib
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from typing import Any

import fleet
import jobs
import report
import startup
import verdict
from figures import Figure


@dataclass(frozen=True)
class Part:
    measure: Callable[[bool], list[Figure]]  # given whether the slow rows are wanted
    guarded: bool = False
    slow: bool = False  # only with --full, or by name


def _numbers(module: str, **options: Any) -> Mapping[str, float]:
    """What a benchmark measures, by its own names; nothing where it has no `measure` yet."""
    try:
        measure: Callable[..., Mapping[str, float]] = importlib.import_module(module).measure
    except (ModuleNotFoundError, AttributeError) as error:
        print(error)
        return {}
    return measure(**options)


def _load() -> Iterator[Figure]:
    for name, value in _numbers("load").items():
        if name.endswith("ratio"):
            what = f"what the plugin adds to a plain run, {name.removesuffix('ratio').strip('_').replace('_', ' ')}"
            exact = name.startswith("instructions")
            yield Figure(name, what, 100 * (value - 1), "%", target=2.0, guarded=exact, slack=0.5)


def _staging(*, full: bool) -> Iterator[Figure]:
    files, mib = 2000, 256 if full else 64
    numbers = _numbers("staging", files=files, mib=mib, rounds=3 if full else 2)
    if not numbers:
        return
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
    numbers = _numbers("localcloud")
    if not numbers:
        return
    kinds: Mapping[str, str] = importlib.import_module("localcloud").KINDS
    for kind, what in kinds.items():
        if kind.startswith("nginx") or f"{kind}_cpu_us" not in numbers:
            continue
        sink = numbers.get(f"nginx_{kind}_cpu_us")
        peer: Any = (f"nginx, {kind.upper()}", sink) if sink else ()
        yield Figure(f"{kind}_cpu", f"{what}: CPU of the server", numbers[f"{kind}_cpu_us"], "µs", *peer)
    yield Figure("start", "a private cloud, from its start to its card", numbers["startup_ms"], "ms")
    yield Figure("start_cpu", "CPU of that", numbers["startup_cpu_ms"], "ms")


PARTS: Mapping[str, Part] = {
    "jobs": Part(lambda full: jobs.measure(full=full), guarded=True),
    "startup": Part(lambda _: startup.measure(), guarded=True),
    "load": Part(lambda _: list(_load()), guarded=True),
    "flight": Part(lambda full: jobs.measure_flight(full=full)),
    "fleet": Part(lambda full: fleet.measure(full=full)),
    "staging": Part(lambda full: list(_staging(full=full))),
    "localcloud": Part(lambda _: list(_local_cloud())),
    "verdict": Part(lambda _: verdict.measure(), slow=True),
    "page": Part(lambda _: report.measure(), slow=True),
}
