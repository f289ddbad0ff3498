"""From collected tests to a plan: the cases of each marker, the tests that `--nodes` selects, and what they need.

Arguments that a mark gives to a test go to the job, if its workload has parameters of these names, and make a case
each. An argument that neither the job nor the test uses is a mistake: the same job would be trained once, and shown as
one green test for each value.
"""

from __future__ import annotations

import dis
import inspect
import logging
import math
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

from pytest_aisbench import registry
from pytest_aisbench.config.options import python_by_framework
from pytest_aisbench.config.settings import PlatformKind, Settings
from pytest_aisbench.engine import suites
from pytest_aisbench.engine.suites import Suite, stand_in
from pytest_aisbench.errors import UsageFault, raise_together
from pytest_aisbench.logs import get_logger, log_ignored
from pytest_aisbench.model.case import WORKLOAD_FILE, Case, Mode, Shape
from pytest_aisbench.model.trial import Step
from pytest_aisbench.session.outcome import errors_in_one_line

if TYPE_CHECKING:
    from pytest_aisbench.platforms.modelarts.package import Package


_LOG = get_logger("session")
SUITES = pytest.StashKey[dict[Path, Suite]]()
FOLDERS = pytest.StashKey[dict[str, Path]]()  # of each workload, by its name
PACKAGE: pytest.StashKey[Package] = pytest.StashKey()  # of --aisbench-package, read once
UNASKED = "unasked"  # in place of a case: --aisbench-package is not given
TRAINING = pytest.StashKey[set[Path]]()  # test files of which a test needs a case
DESELECTED = pytest.StashKey[set[str]]()  # cases of which a test was deselected, by us or by another plugin
UNMATCHED = pytest.StashKey[bool]()  # there were cases, and --nodes wanted none of them
# How far a test lets the trial go, by the fixture it asks for.
_UNTIL = {"trial": Step.DONE, "job": Step.JUDGE, "stage": Step.SUBMIT}
_OURS = {*_UNTIL, "case", "obs", "modelarts_session"}


# From a marker to cases


def parametrize_cases(metafunc: pytest.Metafunc, marker: pytest.Mark, settings: Settings) -> None:
    """One item per shape that the marker supports; `--nodes` selects among them later."""
    config = metafunc.config
    cases: list[Case | UsageFault | str]
    try:
        if marker.kwargs == {"package": True} and not marker.args:
            cases = [*_packaged(config, settings)] or [UNASKED]
        else:
            cases = [*_cases(config, settings, Path(str(metafunc.definition.path)), marker)]
    except UsageFault as fault:
        # It goes with its item, and matters only if that is selected. Raised here it would be exit 2, not 4; and an
        # empty list would be a skip, which looks like health.
        cases = [fault]
    ids = [case.id if isinstance(case, Case) else case if isinstance(case, str) else "unusable" for case in cases]
    kind = registry.of_session(config).find_kind(settings.platform) or PlatformKind()
    metafunc.parametrize("case", [_or_skipped(case, kind, settings) for case in cases], ids=ids, indirect=True)


def _or_skipped(case: Case | UsageFault | str, kind: PlatformKind, settings: Settings) -> Any:
    """A case whose framework is not installed where it would train is skipped, and says what is missing."""
    reason = kind.missing_framework(case.workload.framework, settings) if isinstance(case, Case) else ""
    return pytest.param(case, marks=pytest.mark.skip(reason=reason)) if reason else case


def _cases(config: pytest.Config, settings: Settings, test: Path, marker: pytest.Mark) -> list[Case]:
    folder = test.parent
    suites_by_folder = config.stash.setdefault(SUITES, {})
    if folder not in suites_by_folder:
        offered = registry.of_session(config)
        suites_by_folder[folder] = load_suite(folder, settings, offered.kind(settings.platform), offered.platforms)
    loaded = suites_by_folder[folder]
    _only_one(config, loaded.workload.name, folder)
    devices = settings.devices or loaded.workload.devices
    try:
        shapes = _shapes(marker, loaded.workload.name, devices, settings.devices)
    except UsageFault as fault:
        raise UsageFault(f"{test}: {fault.message}", advice=fault.advice) from None
    return [loaded.case(shape, mode(settings)) for shape in shapes]


def _packaged(config: pytest.Config, settings: Settings) -> list[Case]:
    """The cases of `--aisbench-package`: as many nodes as it asks for, unless `--nodes` says otherwise."""
    if settings.package is None:
        return []
    suites_by_folder = config.stash.setdefault(SUITES, {})
    if PACKAGE not in config.stash:
        from pytest_aisbench.platforms.modelarts.package import load_package

        offered = registry.of_session(config)
        config.stash[PACKAGE] = load_package(settings, offered.kind(settings.platform), offered.platforms)
    package = config.stash[PACKAGE]
    folder = Path(package.suite.workload.folder)
    suites_by_folder[folder] = package.suite
    _only_one(config, package.suite.workload.name, folder)
    devices = settings.devices or package.suite.workload.devices
    shapes = [Shape(nodes, devices) for nodes in settings.nodes or (package.nodes,)]
    return [package.suite.case(shape, mode(settings)) for shape in shapes]


