"""Reads a suite's folder: `workload.toml` and `thresholds.toml` become cases.

`load_suite` reads both for one platform; every error names the file and the line. `Suite.case` makes a case of a shape.
"""

from __future__ import annotations

import itertools
import math
import re
from collections.abc import Callable, Collection, Iterable, Mapping
from dataclasses import dataclass
from datetime import date, datetime
from pathlib import Path
from typing import Any

from pytest_aisbench.config import toml_document
from pytest_aisbench.config.options import FRAMEWORKS, LOCAL, MOST_CARDS, PYTHON, parse_duration
from pytest_aisbench.config.settings import PlatformKind, Settings
from pytest_aisbench.config.toml_document import Document
from pytest_aisbench.engine.logged_metrics import read_metrics
from pytest_aisbench.errors import UsageFault, raise_together
from pytest_aisbench.judge.values import DERIVED
from pytest_aisbench.model.case import NAME, WORKLOAD_FILE, Case, Mode, Shape, Update, Workload, as_name
from pytest_aisbench.model.job import BY_ENVIRONMENT, BY_PARAMETER, StoreUrl
from pytest_aisbench.model.metric import ACCURACY, SCALING, THROUGHPUT
from pytest_aisbench.model.verdict import BOUND_KEYS, ExpectedFailure, Threshold

THRESHOLDS_FILE = "thresholds.toml"
ANY = "*"
EXPECTED_FAILURE = "expected_failure"
_CLAIM = frozenset({*BOUND_KEYS, "unit", "per", "base", EXPECTED_FAILURE})
_LONGEST_REASON = 200
_POSITIVE = frozenset({THROUGHPUT, ACCURACY, *(name for name, metric in DERIVED.items() if metric.is_positive)})
_DEVICES = "devices"
KEYS = frozenset({
    *("name", "code", "entry"),
    *("framework", _DEVICES, "parameters", "environment", "data", "data_contains", "expected", "metrics", "update"),
    "urls_by",
})  # fmt: skip
_REQUIRED = ("name", "code", "entry")
_FILES = {  # key of `update`: what such a file is called
    "wheels": (r"\S+\.whl", "a wheel"),
    "cann": (r"Ascend-cann-(nnae|nnrt|toolkit)[_-]\S*\.run", "an Ascend-cann-nnae, -nnrt or -toolkit package (.run)"),
}
LEVELS = {  # what a value means is in its place
    "GLOG_v": ("INFO", "WARNING", "ERROR", "FATAL"),
    "ASCEND_GLOBAL_LOG_LEVEL": ("DEBUG", "INFO", "WARNING", "ERROR", "NULL"),
    "ASCEND_GLOBAL_EVENT_ENABLE": ("off", "on"),
    "ASCEND_SLOG_PRINT_TO_STDOUT": ("off", "on"),
}


@dataclass(frozen=True)
class Suite:
    """A workload as one platform sees it, and every claim made on it."""

    workload: Workload
    claims: Mapping[tuple[str, str], Mapping[str, Threshold]]  # (platform, shape) → metric → claim
    platform: str
    thresholds_file: str  # for messages

    def case(self, shape: Shape, mode: Mode = Mode.CLUSTER, arguments: Mapping[str, str] | None = None) -> Case:
        """`arguments` are parameters of the job that this case has a value of its own for."""
        case = Case(self.workload, shape, self._thresholds(shape, {}), mode)
        return self.with_arguments(case, arguments) if arguments else case

    def with_arguments(self, case: Case, arguments: Mapping[str, str]) -> Case:
        return case.with_arguments(arguments, self._thresholds(case.shape, arguments))

    def _thresholds(self, shape: Shape, arguments: Mapping[str, str]) -> tuple[Threshold, ...]:
        """The most specific claim wins, metric by metric."""
        chosen: dict[str, Threshold] = {}
        places = (ANY, self.platform, f"{self.platform}.{self.workload.framework}")
        scopes = {scope for _, scope in self.claims}
        for scope in itertools.product(places, matching_scopes(scopes, shape, arguments)):
            chosen.update(self.claims.get(scope, {}))
        return tuple(chosen.values())

    def check_scopes(self, given: Collection[str]) -> None:
        """Raise for claims on an argument that is neither a parameter of the workload nor among those `given`."""
        names = {*self.workload.parameters, *given}
        for scope in (scope for place, scope in self.claims if self._holds_here(place)):
            for name in split_scope(scope)[1]:
                if name not in names:
                    advice = f"name it in [parameters] of {WORKLOAD_FILE}, or in the marker's parameters="
                    raise UsageFault(f"{self.thresholds_file}: {scope!r}: no test gives {name!r}", advice=advice)

    def idle_scopes(self, cases: Iterable[Case]) -> list[str]:
        """Scopes with values of arguments that no case has: their claims judge nothing."""
        wanted = {scope: split_scope(scope)[1] for place, scope in self.claims if self._holds_here(place)}
        given = [case.arguments for case in cases] if any(wanted.values()) else []
        idle = (scope for scope, values in wanted.items() if not any(_have_values(each, values) for each in given))
        return sorted(scope for scope in idle if wanted[scope])

    def _holds_here(self, place: str) -> bool:
        return place.partition(".")[0] in {ANY, self.platform}

    def require_claims(self, *cases: Case) -> None:
        """Raise for cases without thresholds on throughput and accuracy: they would pass whatever happens."""
        faults = []
        for metric in (THROUGHPUT, ACCURACY):
            unclaimed = [case for case in cases if metric not in {claim.metric for claim in case.thresholds}]
            if unclaimed:
                ids = ", ".join(case.id for case in unclaimed)
                text = f"{ids} {'has' if len(unclaimed) == 1 else 'have'} no claim on {metric}"
                advice = f'add it to [{self.platform}."{case_scope(unclaimed[0])}"] or [{self.platform}."*"]'
                faults.append(UsageFault(f"{self.thresholds_file}: {text}", advice=advice))
        raise_together(faults)


