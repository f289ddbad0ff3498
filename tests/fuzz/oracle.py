"""What the verdict on a set of result files must be, worked out from the rules alone.

This module imports nothing of the project: it would agree with our mistakes. It knows the rules of docs/reference.md:
which files a job leaves, what a number is, what a claim allows. It leaves room where noise decides: a value that is
noise-tested and close to its bound may be undecided, but a value inside never fails, and one outside never passes.
"""

from __future__ import annotations

import math
import unicodedata
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

PASSED, FAILED, INCONCLUSIVE = "PASSED", "FAILED", "INCONCLUSIVE"
NEAR = 0.15  # of a bound: closer than that the noise of a speed may leave it undecided
_ROUNDING = 1e-9  # of a bound: closer than that the last digit decides, and either way is right
_DIGITS = frozenset("0123456789+-.eE")
_LARGEST_FILE = 256


@dataclass(frozen=True)
class Claim:
    """One line of thresholds.toml."""

    metric: str
    at_least: float | None = None
    at_most: float | None = None
    reference: float | None = None
    lower: float | None = None
    upper: float | None = None
    per: str | None = None
    excused_until: str = ""  # the last day of an expected failure


@dataclass(frozen=True)
class ResultSet:
    """What a job left, and what was claimed of it."""

    alone: bool  # every node trains alone
    nodes: int
    devices: int
    metrics: Mapping[str, tuple[str, float]]  # unit and limit by name
    claims: Sequence[Claim]
    files: Mapping[str, bytes]
    today: str = "2027-01-15"
    history: Sequence[float] = field(default=())  # of the throughput, all of them close to what was measured
    max_trials: int = 1

    @property
    def world(self) -> int:
        return self.nodes * self.devices


def allowed(case: ResultSet) -> tuple[frozenset[str], str]:
    """The verdicts that are right, and why."""
    values: dict[str, list[float]] = {}
    for name in case.metrics:
        try:
            values[name] = _values(case, name)
        except _WrongError as why:
            return frozenset({FAILED}), f"{name}: {why}"
    if wrong := _ranks(case) or _stranger(case) or _contradicted(case, values["accuracy"][0]):
        return frozenset({FAILED}), wrong
    for name in ("throughput", "accuracy"):
        if not any(claim.metric == name for claim in case.claims):
            return frozenset({FAILED}), f"no claim on {name}"
    verdicts, reason = {PASSED}, "all is well"
    for claim in case.claims:
        for value in values[claim.metric]:
            right = _judged(case, claim, value)
            if right == {FAILED}:
                return frozenset(right), f"{claim} at {value}"
            if FAILED in right:
                verdicts = {FAILED, INCONCLUSIVE, *(verdicts & right)}
                reason = f"{claim} just missed at {value}"
            elif INCONCLUSIVE in right:
                verdicts |= {INCONCLUSIVE}
                reason = f"{claim} almost missed at {value}" if PASSED in verdicts else reason
    return frozenset(verdicts), reason


def _judged(case: ResultSet, claim: Claim, value: float) -> set[str]:
    low, high = _bounds(case, claim)
    gaps = [(value - low) / (abs(low) or 1.0), (high - value) / (abs(high) or 1.0)]
    gap = min(gap for gap, bound in zip(gaps, (low, high), strict=True) if math.isfinite(bound))
    is_excused = bool(claim.excused_until) and case.today <= claim.excused_until
    if abs(gap) <= _ROUNDING:
        return {PASSED, FAILED, INCONCLUSIVE}
    is_noisy = claim.metric == "throughput" or claim.reference is not None
    is_near = is_noisy and abs(gap) <= NEAR
    if gap > 0 or is_excused:
        return {PASSED, INCONCLUSIVE} if is_near else {PASSED}
    return {FAILED, INCONCLUSIVE} if is_near else {FAILED}


def _bounds(case: ResultSet, claim: Claim) -> tuple[float, float]:
    nodes = 1 if case.alone else case.nodes
    times = {None: 1, "node": nodes, "device": nodes * case.devices}[claim.per]
    if claim.reference is None:
        low, high = claim.at_least, claim.at_most
    else:
        size = abs(claim.reference) if claim.reference else 1.0
        low = None if claim.lower is None else claim.reference + claim.lower * size
        high = None if claim.upper is None else claim.reference + claim.upper * size
    return (-math.inf if low is None else low * times), (math.inf if high is None else high * times)