def load_suite(folder: Path, settings: Settings, kind: PlatformKind, platforms: Collection[str]) -> Suite:
    """As a run with these settings trains it; `kind` is the platform's, `platforms` are the names of all."""
    return suites.load_suite(
        folder,
        settings.platform,
        kind.options,
        platforms,
        frameworks=python_by_framework(settings.frameworks),
        stand_in=stand_in(settings, kind),
    )


def mode(settings: Settings) -> Mode:
    return Mode.SINGLE_SERVER if settings.single_server else Mode.CLUSTER


def _only_one(config: pytest.Config, name: str, folder: Path) -> None:
    twin = config.stash.setdefault(FOLDERS, {}).setdefault(name, folder)
    if twin != folder:
        raise UsageFault(f"{folder} and {twin} both hold a workload named {name!r}")


def _shapes(marker: pytest.Mark, name: str, devices: int, override: int | None) -> list[Shape]:
    usage = f'write @pytest.mark.workload("{name}", nodes=[1, 2]) or shapes=["1x8"]'
    given = dict(marker.kwargs)
    nodes, shapes = given.pop("nodes", None), given.pop("shapes", None)
    given.pop(PARAMETERS, None)
    if marker.args != (name,) or given or (nodes is None) == (shapes is None):
        arguments = ", ".join([*map(repr, marker.args), *(f"{key}={value!r}" for key, value in marker.kwargs.items())])
        raise UsageFault(f"the marker workload({arguments}) does not fit the workload {name!r}", advice=usage)
    if not isinstance(shapes if nodes is None else nodes, (list, tuple)):
        raise UsageFault(f"the marker of workload {name!r} wants a list", advice=usage)
    try:
        supported = [Shape(_count(node), devices) for node in nodes] if nodes is not None else []
        supported += [Shape.parse(shape) for shape in shapes or []]
    except (TypeError, ValueError) as error:
        raise UsageFault(f"the marker of workload {name!r}: {error}", advice=usage) from None
    if not supported:
        raise UsageFault(f"the marker of workload {name!r} supports no shape", advice=usage)
    wanted = [Shape(shape.nodes, override) if override else shape for shape in supported]
    return list(dict.fromkeys(wanted))


def _count(node: Any) -> int:
    if isinstance(node, bool) or not isinstance(node, int) or node < 1:
        raise ValueError(f"{node!r} is not a number of nodes")
    return node


# From the selected tests to a plan


@dataclass(frozen=True)
class Plan:
    """What the selected items need, for the process that holds the run."""

    wants: tuple[tuple[Case, Step], ...] = ()  # of the Fleet, in the items' order
    cases: Mapping[str, str] = field(default_factory=dict)  # node id → case id, skipped items included
    expected: frozenset[str] = frozenset()  # cases to be judged, skipped ones included
    deselected: frozenset[str] = frozenset()  # cases that were left out
    unmatched: bool = False  # --nodes left no case at all
    repeats: tuple[str, ...] = ()  # options and markers of other plugins that run a case's test more than once

    @property
    def notes(self) -> list[str]:
        """What to say once, before the run."""
        if not self.repeats:
            return []
        what = "a test that runs again gets the verdict of the same trial, and nothing is trained anew"
        return [f"{', '.join(self.repeats)}: {what}; --aisbench-max-trials says how many trials may decide a case"]


def plan(config: pytest.Config, items: list[pytest.Item]) -> Plan:
    cases = {item.nodeid: case.id for item in items if (case := case_of(item))}
    left_out = frozenset(config.stash.get(DESELECTED, ())) - set(cases.values())
    repeats = {by for item in items if item.nodeid in cases for by in _repeated_by(config, item)}
    return Plan(
        tuple(_wants(config, items)),
        cases,
        judged_cases(items),
        left_out,
        config.stash.get(UNMATCHED, False),
        tuple(sorted(repeats)),
    )


def _repeated_by(config: pytest.Config, item: pytest.Item) -> Iterator[str]:
    """The options and markers of pytest-rerunfailures and pytest-repeat by which this test may run more than once."""
    plugins = config.pluginmanager
    if plugins.hasplugin("rerunfailures"):
        if config.getoption("reruns", None):
            yield "--reruns"
        if item.get_closest_marker("flaky"):
            yield "the marker flaky"
    if plugins.hasplugin("repeat"):
        if config.getoption("count", 1) != 1:
            yield "--count"
        if item.get_closest_marker("repeat"):
            yield "the marker repeat"