def load_suite(
    folder: Path,
    platform: str,
    options: Collection[str],
    platforms: Collection[str],
    *,
    trains: bool = True,
    frameworks: Collection[str] = (),
    stand_in: StandIn | None = None,
) -> Suite:
    """Read a suite for one platform, whose own keys are `options`; sections of other platforms are skipped.

    Without `trains` the code need not exist. `frameworks` are those to train with, if the platform's section has one of
    its own for them, such as `[local.mindspore]`.
    """
    sections = Sections(frameworks, stand_in)
    try:
        document = toml_document.read(folder / WORKLOAD_FILE)
        trained = read_workload(document, platform, options, platforms, trains=trains, sections=sections)
    except UsageFault as fault:
        raise_together([fault, *_faults_of_toml(folder / THRESHOLDS_FILE)])
        raise
    thresholds = toml_document.read(folder / THRESHOLDS_FILE)
    claimed = read_thresholds(thresholds, trained, platforms)
    if stand_in and stand_in.name in thresholds.data:
        platform = stand_in.name
    return Suite(trained, claimed, platform, str(thresholds.path))


def _faults_of_toml(file: Path) -> list[UsageFault]:
    """Why a file cannot be read at all, if so."""
    try:
        toml_document.read(file)
    except UsageFault as fault:
        return [fault]
    return []


def suite_folders(root: Path) -> dict[str, Path]:
    """The folders of all suites below `root` by the name of their workload; of several with one name the first."""
    by_name: dict[str, Path] = {}
    for file in sorted(root.rglob(WORKLOAD_FILE)):
        by_name.setdefault(str(toml_document.read(file).data.get("name", "")), file.parent)
    return by_name


# Which sections of workload.toml apply.


def stand_in(settings: Settings, kind: PlatformKind) -> StandIn | None:
    """None unless something small plays the chosen platform, whose `kind` is given, such as a local cloud."""
    return StandIn(LOCAL, kind.training_options) if kind.is_miniature(settings) else None


@dataclass(frozen=True)
class StandIn:
    """The platform that runs in place of the chosen one, such as the local cloud for Apulis.

    The chosen one's section still says how a job is made; what is trained, and what is claimed, is the stand-in's.
    """

    name: str
    replaces: Collection[str]  # options of the chosen one that say what is trained

    def leaves(self, key: str) -> bool:
        """True if the section of the chosen platform gives this key."""
        return key == _DEVICES or key not in {*KEYS, *self.replaces}


