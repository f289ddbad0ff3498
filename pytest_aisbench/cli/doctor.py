"""`aisbench doctor`: check everything that a run needs, one line each, with the fix for what is wrong."""

from __future__ import annotations

import argparse
import json
import platform as machine
from collections.abc import Callable, Collection, Iterator, Sequence
from contextlib import closing
from functools import partial
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import Any

from pytest_aisbench import registry
from pytest_aisbench.cli import (
    FAILED,
    add_command,
    add_ledger_options,
    add_package_options,
    add_platform_options,
    read_settings,
)
from pytest_aisbench.config.settings import PlatformKind, Settings
from pytest_aisbench.engine import preflight
from pytest_aisbench.engine.suites import Suite
from pytest_aisbench.errors import AisbenchError, UsageFault
from pytest_aisbench.ledger.database import mount_of, why_no_locks
from pytest_aisbench.model.case import WORKLOAD_FILE, Case, Shape
from pytest_aisbench.model.messages import plain
from pytest_aisbench.model.ports import (
    Check,
    ChecksConnection,
    Health,
    Platform,
    ProbesNodes,
    checked,
    failure,
    failure_from,
    merged,
    ok,
    warning,
)
from pytest_aisbench.session import collection
from pytest_aisbench.session.collection import load_suite

SCHEMA = "aisbench-doctor/1"
_PACKAGES = ("pytest-aisbench", "pytest", "huaweicloudsdkcore", "esdk-obs-python", "requests")
_KEYS = "keys: "  # how the note about the source of the keys begins; all other notes are warnings


def register(commands: Any) -> None:
    doctor = add_command(
        commands,
        "doctor",
        "check everything that a run needs; nothing is submitted or paid for",
        "aisbench doctor suites/ --platform modelarts --nodes 2",
    )
    doctor.add_argument("suites", nargs="*", type=Path, metavar="DIR", help="folders of suites (default: suites/)")
    doctor.add_argument("--json", action="store_true", help="for programs")
    doctor.add_argument("--probe", action="store_true", help="also run a job of seconds on a node, if the platform can")
    doctor.add_argument("--quiet", action="store_true", help="print only failures, warnings and the last line")
    add_package_options(doctor)
    doctor.add_argument("--nodes", metavar="N,N", help="node counts (default: 1, or what the package asks for)")
    doctor.add_argument("--devices", metavar="N", help="cards per node (default: the workload's own number)")
    doctor.add_argument(
        "--single-server", action="store_const", const="true", help="every node trains alone with its own cards"
    )
    add_ledger_options(doctor)
    add_platform_options(doctor)
    doctor.set_defaults(act=_doctor)


def _doctor(options: argparse.Namespace) -> int:
    checks: list[Check] = []
    case = ""
    for check in _checks_of(options):
        checks.append(check)
        if options.json or (options.quiet and check.health is Health.OK):
            continue
        if check.cases and check.cases[0] != case:
            case = check.cases[0]
            print(f"{case}:")
        print(check_line(check).replace("--aisbench-", "--"), flush=True)
    print(json.dumps(document(checks), indent=2, ensure_ascii=False) if options.json else summary(checks))
    return FAILED if any(check.failed for check in checks) else 0


def _checks_of(options: argparse.Namespace) -> Iterator[Check]:
    """All checks, as the doctor makes them; settings that cannot be read are a failed check too."""
    try:
        settings = read_settings(options)
        names = registry.of_commands()
        kind = names.kind(settings.platform)
    except UsageFault as fault:
        yield failure_from("configuration", fault)
        return
    usual = Path("suites")
    folders = options.suites or ([usual] if usual.is_dir() and not settings.package else [])
    yield from Doctor(settings, kind, names.platforms, probe=options.probe).examine(folders)


