"""A suite's folder: `workload.toml` and `thresholds.toml`, read, checked and made into cases."""

from __future__ import annotations

import itertools
import math
import re
from collections.abc import Callable, Collection, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from pytest_aisbench.domain import prestart
from pytest_aisbench.domain.case import NAME, Case, Mode, Shape, Workload
from pytest_aisbench.domain.metric import ACCURACY, RECKONED, THROUGHPUT, Metric
from pytest_aisbench.domain.stage import StoreUrl
from pytest_aisbench.domain.threshold import Threshold
from pytest_aisbench.errors import UsageFault
from pytest_aisbench.services import claims
from pytest_aisbench.services.claims import ANY
from pytest_aisbench.services.sections import KEYS, Sections, StandIn
from pytest_aisbench.settings import option_types, places

WORKLOAD_FILE = "workload.toml"
THRESHOLDS_FILE = "thresholds.toml"

_REQUIRED = ("name", "code", "entry")


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
    workload = _workload(document, platform, options, platforms, trains=trains, sections=Sections(frameworks, stand_in))
    thresholds = places.read(folder / THRESHOLDS_FILE)
    claimed = claims.read(thresholds, workload, platforms)
    if stand_in and stand_in.name in thresholds.data:
        platform = stand_in.name
    return Suite(workload, claimed, platform, str(thresholds.path))


def _workload(
    document: places.Document,
    platform: str,
    options: Collection[str],
    platforms: Collection[str],
    *,
    trains: bool,
    sections: Sections,
) -> Workload:
    for key, value in document.data.items():
        if key in platforms:
            if not isinstance(value, dict):
                raise document.fault(f"{key} is a section", key, advice=f"write [{key}] on a line of its own")
        elif key not in KEYS:
            advice = f"known: {', '.join(sorted(KEYS))}; sections: {', '.join(sorted(platforms))}"
            raise document.fault(f"unknown key {key!r}", key, advice=advice)
    where, section = sections.of(document, platform)
    own = {key: value for key, value in section.items() if key not in KEYS}
    for key in own:
        if key not in options:
            advice = f"known: {', '.join(sorted({*KEYS, *options}))}"
            raise document.fault(f"unknown key {key!r} in [{platform}]", *where(key), key, advice=advice)
    fields = _Fields(document, where, {**{k: v for k, v in document.data.items() if k in KEYS}, **section})
    for key in _REQUIRED:
        fields.need(key)
    name = fields.text("name")
    if not NAME.match(name):
        raise fields.fault(f"name {name!r} is not a name", "name", advice="use letters, digits, '.', '_' and '-'")
    code = tuple(fields.texts("code"))
    folders = [document.path.parent / part for part in code]
    for part, folder in zip(code, folders, strict=True):
        if trains and not folder.is_dir():
            raise fields.fault(f"code: there is no folder {part!r} beside this file", "code")
    entry = fields.text("entry")
    if trains and not any(_holds(folder, entry) for folder in folders):
        advice = f"on platform {platform} it is the file that is run once per card"
        raise fields.fault(f"entry: there is no {entry!r} in {', '.join(code)}", "entry", advice=advice)
    return Workload(
        name=name,
        folder=str(document.path.parent),
        code=code,
        entry=entry,
        framework=fields.text("framework", "python"),
        devices=fields.positive("devices", 8, option_types.MOST_CARDS),
        metrics=_metrics(fields),
        parameters=fields.pairs("parameters"),
        environment=_environment(fields),
        data=_data(fields, document.path.parent),
        data_contains=_contents(fields),
        expected_s=fields.duration("expected"),
        options=own,
        update=_update(fields, document.path.parent),
    )


def _holds(folder: Path, entry: str) -> bool:
    """Also after links are followed: what lies outside the folder is not staged."""
    file = (folder / entry).resolve()
    return file.is_file() and file.is_relative_to(folder.resolve())


def _metrics(fields: _Fields) -> dict[str, Metric]:
    metrics = {THROUGHPUT: Metric(THROUGHPUT, ""), ACCURACY: Metric(ACCURACY, "")}
    for name, row in fields.table("metrics").items():
        if re.fullmatch(r"throughput_\d+|ranksize", name):
            raise fields.fault(f"metrics.{name} is the name of a result file of its own", "metrics", name)
        if name in RECKONED:
            raise fields.fault(f"metrics.{name} is reckoned, and written by no script", "metrics", name)
        if (
            not NAME.match(name)
            or not isinstance(row, dict)
            or set(row) != {"unit"}
            or not isinstance(row["unit"], str)
        ):
            advice = f'write [metrics.{name}] with unit = "…"'
            raise fields.fault(f"metrics.{name} is not a metric", "metrics", name, advice=advice)
        metrics[name] = Metric(name, row["unit"])
    if not metrics[THROUGHPUT].unit:
        advice = 'write [metrics.throughput] with unit = "images/s"'
        raise fields.fault("throughput has no unit", "metrics", THROUGHPUT, advice=advice)
    return metrics


