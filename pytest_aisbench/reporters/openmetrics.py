"""`metrics.txt`, in the text format of OpenMetrics, and `metrics.csv`, as Jenkins' plot plugin reads it.

GitLab compares the values of two branches as strings, so they are rounded; and it knows a value by its name and labels,
so nothing in them changes from run to run.
"""

from __future__ import annotations

import csv
import io
import math
from collections.abc import Callable, Iterable, Iterator
from typing import NamedTuple

from pytest_aisbench.domain.entry import CaseEntry, RunEntry
from pytest_aisbench.domain.messages import plain
from pytest_aisbench.domain.metric import ACCURACY, THROUGHPUT
from pytest_aisbench.domain.verdict import Ruling
from pytest_aisbench.report.columns import Output, efficiency, shown_in, total
from pytest_aisbench.reporters.facts import missing

_DIGITS = 4  # of what is measured
_FEW = 2  # of times and costs, which differ with every run
_PREFIX = "aisbench_"


class Sample(NamedTuple):
    labels: dict[str, str]
    value: float


class Family(NamedTuple):
    name: str
    help: str
    samples: list[Sample]
    unit: str = ""
    kind: str = "gauge"


def text(run: RunEntry) -> str:
    """The whole file."""
    lines: list[str] = []
    for family in _families(run):
        if family.samples:
            name = _PREFIX + family.name
            lines.append(f"# TYPE {name} {family.kind}")
            if family.unit:
                lines.append(f"# UNIT {name} {family.unit}")
            lines.append(f"# HELP {name} {family.help}")
            lines += [f"{name}{_labels(sample.labels)} {_number(sample.value)}" for sample in family.samples]
    return "".join(f"{line}\n" for line in [*lines, "# EOF"])


def table(run: RunEntry) -> str:
    """A row of names and a row of values. What was not measured has no column: the plot then has a gap there."""
    columns: dict[str, float] = {}
    for case in _sorted(run):
        for name, metric in case.metrics.items():
            columns |= _known(f"{case.id} {name}", metric.value, _DIGITS)
        for column in shown_in(Output.CSV):
            columns |= _known(f"{case.id} {column.key}", column.value(case) if column.value else None, column.digits)
    written = io.StringIO()
    writer = csv.writer(written, quoting=csv.QUOTE_ALL, lineterminator="\n")
    writer.writerow(plain(name) for name in columns)
    writer.writerow(_number(value) for value in columns.values())
    return written.getvalue()


def _families(run: RunEntry) -> Iterator[Family]:
    cases = _sorted(run)
    for name, help_text in (
        (THROUGHPUT, "What all cards of the case did together, in its unit."),
        (ACCURACY, "What the trained model reached."),
    ):
        yield Family(name, help_text, [*_measured(cases, [name])])
    others = sorted({name for case in cases for name in case.metrics} - {THROUGHPUT, ACCURACY})
    yield Family("measurement", "Any other metric of the workload.", [*_measured(cases, others)])
    per_card = "Share of the speed per card at the base shape that is kept at this shape."
    yield Family("efficiency", per_card, [*_each(cases, efficiency, _DIGITS)])
    yield Family("pace", "Speed by the log, of one rank or of the whole job.", [*_paces(cases)])
    yield Family("card_hours", "Time that the jobs ran, times their cards.", [*_each(cases, lambda c: c.card_hours)])
    yield Family("verdict", "The verdict; all 0 where there is none.", [*_verdicts(cases)], kind="stateset")
    waited = "Time that the jobs waited in a queue."
    yield Family("queued_seconds", waited, [*_each(cases, lambda c: total(c, "queued_s"))], "seconds")
    yield Family("ran_seconds", "Time that the jobs ran.", [*_each(cases, lambda c: total(c, "ran_s"))], "seconds")
    slow = "Cards and nodes that were slower than the others."
    yield Family("stragglers", slow, [*_each(cases, lambda c: len(c.trials[-1].stragglers) if c.trials else None)])
    yield Family("trials", "Attempts that decided the case.", [*_each(cases, lambda c: len(c.trials))])
    if run.settings.get("required"):
        absent = Sample({}, len(missing(run)))
        yield Family("missing_cases", "Required cases that nobody judged.", [absent])
    if run.exit_code is not None:
        yield Family("exit_code", "What the run told its shell.", [Sample({}, run.exit_code)])


def _measured(cases: Iterable[CaseEntry], names: Iterable[str]) -> Iterator[Sample]:
    for name in names:
        for case in cases:
            if name in case.metrics and (value := case.metrics[name].value) is not None and math.isfinite(value):
                candidates = {"metric": "" if name in {THROUGHPUT, ACCURACY} else name, "unit": case.metrics[name].unit}
                labels = {key: text for key, text in candidates.items() if text}  # an empty one is none
                yield Sample({**_about(case), **labels}, rounded(value, _DIGITS))


def _paces(cases: Iterable[CaseEntry]) -> Iterator[Sample]:
    for case in cases:
        if case.trials and (pace := case.trials[-1].pace):
            labels = {**_about(case), "of": pace.of, "unit": pace.unit}
            for part, speed in (("whole", pace.whole), ("warm_up", pace.warm_up), ("steady", pace.steady)):
                for value in _known("", speed, _DIGITS).values():
                    yield Sample({**labels, "part": part}, value)


def _each(cases: Iterable[CaseEntry], of: Callable[[CaseEntry], float | None], digits: int = _FEW) -> Iterator[Sample]:
    for case in cases:
        for value in _known("", of(case), digits).values():
            yield Sample(_about(case), value)


def _verdicts(cases: Iterable[CaseEntry]) -> Iterator[Sample]:
    for case in cases:
        for ruling in Ruling:
            yield Sample({**_about(case), f"{_PREFIX}verdict": ruling.value}, float(case.verdict is ruling))


def _about(case: CaseEntry) -> dict[str, str]:
    return {"case": case.id, "workload": case.workload, "nodes": str(case.nodes)}


def _sorted(run: RunEntry) -> list[CaseEntry]:
    """By name: the order in which cases end is another one with xdist."""
    return sorted(run.cases, key=lambda case: case.id)


def _known(name: str, value: float | None, digits: int) -> dict[str, float]:
    return {} if value is None or not math.isfinite(value) else {name: rounded(value, digits)}


def rounded(value: float, digits: int) -> float:
    """A finite number to so many significant digits."""
    result = float(f"{value:.{digits}g}")
    return result if math.isfinite(result) else rounded(0.99 * value, digits)  # up was past the largest there is


def _number(value: float) -> str:
    return f"{value:.15g}"


def _labels(labels: dict[str, str]) -> str:
    if not labels:
        return ""
    return "{" + ",".join(f'{name}="{_escaped(value)}"' for name, value in labels.items()) + "}"


def _escaped(value: str) -> str:
    return plain(value).replace("\\", r"\\").replace('"', r"\"")
