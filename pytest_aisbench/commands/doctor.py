"""`aisbench doctor`: everything that a run needs, checked before it is needed."""

from __future__ import annotations

import argparse
import json
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any

from pytest_aisbench.commands import means
from pytest_aisbench.commands.means import FAILED
from pytest_aisbench.errors import UsageFault

if TYPE_CHECKING:
    from pytest_aisbench.domain.checkup import Check


def register(acts: Any) -> None:
    doctor = acts.add_parser("doctor", help="check everything that a run needs; nothing is submitted or paid for")
    doctor.add_argument("suites", nargs="*", type=Path, metavar="DIR", help="folders of suites (default: suites/)")
    doctor.add_argument("--json", action="store_true", help="for programs")
    doctor.add_argument("--package", metavar="DIR", help="an unpacked ais-bench package")
    doctor.add_argument("--trust-config", action="store_const", const="true", help="execute what cannot be parsed")
    doctor.add_argument("--nodes", metavar="N,N", help="node counts (default: 1, or what the package asks for)")
    doctor.add_argument("--devices", metavar="N", help="cards per node (default: the workload's own number)")
    doctor.add_argument(
        "--single-server", action="store_const", const="true", help="every node trains alone with its own cards"
    )
    means.ledger_options(doctor)
    means.platform_options(doctor)
    doctor.set_defaults(act=_doctor)


def _doctor(options: argparse.Namespace) -> int:
    from pytest_aisbench.reporters import checkup

    checks: list[Check] = []
    for check in _examined(options):
        checks.append(check)
        if not options.json:
            print(checkup.line(check).replace("--aisbench-", "--"), flush=True)
    print(
        json.dumps(checkup.document(checks), indent=2, ensure_ascii=False) if options.json else checkup.summary(checks)
    )
    return FAILED if any(check.failed for check in checks) else 0


def _examined(options: argparse.Namespace) -> Iterator[Check]:
    """What is wrong with the settings themselves is a finding too."""
    from pytest_aisbench import registry
    from pytest_aisbench.commands.examination import Doctor
    from pytest_aisbench.domain.checkup import fallen

    try:
        settings = means.settings(options)
        offered = registry.of_commands()
        kind = offered.kind(settings.platform)
    except UsageFault as fault:
        yield fallen("configuration", fault)
        return
    usual = Path("suites")
    folders = options.suites or ([usual] if usual.is_dir() and not settings.package else [])
    yield from Doctor(settings, kind, offered.platforms).examine(folders)
