"""The claims of `thresholds.toml`, scoped by platform, maybe framework, then shape."""

from __future__ import annotations

import math
from collections.abc import Callable, Collection, Iterable, Mapping
from datetime import date, datetime
from typing import Any

from pytest_aisbench.domain.case import Case, Shape, Workload
from pytest_aisbench.domain.metric import ACCURACY, SCALING, STEADY_THROUGHPUT, THROUGHPUT, TIME_TO_ACCURACY
from pytest_aisbench.domain.threshold import ExpectedFailure, Threshold
from pytest_aisbench.errors import UsageFault
from pytest_aisbench.settings import places
from pytest_aisbench.settings.option_types import FRAMEWORKS

ANY = "*"
EXPECTED_FAILURE = "expected_failure"

NUMBERS = ("reference", "lower", "upper", "at_least", "at_most")
_CLAIM = frozenset({*NUMBERS, "unit", "per", "base", EXPECTED_FAILURE})
_LONGEST_REASON = 200
_POSITIVE = frozenset({THROUGHPUT, STEADY_THROUGHPUT, TIME_TO_ACCURACY, ACCURACY, SCALING})


def read(
    document: places.Document, workload: Workload, platforms: Collection[str]
) -> dict[tuple[str, str], dict[str, Threshold]]:
    claims: dict[tuple[str, str], dict[str, Threshold]] = {}
    for platform, shapes in document.data.items():
        if platform not in platforms and platform != ANY:
            advice = f"""known: {", ".join(sorted(platforms))} and "{ANY}" """.strip()
            raise document.fault(f"unknown platform {platform!r}", platform, advice=advice)
        for shape, rows in _tables(document, shapes, platform).items():
            if shape in FRAMEWORKS:
                for inner, claimed in _tables(document, rows, platform, shape).items():
                    scope = f"{platform}.{shape}", inner
                    claims[scope] = _scope(document, workload, (platform, shape, inner), claimed)
            else:
                claims[platform, shape] = _scope(document, workload, (platform, shape), rows)
    return claims


def expired(cases: Iterable[Case], today: str) -> list[str]:
    """A line for every expected failure that does not excuse a miss any more."""
    found = {
        f"{expected.place}: {claim.metric} was expected to fail until {expected.until} ({expected.reason}): it counts"
        for case in cases
        for claim in case.thresholds
        if (expected := claim.expected_failure) and not expected.holds(today)
    }
    return sorted(found)


def _scope(document: places.Document, workload: Workload, keys: tuple[str, ...], rows: Any) -> dict[str, Threshold]:
    """All claims on one shape, which is the last of the keys."""
    if keys[-1] != ANY:
        try:
            Shape.parse(keys[-1])
        except UsageFault as fault:
            raise document.fault(fault.message, *keys, advice=fault.advice) from None
    claimed = _tables(document, rows, *keys)
    return {metric: _threshold(document, workload, (*keys, metric), row) for metric, row in claimed.items()}


def _tables(document: places.Document, value: Any, *keys: str) -> dict[str, Any]:
    if not isinstance(value, dict):
        advice = 'claims stand in [<platform>."<shape>"], each as metric = { … }'
        raise document.fault(f"{'.'.join(keys)} is not a table", *keys, advice=advice)
    return value


def _threshold(document: places.Document, workload: Workload, keys: tuple[str, ...], row: Any) -> Threshold:
    metric = keys[-1]
    claim = _tables(document, row, *keys)

    def fault(message: str, key: str = "", advice: str = "") -> UsageFault:
        where = f"{metric}.{key}" if key else metric
        return document.fault(f"{where}: {message}", *keys, advice=advice)

    units = _units(workload)
    if metric not in units:
        advice = f"[metrics] in workload.toml has {', '.join(sorted(workload.metrics))}"
        raise fault("nobody writes this metric", advice=advice)
    for key, value in claim.items():
        if key not in _CLAIM:
            raise fault("unknown key", key, advice=f"known: {', '.join(sorted(_CLAIM))}")
        if key in NUMBERS and not _is_number(value):
            raise fault(f"{str(value)[:40]!r} is not a finite number", key)
        if key not in {*NUMBERS, EXPECTED_FAILURE} and not isinstance(value, str):
            raise fault(f"{value!r} is not text", key)
    unit = units[metric]
    if claim.get("unit", unit) != unit:
        raise fault(f"{claim['unit']!r} is not the metric's unit {unit!r}", "unit")
    if claim.get("per") not in {None, "node", "device"}:
        raise fault(f"{claim['per']!r} is neither 'node' nor 'device'", "per")
    if metric == TIME_TO_ACCURACY and "per" in claim:
        raise fault("a time is not shared out", "per")
    if (metric == SCALING) != ("base" in claim):
        raise fault("a scaling claim, and only that, has a base", "base", advice='such as base = "1x8"')
    if "base" in claim:
        try:
            Shape.parse(claim["base"])
        except UsageFault as wrong:
            raise fault(wrong.message, "base", advice=wrong.advice) from None
    _bounds(claim, fault)
    numbers = {key: float(claim[key]) for key in NUMBERS if key in claim}
    expected = _expected(claim[EXPECTED_FAILURE], document.place(*keys), fault) if EXPECTED_FAILURE in claim else None
    threshold = Threshold(
        metric=metric, unit=unit, per=claim.get("per"), base=claim.get("base"), expected_failure=expected, **numbers
    )
    _possible(threshold, fault)
    return threshold


