"""From a marker to cases: the shapes that a suite supports, or what a package asks for."""

from __future__ import annotations

from collections.abc import Collection, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

from pytest_aisbench import registry
from pytest_aisbench.domain.case import Case, Mode, Shape
from pytest_aisbench.errors import UsageFault
from pytest_aisbench.services import sections, suite
from pytest_aisbench.settings import Settings
from pytest_aisbench.settings.option_types import pythons
from pytest_aisbench.settings.platform_kind import PlatformKind
from pytest_aisbench.stash import SETTINGS

if TYPE_CHECKING:
    from pytest_aisbench.adapters.legacy_package import Package

SUITES = pytest.StashKey[dict[Path, suite.Suite]]()
PACKAGE: pytest.StashKey[Package] = pytest.StashKey()  # of --aisbench-package, read once
UNASKED = "unasked"  # in place of a case: nobody named a package


def generate(metafunc: pytest.Metafunc, marker: pytest.Mark) -> None:
    """One item per shape that the marker supports; `--nodes` selects among them later."""
    cases: list[Case | UsageFault | str]
    try:
        if marker.kwargs == {"package": True} and not marker.args:
            cases = [*_packaged(metafunc.config)] or [UNASKED]
        else:
            cases = [*_cases(metafunc.config, Path(str(metafunc.definition.path)), marker)]
    except UsageFault as fault:
        # It goes with its item, and matters only if that is selected. Raised here it would be exit 2, not 4; and an
        # empty list would be a skip, which looks like health.
        cases = [fault]
    ids = [case.id if isinstance(case, Case) else case if isinstance(case, str) else "unusable" for case in cases]
    metafunc.parametrize("case", [_or_skipped(metafunc.config, case) for case in cases], ids=ids, indirect=True)


def _or_skipped(config: pytest.Config, case: Case | UsageFault | str) -> Any:
    """A case whose framework is not installed where it would train is skipped, and says what is missing."""
    if not isinstance(case, Case):
        return case
    settings = config.stash[SETTINGS]
    kind = registry.of_session(config).kind(settings.platform)
    reason = kind.missing_framework(case.workload.framework, settings)
    return pytest.param(case, marks=pytest.mark.skip(reason=reason)) if reason else case


def _cases(config: pytest.Config, test: Path, marker: pytest.Mark) -> list[Case]:
    settings, folder = config.stash[SETTINGS], test.parent
    known = config.stash.setdefault(SUITES, {})
    if folder not in known:
        offered = registry.of_session(config)
        known[folder] = load_suite(folder, settings, offered.kind(settings.platform), offered.platforms)
    loaded = known[folder]
    _only_one(known, folder)
    devices = settings.devices or loaded.workload.devices
    try:
        shapes = _shapes(marker, loaded.workload.name, devices, settings.devices)
    except UsageFault as fault:
        raise UsageFault(f"{test}: {fault.message}", advice=fault.advice) from None
    return [loaded.case(shape, mode(settings)) for shape in shapes]


def _packaged(config: pytest.Config) -> list[Case]:
    """The cases of `--aisbench-package`: as many nodes as it asks for, unless `--nodes` says otherwise."""
    settings = config.stash[SETTINGS]
    if settings.package is None:
        return []
    known = config.stash.setdefault(SUITES, {})
    if PACKAGE not in config.stash:
        from pytest_aisbench.adapters import legacy_package

        offered = registry.of_session(config)
        config.stash[PACKAGE] = legacy_package.load(settings, offered.kind(settings.platform), offered.platforms)
    package = config.stash[PACKAGE]
    folder = Path(package.suite.workload.folder)
    known[folder] = package.suite
    _only_one(known, folder)
    devices = settings.devices or package.suite.workload.devices
    shapes = [Shape(nodes, devices) for nodes in settings.nodes or (package.nodes,)]
    return [package.suite.case(shape, mode(settings)) for shape in shapes]


def load_suite(folder: Path, settings: Settings, kind: PlatformKind, platforms: Collection[str]) -> suite.Suite:
    """As a run with these settings trains it; `kind` is the platform's, `platforms` are the names of all."""
    return suite.load(
        folder,
        settings.platform,
        kind.options,
        platforms,
        frameworks=pythons(settings.frameworks),
        stand_in=sections.stand_in(settings, kind),
    )


def mode(settings: Settings) -> Mode:
    return Mode.SINGLE_SERVER if settings.single_server else Mode.CLUSTER


def _only_one(known: Mapping[Path, suite.Suite], folder: Path) -> None:
    name = known[folder].workload.name
    twin = next((path for path, other in known.items() if path != folder and other.workload.name == name), None)
    if twin:
        raise UsageFault(f"{folder} and {twin} both hold a workload named {name!r}")


def _shapes(marker: pytest.Mark, name: str, devices: int, override: int | None) -> list[Shape]:
    usage = f'write @pytest.mark.workload("{name}", nodes=[1, 2]) or shapes=["1x8"]'
    given = dict(marker.kwargs)
    nodes, shapes = given.pop("nodes", None), given.pop("shapes", None)
    if marker.args != (name,) or given or (nodes is None) == (shapes is None):
        told = ", ".join([*map(repr, marker.args), *(f"{key}={value!r}" for key, value in marker.kwargs.items())])
        raise UsageFault(f"the marker workload({told}) does not fit the workload {name!r}", advice=usage)
    if not isinstance(shapes if nodes is None else nodes, (list, tuple)):
        raise UsageFault(f"the marker of workload {name!r} wants a list", advice=usage)
    try:
        found = [Shape(_count(node), devices) for node in nodes] if nodes is not None else []
        found += [Shape.parse(shape) for shape in shapes or []]
    except (TypeError, ValueError) as error:
        raise UsageFault(f"the marker of workload {name!r}: {error}", advice=usage) from None
    if not found:
        raise UsageFault(f"the marker of workload {name!r} supports no shape", advice=usage)
    wanted = [Shape(shape.nodes, override) if override else shape for shape in found]
    return list(dict.fromkeys(wanted))


def _count(node: Any) -> int:
    if isinstance(node, bool) or not isinstance(node, int) or node < 1:
        raise ValueError(f"{node!r} is not a number of nodes")
    return node