@dataclass(frozen=True)
class Sections:
    """Which sections of a workload.toml apply beside its top."""

    frameworks: Collection[str]
    stand_in: StandIn | None

    def of(self, document: Document, platform: str) -> tuple[Callable[[str], tuple[str, ...]], dict[str, Any]]:
        """Where each key stands, and the values; keys of later sections replace those of earlier ones."""
        rows = self._keys(document, platform)
        if self.stand_in and self.stand_in.name in document.data:
            pods = {key: row for key, row in rows.items() if self.stand_in.leaves(key)}
            trained = self._keys(document, self.stand_in.name)
            rows = pods | {key: row for key, row in trained.items() if key in KEYS - {_DEVICES}}
        return lambda key: rows[key][0] if key in rows else (), {key: value for key, (_, value) in rows.items()}

    def _keys(self, document: Document, platform: str) -> dict[str, tuple[tuple[str, ...], Any]]:
        """The keys of the platform, replaced by those of the framework to train with."""
        common: dict[str, tuple[tuple[str, ...], Any]] = {}
        chosen: dict[str, tuple[tuple[str, ...], Any]] = {}
        for key, value in document.data.get(platform, {}).items():
            if key not in FRAMEWORKS:
                common[key] = (platform,), value
            elif not isinstance(value, dict):
                raise document.fault(f"{platform}.{key} is a section", platform, key)
            elif key in self.frameworks and not chosen:
                chosen = {name: ((platform, key), item) for name, item in {"framework": key, **value}.items()}
        return common | chosen


# workload.toml.


def read_workload(
    document: Document,
    platform: str,
    options: Collection[str],
    platforms: Collection[str],
    *,
    trains: bool,
    sections: Sections,
) -> Workload:
    _check_keys(document, platforms)
    where, section = sections.of(document, platform)
    own = {key: value for key, value in section.items() if key not in KEYS}
    for key in own:
        if key not in options:
            advice = f"known: {', '.join(sorted({*KEYS, *options}))}"
            raise document.fault(f"unknown key {key!r} in [{platform}]", *where(key), key, advice=advice)
    fields = Fields(document, where, {**{k: v for k, v in document.data.items() if k in KEYS}, **section})
    for key in _REQUIRED:
        fields.need(key)
    folder, code, entry = document.path.parent, tuple(fields.texts("code")), fields.text("entry")
    name = _name(fields)
    if trains:
        _check_code(fields, folder, code, entry, platform)
    return Workload(
        name=name,
        folder=str(folder),
        code=code,
        entry=entry,
        framework=fields.text("framework", PYTHON),
        devices=fields.positive("devices", 8, MOST_CARDS),
        metrics=read_metrics(fields.table("metrics"), fields.pairs("parameters"), fields.fault),
        parameters=fields.pairs("parameters"),
        environment=_environment(fields),
        data=_data(fields, folder),
        data_contains=_data_contains(fields),
        expected_s=fields.duration("expected"),
        options=own,
        update=_update(fields, folder),
        urls_by=_urls_by(fields),
        **_miniature(document, fields, [platform, *([sections.stand_in.name] if sections.stand_in else [])]),
    )


def _miniature(document: Document, fields: Fields, places: Iterable[str]) -> dict[str, Any]:
    """If plain Python trains in place of the framework that the file names: which, and whether a section offers it."""
    framework, entry = document.data.get("framework", PYTHON), document.data.get("entry")
    is_replaced = fields.text("framework", PYTHON) == PYTHON != framework and fields.text("entry") != entry
    if not is_replaced:
        return {}
    offered = framework in FRAMEWORKS and any(framework in document.data.get(place, {}) for place in places)
    return {"miniature_of": framework, "has_real_section": offered}


def _check_keys(document: Document, platforms: Collection[str]) -> None:
    for key, value in document.data.items():
        if key in platforms:
            if not isinstance(value, dict):
                raise document.fault(f"{key} is a section", key, advice=f"write [{key}] on a line of its own")
        elif key not in KEYS:
            advice = f"known: {', '.join(sorted(KEYS))}; sections: {', '.join(sorted(platforms))}"
            raise document.fault(f"unknown key {key!r}", key, advice=advice)


def _name(fields: Fields) -> str:
    name = fields.text("name")
    if not NAME.match(name):
        raise fields.fault(f"name {name!r} is not a name", "name", advice="use letters, digits, '.', '_' and '-'")
    return name


def _check_code(fields: Fields, folder: Path, code: tuple[str, ...], entry: str, platform: str) -> None:
    for part in code:
        if not (folder / part).is_dir():
            raise fields.fault(f"code: there is no folder {part!r} beside this file", "code")
    if not any(_contains(folder / part, entry) for part in code):
        advice = f"on platform {platform} it is the file that is run once per card"
        raise fields.fault(f"entry: there is no {entry!r} in {', '.join(code)}", "entry", advice=advice)