class Doctor:
    """Checks what a run on one platform needs: `kind` is that platform's, `platforms` are the names of all."""

    def __init__(
        self, settings: Settings, kind: PlatformKind, platforms: Collection[str], *, probe: bool = False
    ) -> None:
        """`probe`: also run a job of seconds, if the platform can."""
        self._probe = probe
        self._settings = settings
        self._kind = kind
        self._platforms = platforms

    def examine(self, folders: Sequence[Path]) -> Iterator[Check]:
        """All checks: first those of the run, as they are made, then those of each case. `folders` hold suites, at any
        depth. A check that several cases share comes once, with the first of them."""
        seen: set[Check] = set()
        of_cases: list[Check] = []
        for check in self._checks(folders):
            if check.cases:
                of_cases.append(check)
            elif check not in seen:
                seen.add(check)
                yield check
        order = list(dict.fromkeys(case for check in of_cases for case in check.cases))
        yield from sorted(merged(of_cases), key=lambda check: order.index(check.cases[0]))

    def _checks(self, folders: Sequence[Path]) -> Iterator[Check]:
        """All checks; those that need no platform come first."""
        yield from self._configuration()
        yield from self._machine()
        cases: list[Case] = []
        yield from self._suites(folders, cases)
        try:
            platform: Platform = self._kind.connect(self._settings)
        except AisbenchError as error:
            yield failure_from("platform", error)
            return
        with closing(platform):
            yield from self._platform(platform, cases)

    def _configuration(self) -> Iterator[Check]:
        sources = [f"{key} by {source}" for key, source in self._settings.sources.items()]
        yield ok("configuration", f"platform {self._settings.platform}; " + (", ".join(sources) or "all by default"))
        for note in self._settings.notes:
            yield ok("credentials", note) if note.startswith(_KEYS) else warning("configuration", note)

    def _machine(self) -> Iterator[Check]:
        settings = self._settings
        yield ok("versions", f"Python {machine.python_version()}, {', '.join(map(_version, _PACKAGES))}")
        yield preflight.disk_check(settings.reports)
        yield _ledger(settings.ledger_file)
        if self._kind.emulation:
            yield _containers()

    def _suites(self, folders: Sequence[Path], cases: list[Case]) -> Iterator[Check]:
        """Check the suites, and add their cases to `cases`: of one node, unless settings or package say more."""
        loads: dict[str, Callable[[], tuple[Suite, int]]] = {}
        for folder in folders:
            suites = sorted(file.parent for file in folder.rglob(WORKLOAD_FILE))
            loads |= {str(each): partial(self._suite, each) for each in suites}
            if not suites:
                yield failure("suites", f"{folder} holds no {WORKLOAD_FILE}", "name a folder of suites")
        if self._settings.package:
            loads[str(self._settings.package)] = self._packaged
        for place, load in loads.items():
            try:
                loaded, nodes = load()
            except AisbenchError as error:
                yield failure_from("suites", error)
                continue
            devices = self._settings.devices or loaded.workload.devices
            mode = collection.mode(self._settings)
            new = [loaded.case(Shape(count, devices), mode) for count in self._settings.nodes or (nodes,)]
            cases.extend(new)
            yield ok("suites", f"{place}: {', '.join(case.id for case in new)}")
        if not loads:
            text = "none was named: flavor, engine, pool and data are not checked"
            yield warning("suites", text, "name a folder of suites, or --package DIR; `aisbench init` writes one")

    def _suite(self, folder: Path) -> tuple[Suite, int]:
        return load_suite(folder, self._settings, self._kind, self._platforms), 1

    def _packaged(self) -> tuple[Suite, int]:
        from pytest_aisbench.platforms.modelarts.package import load_package

        package = load_package(self._settings, self._kind, self._platforms)
        return package.suite, package.nodes

    def _platform(self, platform: Platform, cases: Sequence[Case]) -> Iterator[Check]:
        run_s = self._settings.run_timeout
        sound, broken = [], False
        for case in cases:
            checks = list(preflight.request_checks(platform, [case], run_s))
            yield from checks
            sound += [] if any(check.failed for check in checks) else [case]
        for check in platform.connection_checks() if isinstance(platform, ChecksConnection) else [_access(platform)]:
            yield check
            broken = broken or check.failed
        if broken:
            yield warning("offer", "flavor, engine, pool, quota and data are not checked: the platform cannot be asked")
            return
        yield from preflight.offer_checks(platform, sound, run_s)
        yield from preflight.data_checks(platform, sound)
        if self._probe and isinstance(platform, ProbesNodes):
            yield from platform.probe()


def _access(platform: Platform) -> Check:
    return checked("access", partial(preflight.check_access, platform))


def _version(package: str) -> str:
    try:
        return f"{package} {version(package)}"
    except PackageNotFoundError:
        return f"{package} (not installed)"


def _ledger(file: Path) -> Check:
    folder = next(each for each in (file.parent, *file.parent.parents) if each.exists())
    if why := why_no_locks(folder):
        return failure("ledger", f"{file}: no working file locks ({why})", "name a file on a local disk with --ledger")
    mount = mount_of(folder)
    if mount and not mount.shares_memory:
        text = f"{file} is on {mount.kind}, where it is slower, since other machines may have it open"
        return warning("ledger", text, "name a file on a local disk with --ledger")
    return ok("ledger", f"{file}" + (f", on {mount.kind}" if mount else ""))


def _containers() -> Check:
    from pytest_aisbench.localcloud.engine.private_root import container_support

    supported, text = container_support()
    return ok("containers", text) if supported else warning("containers", text, "allow user namespaces, or be root")


def check_line(check: Check) -> str:
    text = f"{check.text}; {check.fix}" if check.fix else check.text
    if check.health is not Health.OK and (others := check.cases[1:]):
        text += f" (also {', '.join(others)})"
    return f"{'  ' if check.cases else ''}{check.health.value:<8} {check.name}: {plain(text)}"


def summary(checks: Sequence[Check]) -> str:
    counts = {health: sum(check.health is health for check in checks) for health in Health}
    parts = [
        f"{counts[health]} {health.value}{'s' * (counts[health] != 1)}" for health in (Health.FAILURE, Health.WARNING)
    ]
    return f"{len(checks)} checks: {', '.join(parts)}"


def document(checks: Sequence[Check]) -> dict[str, Any]:
    return {"schema": SCHEMA, "checks": [_row(check) for check in checks]}


def _row(check: Check) -> dict[str, Any]:
    return {
        "name": check.name,
        "state": check.health.value,
        "text": check.full_text,
        "fix": check.fix,
        "cases": list(check.cases),
    }