def _units(workload: Workload) -> dict[str, str]:
    """Of everything that may be claimed: what the script writes, and what is reckoned from it or from its log."""
    reckoned = {SCALING: "", STEADY_THROUGHPUT: workload.metrics[THROUGHPUT].unit, TIME_TO_ACCURACY: "s"}
    return {**{name: metric.unit for name, metric in workload.metrics.items()}, **reckoned}


def _expected(told: Any, place: str, fault: Callable[..., UsageFault]) -> ExpectedFailure:
    advice = 'write expected_failure = { reason = "…", until = 2027-01-31 }'
    if not isinstance(told, dict):
        raise fault(f"{str(told)[:40]!r} is not a table", EXPECTED_FAILURE, advice=advice)
    if unknown := sorted(told.keys() - {"reason", "until"}):
        raise fault("unknown key", f"{EXPECTED_FAILURE}.{unknown[0]}", advice=advice)
    for key in ("reason", "until"):
        if key not in told:
            raise fault(f"{key} is missing", EXPECTED_FAILURE, advice=advice)
    reason, until = told["reason"], told["until"]
    if not isinstance(reason, str) or not reason.strip() or not reason.isprintable() or len(reason) > _LONGEST_REASON:
        wrong = f"{str(reason)[:40]!r} is not a line of 1 to {_LONGEST_REASON} characters"
        raise fault(wrong, f"{EXPECTED_FAILURE}.reason", advice=advice)
    if not isinstance(until, date) or isinstance(until, datetime):
        raise fault(f"{str(until)[:40]!r} is not a date without quotes", f"{EXPECTED_FAILURE}.until", advice=advice)
    return ExpectedFailure(reason.strip(), until.isoformat(), place)


def _is_number(value: Any) -> bool:
    try:
        return not isinstance(value, bool) and isinstance(value, (int, float)) and math.isfinite(value)
    except OverflowError:  # an integer beyond every float
        return False


def _possible(threshold: Threshold, fault: Callable[..., UsageFault]) -> None:
    """A speed or a time is above 0 and a ratio between 0 and 1 whatever happens: that is no claim, and more is no
    hope. What every case must claim has a lower bound, or the worst of all jobs would be green."""
    low, high = threshold.band(Shape(1, 1))
    ratio = threshold.metric in {ACCURACY, SCALING} and not threshold.unit
    if threshold.metric in _POSITIVE and low <= 0 and high >= (1 if ratio else math.inf):
        raise fault("claims nothing: every value meets it")
    if high < 0 or (threshold.metric == ACCURACY and ratio and low > 1):
        raise fault("no value meets it", advice="an accuracy without a unit is between 0 and 1" if ratio else "")
    if low <= 0 and (threshold.metric == THROUGHPUT or (threshold.metric == ACCURACY and ratio)):
        advice = "give at_least, or a reference with lower above -1"
        raise fault("has no lower bound above 0: a job that does nothing meets it", advice=advice)


def _bounds(claim: Mapping[str, Any], fault: Callable[..., UsageFault]) -> None:
    """A claim that any number meets is no claim."""
    fixed = claim.keys() & {"at_least", "at_most"}
    relative = claim.keys() & {"lower", "upper"}
    if "reference" in claim and fixed:
        raise fault(f"reference and {' and '.join(sorted(fixed))} exclude each other")
    if relative and "reference" not in claim:
        raise fault(f"{' and '.join(sorted(relative))} need a reference")
    if not fixed and not relative:
        raise fault("claims nothing", advice="give at_least, at_most, or a reference with lower or upper")
    if claim.get("at_least", -math.inf) > claim.get("at_most", math.inf):
        raise fault("at_least is above at_most: no value meets it")
    if claim.get("lower", 0) > 0 or (claim.get("lower", 0) < -1 and claim["reference"] != 0):
        raise fault(f"{claim['lower']} is not between -1 and 0", "lower", advice="-0.05 allows 5 % below the reference")
    if claim.get("upper", 0) < 0:
        raise fault(f"{claim['upper']} is below 0", "upper", advice="0.05 allows 5 % above the reference")
