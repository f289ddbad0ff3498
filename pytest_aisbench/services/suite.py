"""A suite's folder: `workload.toml` and `thresholds.toml`, read, checked and made into cases."""

from __future__ import annotations

import itertools
from collections.abc import Collection, Mapping
from dataclasses import dataclass
from pathlib import Path

from pytest_aisbench.domain.case import Case, Mode, Shape, Workload
from pytest_aisbench.domain.metric import ACCURACY, THROUGHPUT
from pytest_aisbench.domain.threshold import Threshold
from pytest_aisbench.errors import UsageFault
from pytest_aisbench.services import claims, workload
from pytest_aisbench.services.claims import ANY
from pytest_aisbench.services.sections import Sections, StandIn
from pytest_aisbench.settings import places

WORKLOAD_FILE = "workload.toml"
THRESHOLDS_FILE = "thresholds.toml"


@dataclass(frozen=True)
class Suite:
    """A workload as one platform sees it, and every claim made on it."""

    workload: Workload
    claims: Mapping[tuple[str, str], Mapping[str, Threshold]]  # (platform, shape) → metric → claim
    platform: str
    place: str  # of the thresholds, for messages

    def case(self, shape: Shape, mode: Mode = Mode.CLUSTER) -> Case:
        """The most specific claim wins, metric by metric."""
        chosen: dict[str, Threshold] = {}
        for scope in itertools.product(
            (ANY, self.platform, f"{self.platform}.{self.workload.framework}"), (ANY, str(shape))
        ):
            chosen.update(self.claims.get(scope, {}))
        return Case(self.workload, shape, tuple(chosen.values()), mode)

    def require_claims(self, case: Case) -> None:
        """A case that claims nothing would pass whatever happened."""
        claimed = {threshold.metric for threshold in case.thresholds}
        for metric in (THROUGHPUT, ACCURACY):
            if metric not in claimed:
                advice = f'add it to [{self.platform}."{case.shape}"] or [{self.platform}."*"]'
                raise UsageFault(f"{self.place}: {case.id} has no claim on {metric}", advice=advice)


def folders(root: Path) -> dict[str, Path]:
    """Of all suites below, by the name of their workload; of several with one name the first."""
    found: dict[str, Path] = {}
    for file in sorted(root.rglob(WORKLOAD_FILE)):
        found.setdefault(str(places.read(file).data.get("name", "")), file.parent)
    return found


def load(
    folder: Path,
    platform: str,
    options: Collection[str],
    platforms: Collection[str],
    *,
    trains: bool = True,
    frameworks: Collection[str] = (),
    stand_in: StandIn | None = None,
) -> Suite:
    """`options` are the chosen platform's own keys; sections of other known platforms are not looked into.

    Where nobody `trains`, the code need not be there. `frameworks` are those to train with where the platform's
    section has one of its own for them, such as `[local.mindspore]`.
    """
    document = places.read(folder / WORKLOAD_FILE)
    sections = Sections(frameworks, stand_in)
    trained = workload.read(document, platform, options, platforms, trains=trains, sections=sections)
    thresholds = places.read(folder / THRESHOLDS_FILE)
    claimed = claims.read(thresholds, trained, platforms)
    if stand_in and stand_in.name in thresholds.data:
        platform = stand_in.name
    return Suite(trained, claimed, platform, str(thresholds.path))