def _contains(folder: Path, entry: str) -> bool:
    """True if the file lies in the folder, also after following links: a file outside is not uploaded."""
    file = (folder / entry).resolve()
    return file.is_file() and file.is_relative_to(folder.resolve())


def _urls_by(fields: Fields) -> str:
    value = fields.text("urls_by", BY_PARAMETER)
    if value not in {BY_PARAMETER, BY_ENVIRONMENT}:
        advice = f'write "{BY_PARAMETER}", or "{BY_ENVIRONMENT}" for a script that takes neither train_url nor data_url'
        raise fields.fault(f"urls_by: {value!r} is neither of the two", "urls_by", advice=advice)
    return value


def _environment(fields: Fields) -> dict[str, str]:
    pairs = fields.pairs("environment")
    for name, value in pairs.items():
        if fault := level_fault(name, value):
            raise fields.fault(f"environment: {fault}", "environment", name)
    return pairs


def level_fault(name: str, value: object) -> str:
    """Why the value is no log level of this variable; empty if it is one, and for other variables."""
    words = LEVELS.get(name)
    if words is None or str(value) in map(str, range(len(words))):
        return ""
    meanings = ", ".join(f"{number} {word}" for number, word in enumerate(words))
    return f"{name} is none of {meanings}"


def _update(fields: Fields, folder: Path) -> Update | None:
    """`update`: files that the nodes install before they train, wheels first, and levels of their logs."""
    table = fields.table("update")
    files: list[str] = []
    exports: dict[str, str] = {}
    for key, (pattern, what) in _FILES.items():
        for file in fields.texts("update", key) if key in table else []:
            if not re.fullmatch(pattern, Path(file).name):
                raise fields.fault(f"update.{key}: {file!r} is not {what}", "update", key)
            if not (folder / file).is_file():
                raise fields.fault(f"update.{key}: there is no file {file!r} beside this file", "update", key)
            files.append(file)
    for key, value in table.items():
        if key in LEVELS:
            if fault := level_fault(key, value):
                raise fields.fault(f"update: {fault}", "update", key)
            exports[key] = str(value)
        elif key not in _FILES:
            advice = f"known: {', '.join([*_FILES, *LEVELS])}"
            raise fields.fault(f"unknown key {key!r} in update", "update", key, advice=advice)
    return Update(tuple(files), exports) if table else None


def _data(fields: Fields, folder: Path) -> str | None:
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


def _data_contains(fields: Fields) -> tuple[str, ...]:
    if "data_contains" not in fields.values:
        return ()
    names = fields.texts("data_contains")
    for name in names:
        if name.startswith("/") or ".." in name.split("/"):
            advice = 'write them as they are called there, such as ["train/", "val/"]'
            raise fields.fault(f"data_contains: {name!r} is not in the data", "data_contains", advice=advice)
    return tuple(names)


@dataclass(frozen=True)
class Fields:
    """The merged keys of a workload; an error names the line of the section the key was taken from."""

    document: Document
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
            return parse_duration(str(self.values[key]))
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


# thresholds.toml: by platform, maybe framework, then shape.