class _WrongError(Exception):
    """Why a metric has no value."""


def _values(case: ResultSet, name: str) -> list[float]:
    """The values that must meet the claims: one of the whole job, or one of each node that trains alone."""
    if name != "throughput":
        files = [f"{name}_{node}.json" for node in range(case.nodes)] if case.alone else [f"{name}.json"]
        return [_number(case, name, file) for file in files]
    ranks = [_number(case, name, file) for file in _rank_files(case)]
    for at, value in enumerate(ranks):
        others = sorted(ranks[:at] + ranks[at + 1 :])
        if not others:
            break
        lower, upper = others[(len(others) - 1) // 2], others[len(others) // 2]
        if value * 100 < lower or value > upper * 100:
            raise _WrongError(f"rank {at} at {value}, the others at {lower} to {upper}")
    limit = case.metrics[name][1]
    parts = [ranks[at : at + case.devices] for at in range(0, case.world, case.devices)] if case.alone else [ranks]
    sums = [math.fsum(part) for part in parts]
    if max(sums) > limit:
        raise _WrongError(f"{max(sums)} in all is beyond {limit}")
    return sums


def _rank_files(case: ResultSet) -> list[str]:
    if not case.alone:
        return [f"throughput_{rank}.json" for rank in range(case.world)]
    return [f"{node}/throughput_{card}.json" for node in range(case.nodes) for card in range(case.devices)]


def _number(case: ResultSet, name: str, file: str) -> float:
    value = _parsed(case.files.get(file), file)
    unit, limit = case.metrics[name]
    if abs(value) > limit:
        raise _WrongError(f"{file} is {value}, beyond {limit}")
    if name == "throughput" and value <= 0:
        raise _WrongError(f"{file} is {value}")
    if name == "accuracy" and not unit and not 0 <= value <= 1:
        raise _WrongError(f"{file} is {value}, no ratio")
    return value


def _parsed(content: bytes | None, file: str) -> float:
    if content is None:
        raise _WrongError(f"{file} is missing")
    text = content.decode("utf-8", "replace").strip()
    if len(content) > _LARGEST_FILE or not text or not _DIGITS.issuperset(text):
        raise _WrongError(f"{file} is no number")
    try:
        value = float(text)
    except ValueError:
        raise _WrongError(f"{file} is no number") from None
    if not math.isfinite(value):
        raise _WrongError(f"{file} is not finite")
    return value


def _ranks(case: ResultSet) -> str:
    if case.alone and "ranksize.json" not in case.files:
        return ""
    try:
        size = _parsed(case.files.get("ranksize.json"), "ranksize.json")
    except _WrongError as why:
        return str(why)
    right = {case.world, case.devices} if case.alone else {case.world}
    return "" if size in right else f"ranksize.json is {size}"


def _contradicted(case: ResultSet, accuracy: float) -> str:
    """Nodes that train together: the accuracy of one, if it misses what that of all meets."""
    for file in [] if case.alone else [f"accuracy_{node}.json" for node in range(case.nodes)]:
        text = case.files.get(file, b"").decode("utf-8", "replace").strip()
        try:
            is_wild = text.lower().lstrip("+-") in {"nan", "inf", "infinity"}
            value = math.nan if is_wild else _parsed(case.files.get(file), file)
        except _WrongError as why:
            if "not finite" not in str(why):
                continue  # no number: a file of the script's own
            value = math.nan
        for claim in case.claims:
            low, high = _bounds(case, claim)
            if claim.metric == "accuracy" and low <= accuracy <= high and not low <= value <= high:
                return f"{file} is {value}, but that of all {accuracy}"
    return ""


def _stranger(case: ResultSet) -> str:
    """A file that is called like a numbered result, and is none of this job's."""
    owed = set(_rank_files(case))
    # Of each node: owed where nodes train alone, and allowed beside the value of all, as ais-bench-stubs writes it.
    owed |= {f"{name}_{node}.json" for name in case.metrics if name != "throughput" for node in range(case.nodes)}
    for file in case.files.keys() - owed:
        name = unicodedata.normalize("NFKC", file.split("/")[-1]).casefold()
        if not name.endswith(".json"):
            continue
        metric, _, digits = name[: -len(".json")].rpartition("_")
        if metric in case.metrics and digits[digits[:1] in {"+", "-"} :].isdecimal() and digits.isascii():
            return f"{file} is of no rank and no node"
    return ""
