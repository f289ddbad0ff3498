"""`aisbench cloud conform`: how far the local cloud is the vendor's.

A probe sends one request, or a few, to a local cloud of its own and says what is wrong with the answers. `operations`
has one for every operation of the vendor's SDKs, `errors` one for every error code that the vendor documents, `rules`
the rest; `wire` is the client that they all use. `run` carries them out, `scores` counts them.
"""

from __future__ import annotations

import tempfile
from collections.abc import Callable, Iterable, Iterator
from pathlib import Path
from typing import TYPE_CHECKING, NamedTuple

from pytest_aisbench.localcloud import vendor_operations as vendor

if TYPE_CHECKING:
    from pytest_aisbench.localcloud.conform.wire import Scene

OPERATION, RULE = "operation", "rule"
ERROR = "error"
INJECTED = "injected error"
"""An error that the cloud gives only where a fault says so."""
DOCUMENT, OURS = "vendor's document", "ours"
APULIS = "Apulis"


class Probe(NamedTuple):
    api: str
    kind: str
    """OPERATION, ERROR, INJECTED or RULE."""
    name: str
    source: str
    """Who says that it should be so: an SDK's name and version, DOCUMENT or OURS."""
    fault: Callable[[Scene], str]
    """Returns what is wrong; an empty text where the probe holds."""
    served: bool = True
    """False where it holds if the cloud says 501."""


class Outcome(NamedTuple):
    probe: Probe
    fault: str


class Score(NamedTuple):
    api: str
    served: int
    operations: int
    sdk: str
    own_errors: int
    documented_errors: int
    """How many the vendor documents, where the probes have them all; otherwise 0."""
    probes: int
    held: int

    @property
    def percent(self) -> str:
        return f"{100 * self.served / self.operations:.0f} %" if self.operations else ""


def probes() -> list[Probe]:
    from pytest_aisbench.localcloud.conform import errors, operations, rules

    return [*operations.probes(), *errors.probes(), *rules.probes()]


def run(wanted: Iterable[Probe] | None = None) -> Iterator[Outcome]:
    """Carry out all probes, or these, on one cloud that ends with them."""
    from pytest_aisbench.localcloud.conform.wire import Scene
    from pytest_aisbench.localcloud.server import LocalCloud

    with tempfile.TemporaryDirectory() as data, LocalCloud(Path(data), engine="simulated") as cloud:
        scene = Scene(cloud)
        for probe in probes() if wanted is None else wanted:
            yield Outcome(probe, _fault(probe, scene))


def scores(outcomes: Iterable[Outcome]) -> list[Score]:
    outcomes = list(outcomes)
    return [_score(api, [each for each in outcomes if each.probe.api == api]) for api in (*vendor.APIS, APULIS)]


def table(rows: Iterable[Score]) -> str:
    """The scores as Markdown, for docs/local-cloud.md and for the terminal."""
    head = ("API", "operations served", "of the vendor's SDK", "errors of its own accord", "probes that hold")
    lines = [f"| {' | '.join(head)} |", "|---" * len(head) + "|"]
    for row in rows:
        served = f"{row.served} of {row.operations} ({row.percent})" if row.operations else f"{row.served}"
        errors = f"{row.own_errors} of {row.documented_errors}" if row.documented_errors else f"{row.own_errors}"
        held = f"{row.held} of {row.probes}"
        lines.append(f"| {row.api} | {served} | {row.sdk or 'there is none'} | {errors} | {held} |")
    return "\n".join(lines)


def _fault(probe: Probe, scene: Scene) -> str:
    try:
        return probe.fault(scene)
    except Exception as error:  # noqa: BLE001 (an answer of another form than the probe reads is what it looks for)
        return f"{type(error).__name__}: {error}"


def _score(api: str, outcomes: list[Outcome]) -> Score:
    sdk = vendor.sdks().get(api)
    operations = sdk.operations if sdk else {}
    served = [
        each.probe.name
        for each in outcomes
        if each.probe.kind == OPERATION and each.probe.served and not each.fault
        if each.probe.name in operations or not sdk
    ]
    injected = any(each.probe.kind == INJECTED for each in outcomes)
    return Score(
        api,
        len(served),
        len(operations),
        f"{sdk.name} {sdk.version}" if sdk else "",
        own_errors=sum(each.probe.kind == ERROR and not each.fault for each in outcomes),
        documented_errors=sum(each.probe.kind in {ERROR, INJECTED} for each in outcomes) if injected else 0,
        probes=len(outcomes),
        held=sum(not each.fault for each in outcomes),
    )