def read_thresholds(
    document: Document, workload: Workload, platforms: Collection[str]
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


def split_scope(scope: str) -> tuple[str, dict[str, str]]:
    """The shape and the arguments of a key such as `1x8`, `*[batch_size=16]` or `1x8[batch_size=16,lr=0.1]`."""
    shape, bracket, rest = scope.partition("[")
    if not bracket:
        return shape, {}
    pairs = [pair.partition("=") for pair in rest.removesuffix("]").split(",")]
    names = [name.strip() for name, _, _ in pairs]
    if not rest.endswith("]") or not all(equals and name for name, equals, _ in pairs) or len({*names}) < len(names):
        raise UsageFault(f"{scope!r} is not a shape with arguments", advice="write it as 1x8[batch_size=16,lr=0.1]")
    return shape, {name: value.strip() for name, (_, _, value) in zip(names, pairs, strict=True)}


def case_scope(case: Case) -> str:
    """The key of the claims that hold for this case alone: its shape, and its arguments if it has any."""
    return f"{case.shape}{case.argument_text}"


def matching_scopes(scopes: Iterable[str], shape: Shape, arguments: Mapping[str, str]) -> list[str]:
    """Those that hold for a case: the more arguments a scope names, the later it comes; with as many, `*` first."""
    ranked: list[tuple[int, bool, str]] = []
    for scope in {ANY, str(shape), *scopes}:
        its_shape, its_arguments = split_scope(scope)
        if its_shape in {ANY, str(shape)} and _have_values(arguments, its_arguments):
            ranked.append((len(its_arguments), its_shape != ANY, scope))
    return [scope for _, _, scope in sorted(ranked)]


def _have_values(arguments: Mapping[str, str], wanted: Mapping[str, str]) -> bool:
    """True if the arguments have these values, which a person may write as another spelling of the same number."""
    return all(name in arguments and _is_value(arguments[name], text) for name, text in wanted.items())


def _is_value(value: str, text: str) -> bool:
    if text in {value, as_name(value)}:
        return True
    try:
        return float(value) == float(text)
    except ValueError:
        return False


def expired_claims(cases: Iterable[Case], today: str) -> list[str]:
    """A line for every expected failure whose last day is over, so that it no longer excuses a miss."""
    lines = {
        f"{expected.source}: {claim.metric} was expected to fail until {expected.until} ({expected.reason}): it counts"
        for case in cases
        for claim in case.thresholds
        if (expected := claim.expected_failure) and not expected.holds(today)
    }
    return sorted(lines)


def _scope(document: Document, workload: Workload, keys: tuple[str, ...], rows: Any) -> dict[str, Threshold]:
    """All thresholds of one shape, which is the last of the keys, maybe with arguments: `1x8[batch_size=16]`."""
    try:
        shape, _ = split_scope(keys[-1])
        if shape != ANY:
            Shape.parse(shape)
    except UsageFault as fault:
        raise document.fault(fault.message, *keys, advice=fault.advice) from None
    claimed = _tables(document, rows, *keys)
    return {metric: _threshold(document, workload, (*keys, metric), row) for metric, row in claimed.items()}


def _tables(document: Document, value: Any, *keys: str) -> dict[str, Any]:
    if not isinstance(value, dict):
        advice = 'claims stand in [<platform>."<shape>"], each as metric = { … }'
        raise document.fault(f"{'.'.join(keys)} is not a table", *keys, advice=advice)
    return value


def _threshold(document: Document, workload: Workload, keys: tuple[str, ...], row: Any) -> Threshold:
    metric = keys[-1]
    claim = _tables(document, row, *keys)

    def fault(message: str, key: str = "", advice: str = "") -> UsageFault:
        where = f"{metric}.{key}" if key else metric
        return document.fault(f"{where}: {message}", *keys, advice=advice)

    units = _units(workload)
    if metric not in units:
        where = "a package" if workload.names else f"[metrics] in {WORKLOAD_FILE}"
        advice = f"{where} has {', '.join(sorted(workload.metrics))}"
        raise fault("no script writes this metric", advice=advice)
    for key, value in claim.items():
        if key not in _CLAIM:
            raise fault("unknown key", key, advice=f"known: {', '.join(sorted(_CLAIM))}")
        if key in BOUND_KEYS and not _is_number(value):
            raise fault(f"{str(value)[:40]!r} is not a finite number", key)
        if key not in {*BOUND_KEYS, EXPECTED_FAILURE} and not isinstance(value, str):
            raise fault(f"{value!r} is not text", key)
    unit = units[metric]
    if claim.get("unit", unit) != unit:
        raise fault(f"{claim['unit']!r} is not the metric's unit {unit!r}", "unit")
    if claim.get("per") not in {None, "node", "device"}:
        raise fault(f"{claim['per']!r} is neither 'node' nor 'device'", "per")
    if metric in DERIVED and not DERIVED[metric].is_additive and "per" in claim:
        raise fault("it is not shared out among nodes or cards", "per")
    if (metric == SCALING) != ("base" in claim):
        raise fault("a scaling claim, and only that, has a base", "base", advice='such as base = "1x8"')
    if "base" in claim:
        try:
            Shape.parse(claim["base"])
        except UsageFault as wrong:
            raise fault(wrong.message, "base", advice=wrong.advice) from None
    _check_bounds(claim, fault)
    numbers = {key: float(claim[key]) for key in BOUND_KEYS if key in claim}
    expected = (
        _expected_failure(claim[EXPECTED_FAILURE], document.location(*keys), fault)
        if EXPECTED_FAILURE in claim
        else None
    )
    threshold = Threshold(
        metric=metric, unit=unit, per=claim.get("per"), base=claim.get("base"), expected_failure=expected, **numbers
    )
    _check_possible(threshold, fault)
    return threshold


def _units(workload: Workload) -> dict[str, str]:
    """The unit of every metric that may be claimed: those that the script writes, and those that we derive."""
    speed = workload.metrics[THROUGHPUT].unit
    written = {name: metric.unit for name, metric in workload.metrics.items()}
    return written | {name: speed if metric.unit is None else metric.unit for name, metric in DERIVED.items()}


def _expected_failure(table: Any, source: str, fault: Callable[..., UsageFault]) -> ExpectedFailure:
    advice = 'write expected_failure = { reason = "…", until = 2027-01-31 }'
    if not isinstance(table, dict):
        raise fault(f"{str(table)[:40]!r} is not a table", EXPECTED_FAILURE, advice=advice)
    if unknown := sorted(table.keys() - {"reason", "until"}):
        raise fault("unknown key", f"{EXPECTED_FAILURE}.{unknown[0]}", advice=advice)
    for key in ("reason", "until"):
        if key not in table:
            raise fault(f"{key} is missing", EXPECTED_FAILURE, advice=advice)
    reason, until = table["reason"], table["until"]
    if not isinstance(reason, str) or not reason.strip() or not reason.isprintable() or len(reason) > _LONGEST_REASON:
        wrong = f"{str(reason)[:40]!r} is not a line of 1 to {_LONGEST_REASON} characters"
        raise fault(wrong, f"{EXPECTED_FAILURE}.reason", advice=advice)
    if not isinstance(until, date) or isinstance(until, datetime):
        raise fault(f"{str(until)[:40]!r} is not a date without quotes", f"{EXPECTED_FAILURE}.until", advice=advice)
    return ExpectedFailure(reason.strip(), until.isoformat(), source)


def _is_number(value: Any) -> bool:
    try:
        return not isinstance(value, bool) and isinstance(value, (int, float)) and math.isfinite(value)
    except OverflowError:  # an integer beyond every float
        return False


def _check_possible(threshold: Threshold, fault: Callable[..., UsageFault]) -> None:
    """Raise for a threshold that every value or no value meets: a speed or a time is always above 0, a ratio between
    0 and 1; all else, such as a loss or an accuracy with a unit, may be below 0. Throughput and accuracy need a lower
    bound, or a job that does nothing would pass."""
    low, high = threshold.band(Shape(1, 1))
    ratio = threshold.metric in {ACCURACY, SCALING} and not threshold.unit
    is_positive = threshold.metric in _POSITIVE and (ratio or threshold.metric != ACCURACY)
    if is_positive and low <= 0 and high >= (1 if ratio else math.inf):
        raise fault("claims nothing: every value meets it")
    if (is_positive and high < 0) or (threshold.metric == ACCURACY and ratio and low > 1):
        raise fault("no value meets it", advice="an accuracy without a unit is between 0 and 1" if ratio else "")
    if low <= 0 and (threshold.metric == THROUGHPUT or (threshold.metric == ACCURACY and ratio)):
        advice = "give at_least, or a reference with lower above -1"
        raise fault("has no lower bound above 0: a job that does nothing meets it", advice=advice)


def _check_bounds(claim: Mapping[str, Any], fault: Callable[..., UsageFault]) -> None:
    """Raise for bounds that contradict each other, or that any number meets."""
    fixed = claim.keys() & {"at_least", "at_most"}
    relative = claim.keys() & {"lower", "upper"}
    if "reference" in claim and fixed:
        raise fault(f"reference and {' and '.join(sorted(fixed))} exclude each other")
    if relative and "reference" not in claim:
        raise fault(f"{' and '.join(sorted(relative))} without a reference")
    if not fixed and not relative:
        raise fault("claims nothing", advice="give at_least, at_most, or a reference with lower or upper")
    if claim.get("at_least", -math.inf) > claim.get("at_most", math.inf):
        raise fault("at_least is above at_most: no value meets it")
    # As in ReFrame: below a positive reference there is room down to 0, and above a negative one up to 0.
    reference, lower, upper = claim.get("reference", 0), claim.get("lower", 0), claim.get("upper", 0)
    if lower > 0 or (lower < -1 and reference > 0):
        span = "is not between -1 and 0" if reference > 0 else "is above 0"
        raise fault(f"{lower} {span}", "lower", advice="-0.05 allows 5 % below the reference")
    if upper < 0 or (upper > 1 and reference < 0):
        span = "is not between 0 and 1" if reference < 0 else "is below 0"
        raise fault(f"{upper} {span}", "upper", advice="0.05 allows 5 % above the reference")