def _wants(config: pytest.Config, items: list[pytest.Item]) -> list[tuple[Case, Step]]:
    """How far each case must go. A case without the claims that it needs is a mistake."""
    wants = _needs(items)
    raise_together(_missing_claims(config, wants))
    return wants


def _needs(items: list[pytest.Item]) -> list[tuple[Case, Step]]:
    """Skipped items need nothing."""
    needed: dict[str, tuple[Case, Step]] = {}
    for item in items:
        case, step = case_of(item), needed_step(item)
        if case and step is not None and not _will_be_skipped(item):
            _, furthest = needed.get(case.id, (case, step))
            needed[case.id] = (case, max(step, furthest))
    return list(needed.values())


def _missing_claims(config: pytest.Config, wants: Iterable[tuple[Case, Step]]) -> Iterator[UsageFault]:
    judged: dict[Path, list[Case]] = {}
    for case, step in wants:
        if step is Step.DONE:
            judged.setdefault(Path(case.workload.folder), []).append(case)
    for folder, cases in judged.items():
        try:
            config.stash[SUITES][folder].require_claims(*cases)
        except UsageFault as fault:
            yield fault


def _will_be_skipped(item: pytest.Item) -> bool:
    """True if pytest will skip the item, so that no job is paid for. pytest has no public function for it."""
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


def judged_cases(items: Iterable[pytest.Item]) -> frozenset[str]:
    """The cases whose verdict one of these tests asks for."""
    return frozenset(case.id for item in items if (case := case_of(item)) and needed_step(item) is Step.DONE)


def case_of(item: pytest.Item) -> Case | None:
    """The case of a workload item; None for every other test."""
    case = _parameter(item)
    return case if isinstance(case, Case) else None


def _parameter(item: pytest.Item) -> object:
    callspec = getattr(item, "callspec", None)
    return callspec.params.get("case") if callspec else None


def needed_step(item: pytest.Item) -> Step | None:
    """How far this item needs its trial; None when it needs none."""
    names = getattr(item, "fixturenames", ())
    return max((step for name, step in _UNTIL.items() if name in names), default=None)


# Selecting


def select(config: pytest.Config, items: list[pytest.Item], nodes: tuple[int, ...], say: Callable[[str], None]) -> None:
    """Deselect the shapes that `--nodes` did not ask for, and a package's test if no package is named."""
    for note in config.stash[PACKAGE].notes if PACKAGE in config.stash else ():
        say(note)
    _split_by_arguments(config, items, say)
    if unasked := [item for item in items if _parameter(item) == UNASKED]:
        config.hook.pytest_deselected(items=unasked)
        items[:] = [item for item in items if item not in unasked]
    config.stash[TRAINING] = {item.path for item in items if case_of(item)}
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


def _split_by_arguments(config: pytest.Config, items: list[pytest.Item], say: Callable[[str], None]) -> None:
    """Give each item the case that its own parametrized arguments make of it, or what is wrong with them."""
    given: dict[Path, set[str]] = {}
    cases: dict[Path, list[Case]] = {}
    for item in items:
        if case := case_of(item):
            folder = Path(case.workload.folder)
            names = given.setdefault(folder, set())
            try:
                names.update(marker_parameters(item.get_closest_marker("workload"), case.workload.name))
                case = with_arguments(item, case, config.stash[SUITES][folder])
                cases.setdefault(folder, []).append(case)
                _set_parameter(item, case)
            except UsageFault as fault:
                _set_parameter(item, fault)
    for item in items:
        if case := case_of(item):
            folder = Path(case.workload.folder)
            try:
                config.stash[SUITES][folder].check_scopes(given[folder])
            except UsageFault as fault:
                _set_parameter(item, fault)
    if config.option.keyword or any("[" in argument for argument in config.args):
        return  # cases were left out, and the claims may be theirs
    for folder, there in cases.items():
        suite = config.stash[SUITES][folder]
        for scope in suite.idle_scopes(there):
            say(f"{suite.thresholds_file}: {scope!r}: no test gives these values, so its claims judge nothing")


def _set_parameter(item: pytest.Item, parameter: Case | UsageFault) -> None:
    getattr(item, "callspec").params["case"] = parameter  # noqa: B009 - case_of() has seen that it has one


def check(config: pytest.Config, items: list[pytest.Item]) -> None:
    """Raise all that is wrong with the suites whose tests are selected."""
    training = config.stash[TRAINING]
    faults: list[UsageFault] = []
    for item in items:
        fault = _parameter(item)
        if isinstance(fault, UsageFault):
            faults.append(fault)
            continue
        idle = not set(getattr(item, "fixturenames", ())) & _OURS and item.path not in training
        if idle and item.get_closest_marker("workload"):
            advice = "let it ask for `trial`, or take the marker away"
            faults.append(UsageFault(f"{item.nodeid}: a workload is marked, and nothing is asked of it", advice=advice))
    if faults:  # without them the plan finds missing claims, unless tests are only listed
        faults += _missing_claims(config, _needs(items))
    raise_together(faults)