def _environment(fields: _Fields) -> dict[str, str]:
    pairs = fields.pairs("environment")
    for name, value in pairs.items():
        if fault := prestart.level_fault(name, value):
            raise fields.fault(f"environment: {fault}", "environment", name)
    return pairs


def _update(fields: _Fields, folder: Path) -> prestart.Update | None:
    """`[modelarts.update]`: files that the nodes install before they train, wheels first, and levels of their logs."""
    table = fields.table("update")
    files: list[str] = []
    exports: dict[str, str] = {}
    for key in prestart.FILES:
        for file in fields.texts("update", key) if key in table else []:
            pattern, what = prestart.FILES[key]
            if not re.fullmatch(pattern, Path(file).name):
                raise fields.fault(f"update.{key}: {file!r} is not {what}", "update", key)
            if not (folder / file).is_file():
                raise fields.fault(f"update.{key}: there is no file {file!r} beside this file", "update", key)
            files.append(file)
    for key, value in table.items():
        if key in prestart.LEVELS:
            if fault := prestart.level_fault(key, value):
                raise fields.fault(f"update: {fault}", "update", key)
            exports[key] = str(value)
        elif key not in prestart.FILES:
            advice = f"known: {', '.join([*prestart.FILES, *prestart.LEVELS])}"
            raise fields.fault(f"unknown key {key!r} in update", "update", key, advice=advice)
    return prestart.Update(tuple(files), exports) if table else None


def _data(fields: _Fields, folder: Path) -> str | None:
    if "data" not in fields.values:
        return None
    data = fields.text("data")
    if "://" in data:
        try:
            if not StoreUrl.parse(data).is_folder:
                raise fields.fault("data is a folder in the Store", "data", advice=f"write {data}/")
        except UsageFault as fault:
            raise fields.fault(f"data: {fault.message}", "data", advice=fault.advice) from None
    elif not (folder / data).is_dir():
        raise fields.fault(f"data: there is no folder {data!r} beside this file", "data")
    return data


def _contents(fields: _Fields) -> tuple[str, ...]:
    if "data_contains" not in fields.values:
        return ()
    names = fields.texts("data_contains")
    for name in names:
        if name.startswith("/") or ".." in name.split("/"):
            advice = 'write them as they are called there, such as ["train/", "val/"]'
            raise fields.fault(f"data_contains: {name!r} is not in the data", "data_contains", advice=advice)
    return tuple(names)


@dataclass(frozen=True)
class _Fields:
    """The merged keys of a workload; an error names the line of the section the key was taken from."""

    document: places.Document
    where: Callable[[str], tuple[str, ...]]
    values: Mapping[str, Any]

    def fault(self, message: str, *keys: str, advice: str = "") -> UsageFault:
        return self.document.fault(message, *self.where(keys[0]), *keys, advice=advice)

    def need(self, key: str) -> None:
        if key not in self.values:
            raise UsageFault(f"{self.document.path}: {key} is missing")

    def text(self, key: str, default: str = "") -> str:
        value = self.values.get(key, default)
        if not isinstance(value, str) or (not value and key in self.values):
            raise self.fault(f"{key}: {value!r} is not text", key)
        return value

    def texts(self, *keys: str) -> list[str]:
        value: Any = self.values
        for key in keys:
            value = value[key]
        if not isinstance(value, list) or not value or not all(isinstance(item, str) and item for item in value):
            raise self.fault(f"{'.'.join(keys)}: {value!r} is not a list of texts", *keys)
        return value

    def positive(self, key: str, default: int, most: int) -> int:
        value = self.values.get(key, default)
        if isinstance(value, bool) or not isinstance(value, int) or not 1 <= value <= most:
            raise self.fault(f"{key}: {str(value)[:40]} is not a whole number from 1 to {most}", key)
        return value

    def duration(self, key: str) -> float:
        if key not in self.values:
            return 0.0
        try:
            return option_types.duration(str(self.values[key]))
        except ValueError as error:
            raise self.fault(f"{key}: {error}", key) from None

    def table(self, key: str) -> dict[str, Any]:
        value = self.values.get(key, {})
        if not isinstance(value, dict):
            raise self.fault(f"{key}: {value!r} is not a table", key)
        return value

    def pairs(self, key: str) -> dict[str, str]:
        """Values as a script is given them on its command line."""
        pairs: dict[str, str] = {}
        for name, value in self.table(key).items():
            if isinstance(value, float) and not math.isfinite(value):
                raise self.fault(f"{key}.{name}: {value} is not a finite number", key, name)
            if not isinstance(value, (str, int, float)):
                raise self.fault(f"{key}.{name}: {value!r} is neither text nor a number", key, name)
            pairs[name] = str(value)
        return pairs
