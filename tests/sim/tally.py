"""What simulations have met so far: seeds, failures, and faults by platform, kind and step. Tallies add up.

`python -m tests.sim --tally FILE` adds what it plays to the file after every few seeds, so that a million faults can be
played in many sittings; without `--from` it goes on after the last seed of the file.
"""

from __future__ import annotations

import json
from collections import Counter
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, NamedTuple

BESIDE = "beside"  # the threads beside the steps: the lease and results.json
STEPS = ("OPEN", "TAKEOVER", "STAGE", "SUBMIT", "WATCH", "HARVEST", "JUDGE", "CANCEL", "UPLOAD", "END", BESIDE)
DISK = ("disk error", "disk full", "killed in a commit", "power cut in a commit")
NETWORK = (
    *("answer lost", "connection refused", "killed at a request", "late request", "repeated request", "request lost"),
    *("server error", "slow answer", "throttled", "torn answer"),
)
LAGS, SKEWED = "list lags", "clock skewed"
FATES = (
    "clock stepped",
    "disk full for a while",
    "interrupted",
    "killed",
    "stop typed by a person",
    "stopped for a while",
)
KINDS = tuple(sorted((*DISK, *NETWORK, *FATES, LAGS, SKEWED)))


class Failure(NamedTuple):
    seed: int
    rule: str
    text: str


@dataclass
class Tally:
    """Counts of the simulations that were played."""

    seeds: int = 0
    failures: list[Failure] = field(default_factory=list)
    met: Counter[tuple[str, str, str]] = field(default_factory=Counter)  # by platform, kind and step
    platforms: Counter[str] = field(default_factory=Counter)
    virtual_s: float = 0.0
    cpu_s: float = 0.0
    next_seed: int = 0  # all seeds that were played are smaller

    def add(self, other: Tally) -> None:
        self.seeds += other.seeds
        self.failures += other.failures
        self.met += other.met
        self.platforms += other.platforms
        self.virtual_s += other.virtual_s
        self.cpu_s += other.cpu_s
        self.next_seed = max(self.next_seed, other.next_seed)

    def save(self, file: Path) -> None:
        met: dict[str, dict[str, dict[str, int]]] = {}
        for (platform, kind, step), count in sorted(self.met.items()):
            met.setdefault(platform, {}).setdefault(kind, {})[step] = count
        document = {
            "seeds": self.seeds,
            "next_seed": self.next_seed,
            "faults": self.met.total(),
            "virtual_s": round(self.virtual_s),
            "cpu_s": round(self.cpu_s, 1),
            "platforms": dict(sorted(self.platforms.items())),
            "failures": [failure._asdict() for failure in self.failures],
            "met": met,
        }
        draft = file.with_name(f"{file.name}.tmp")
        draft.write_text(json.dumps(document, indent=1) + "\n")
        draft.replace(file)

    @classmethod
    def load(cls, file: Path) -> Tally:
        """The tally in a file; an empty one if there is no file yet."""
        if not file.exists():
            return cls()
        data: dict[str, Any] = json.loads(file.read_text())
        met = Counter(
            {
                (platform, kind, step): count
                for platform, kinds in data["met"].items()
                for kind, steps in kinds.items()
                for step, count in steps.items()
            }
        )
        failures = [Failure(**failure) for failure in data["failures"]]
        platforms = Counter[str](data["platforms"])
        return cls(data["seeds"], failures, met, platforms, data["virtual_s"], data["cpu_s"], data["next_seed"])

    def line(self) -> str:
        shares = ", ".join(f"{name} {count:,}" for name, count in sorted(self.platforms.items()))
        return (
            f"{self.seeds:,} seeds ({shares}), {self.met.total():,} faults met, {self.virtual_s / 3600:,.0f} hours of"
            f" virtual time, {self.cpu_s / 60:,.0f} minutes of CPU: {len(self.failures)} failed"
        )

    def table(self) -> str:
        """How often each kind of fault met each step, as Markdown: on V2 / V1 / Apulis. A letter says why it cannot."""
        names, notes = ("V2", "V1", "apulis"), dict[str, str]()
        lines = [f"| fault ({' / '.join(names)}) | {' | '.join(STEPS)} |", "|---|" + "---:|" * len(STEPS)]
        for kind in KINDS:
            cells = []
            for step in STEPS:
                counts = [self._cell(name, kind, step, notes) for name in names]
                cells.append(counts[0] if len(set(counts)) == 1 and not counts[0].isdigit() else " / ".join(counts))
            lines.append(f"| {kind} | {' | '.join(cells)} |")
        return "\n".join([*lines, "", *(f"- {mark}: {why}" for why, mark in notes.items())])

    def _cell(self, platform: str, kind: str, step: str, notes: dict[str, str]) -> str:
        count = self.met[platform, kind, step]
        why = "" if count else why_never(platform, kind, step)
        return notes.setdefault(why, f"({chr(ord('a') + len(notes))})") if why else str(count)

    def unmet(self) -> list[tuple[str, str, str]]:
        """What could have met a step of a platform, and did not."""
        cells = ((platform, kind, step) for platform in self.platforms for kind in KINDS for step in STEPS)
        return [cell for cell in cells if not self.met[cell] and not why_never(*cell)]


def why_never(platform: str, kind: str, step: str) -> str:
    """Why this kind of fault cannot meet this step; empty if it can."""
    if kind == SKEWED and step != "OPEN":
        return "a clock is wrong from the start: every step meets that, and it is counted once"
    if kind == LAGS and step not in {"OPEN", "SUBMIT", "WATCH", "CANCEL"}:
        return "the step asks for no list of jobs"
    if kind == LAGS and step == "WATCH" and platform == "apulis":
        return "Apulis is asked about each job by itself"
    if kind in NETWORK and step == "END":
        return "the end of a run writes to the disk alone; what it sends to the Tester is counted at UPLOAD"
    if kind in NETWORK and step == BESIDE:
        return "the lease and results.json need the disk alone"
    if kind in NETWORK and step == "JUDGE" and platform == "V1":
        return "V1 has no events to ask for, and nothing else is asked for there"
    if kind in FATES and step == BESIDE:
        return "befalls the whole process, and is counted at its step"
    return ""