class ChecksSelection:
    """What the owners of a session share: after -k and all other plugins, they check the selected suites."""

    _config: pytest.Config

    @pytest.hookimpl(specname="pytest_collection_modifyitems", trylast=True)
    def pytest_collection_modifyitems_check(self, items: list[pytest.Item]) -> None:
        with errors_in_one_line():
            check(self._config, items)


def leave_out(config: pytest.Config, items: Iterable[pytest.Item]) -> None:
    """Remember the cases of deselected tests."""
    config.stash.setdefault(DESELECTED, set()).update(case.id for item in items if (case := case_of(item)))


# Parametrized arguments.

PARAMETERS = "parameters"  # of the marker: arguments that are given to the job though workload.toml does not name them
_LONGEST = 200  # characters of a value


def with_arguments(item: pytest.Item, case: Case, suite: Suite) -> Case:
    """The case that the item's own arguments make of it."""
    values: Mapping[str, Any] = getattr(item, "callspec").params  # noqa: B009 - of a Function alone
    named = marker_parameters(item.get_closest_marker("workload"), case.workload.name)
    given = {*case.workload.parameters, *named}
    # Sorted, so that two tests with the same values have one case, whatever the order of their marks.
    arguments = {name: _text(item, name, values[name]) for name in sorted(values) if name in given}
    for name in values:
        if name not in arguments and not _is_fixture(_fixtures(item).get(name, ())) and not _is_read(item, name):
            advice = f"name it in [parameters] of {WORKLOAD_FILE} or in the marker's parameters=, or take it away"
            raise UsageFault(f"{item.nodeid}: neither the job nor the test uses the argument {name!r}", advice=advice)
    for name in named:
        if name not in values:
            advice = f'parametrize it: @pytest.mark.parametrize("{name}", […])'
            raise UsageFault(
                f"{item.nodeid}: the marker's parameters= names {name!r}, which has no value", advice=advice
            )
    return suite.with_arguments(case, arguments) if arguments else case


def marker_parameters(marker: pytest.Mark | None, workload: str) -> tuple[str, ...]:
    named = marker.kwargs.get(PARAMETERS, ()) if marker else ()
    if not isinstance(named, (list, tuple)) or not all(isinstance(name, str) and name for name in named):
        advice = 'write parameters=["batch_size"]'
        raise UsageFault(f"the marker of workload {workload!r}: parameters= is a list of names", advice=advice)
    return tuple(named)


def _text(item: pytest.Item, name: str, value: Any) -> str:
    """The value as a script is given it on its command line."""
    wrong = not isinstance(value, (str, int, float)) or (isinstance(value, float) and not math.isfinite(value))
    text = "" if wrong else str(value)
    if wrong or not text or not text.isprintable() or len(text) > _LONGEST:
        raise UsageFault(
            f"{item.nodeid}: {name}={str(value)[:40]!r} cannot be a parameter of a job",
            advice=f"give a finite number, or a line of 1 to {_LONGEST} characters",
        )
    return text


def _fixtures(item: pytest.Item) -> Mapping[str, Sequence[Any]]:
    """The definitions of every fixture that the item needs, by name; pytest has no public list of them."""
    fixtures: Mapping[str, Sequence[Any]] = getattr(getattr(item, "_fixtureinfo", None), "name2fixturedefs", {})
    return fixtures


def _is_fixture(definitions: Sequence[Any]) -> bool:
    """False for a value that a mark or `pytest_generate_tests` gives to the test itself: pytest returns it as it is."""
    return any(not getattr(each.func, "__module__", "").startswith("_pytest.") for each in definitions)


def _is_read(item: pytest.Item, name: str) -> bool:
    """True if the test's own code, or a fixture, uses the argument; and where that cannot be seen."""
    code = getattr(inspect.unwrap(getattr(item, "function", None) or (lambda: None)), "__code__", None)
    if code is None or name not in code.co_varnames[: code.co_argcount + code.co_kwonlyargcount]:
        return True  # pytest refuses an argument that is not asked for, so a fixture asks for it
    definitions = (each for group in _fixtures(item).values() for each in group)
    if any(name in definition.argnames for definition in definitions):
        return True
    loads = (step for step in dis.get_instructions(code) if step.opname.startswith("LOAD_"))
    return name in code.co_cellvars or any(name in _names(step.argval) for step in loads)


def _names(loaded: Any) -> tuple[Any, ...]:
    """Python 3.13 loads two variables by one instruction."""
    return loaded if isinstance(loaded, tuple) else (loaded,)
