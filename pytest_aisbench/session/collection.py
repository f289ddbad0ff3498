"""From the tests that were collected to a plan: which of them are selected, and what they need."""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field
from pathlib import Path

import pytest

from pytest_aisbench.domain.case import Case
from pytest_aisbench.domain.trial import Step
from pytest_aisbench.errors import UsageFault
from pytest_aisbench.logs import get_logger, log_ignored
from pytest_aisbench.session.marking import PACKAGE, SUITES, UNASKED
from pytest_aisbench.stash import SETTINGS

_LOG = get_logger("session")
TRAINING = pytest.StashKey[set[Path]]()  # test files in which something asks for its workload
DESELECTED = pytest.StashKey[set[str]]()  # cases of which a test was left out, by us or by anybody
UNMATCHED = pytest.StashKey[bool]()  # there were cases, and --nodes wanted none of them

# How far a test lets the trial go, by the fixture it asks for.
_UNTIL = {"trial": Step.DONE, "job": Step.HARVEST, "stage": Step.SUBMIT}
_OURS = {*_UNTIL, "case", "obs", "modelarts_session"}


def case_of(item: pytest.Item) -> Case | None:
    """The case of a workload item; None for every other test."""
    case = _parameter(item)
    return case if isinstance(case, Case) else None


def _parameter(item: pytest.Item) -> object:
    callspec = getattr(item, "callspec", None)
    return callspec.params.get("case") if callspec else None


def until(item: pytest.Item) -> Step | None:
    """How far this item needs its trial; None when it needs none."""
    names = getattr(item, "fixturenames", ())
    return max((step for name, step in _UNTIL.items() if name in names), default=None)


def check(config: pytest.Config, items: list[pytest.Item]) -> None:
    """Raise what is wrong with a suite whose tests are selected."""
    training = config.stash[TRAINING]
    for item in items:
        fault = _parameter(item)
        if isinstance(fault, UsageFault):
            raise fault
        idle = not set(getattr(item, "fixturenames", ())) & _OURS and item.path not in training
        if idle and item.get_closest_marker("workload"):
            advice = "let it ask for `trial`, or take the marker away"
            raise UsageFault(f"{item.nodeid}: a workload is marked, and nothing is asked of it", advice=advice)


def select(config: pytest.Config, items: list[pytest.Item], say: Callable[[str], None]) -> None:
    """Deselect the shapes that `--nodes` did not ask for, and the test of a package that nobody named."""
    for note in config.stash[PACKAGE].notes if PACKAGE in config.stash else ():
        say(note)
    if unasked := [item for item in items if _parameter(item) == UNASKED]:
        config.hook.pytest_deselected(items=unasked)
        items[:] = [item for item in items if item not in unasked]
    config.stash[TRAINING] = {item.path for item in items if case_of(item)}
    nodes = config.stash[SETTINGS].nodes
    if not nodes:
        return
    kept: list[pytest.Item] = []
    dropped: list[pytest.Item] = []
    for item in items:
        case = case_of(item)
        (dropped if case and case.shape.nodes not in nodes else kept).append(item)
    if dropped:
        there = {case.shape.nodes for item in items if (case := case_of(item))}
        config.stash[UNMATCHED] = not there & set(nodes)
        if missing := [str(count) for count in nodes if count not in there]:
            say(f"no case has {' or '.join(missing)} nodes; there are {', '.join(map(str, sorted(there)))}")
        config.hook.pytest_deselected(items=dropped)
        items[:] = kept


@dataclass(frozen=True)
class Plan:
    """What the selected items need, for the process that holds the run."""

    wants: tuple[tuple[Case, Step], ...] = ()  # of the Fleet, in the items' order
    cases: Mapping[str, str] = field(default_factory=dict)  # node id → case id, skipped items included
    expected: frozenset[str] = frozenset()  # cases to be judged, skipped ones included
    deselected: frozenset[str] = frozenset()  # cases that were left out
    unmatched: bool = False  # --nodes left no case at all


def plan(config: pytest.Config, items: list[pytest.Item]) -> Plan:
    cases = {item.nodeid: case.id for item in items if (case := case_of(item))}
    left_out = frozenset(config.stash.get(DESELECTED, ())) - set(cases.values())
    return Plan(tuple(_wants(config, items)), cases, judged(items), left_out, config.stash.get(UNMATCHED, False))


def judged(items: Iterable[pytest.Item]) -> frozenset[str]:
    """The cases whose verdict one of these tests asks for."""
    return frozenset(case.id for item in items if (case := case_of(item)) and until(item) is Step.DONE)


def leave_out(config: pytest.Config, items: Iterable[pytest.Item]) -> None:
    """Remember the cases of tests that somebody deselects."""
    config.stash.setdefault(DESELECTED, set()).update(case.id for item in items if (case := case_of(item)))


def _wants(config: pytest.Config, items: list[pytest.Item]) -> list[tuple[Case, Step]]:
    """Skipped items need nothing."""
    needed: dict[str, tuple[Case, Step]] = {}
    for item in items:
        case, step = case_of(item), until(item)
        if case and step is not None and not _will_be_skipped(item):
            known = needed.get(case.id, (case, step))
            needed[case.id] = (case, max(step, known[1]))
    for case, step in needed.values():
        if step is Step.DONE:
            config.stash[SUITES][Path(case.workload.folder)].require_claims(case)
    return list(needed.values())


def _will_be_skipped(item: pytest.Item) -> bool:
    """A job that no test will judge is money lost. pytest keeps this question to itself, hence the guard."""
    try:
        from _pytest.skipping import evaluate_skip_marks, evaluate_xfail_marks
    except ImportError as error:
        log_ignored(_LOG, error, "whether %s will be skipped", item.nodeid, level=logging.WARNING)
        return False
    try:
        expected = evaluate_xfail_marks(item)
        return evaluate_skip_marks(item) is not None or bool(expected and not expected.run)
    except pytest.fail.Exception:
        return True  # a condition that cannot be evaluated: the item will say so itself, before its setup
