"""`workload.toml`, read and checked as one platform sees it."""

from __future__ import annotations

import re
from collections.abc import Collection
from pathlib import Path

from pytest_aisbench.domain.case import NAME, Update, Workload
from pytest_aisbench.domain.metric import ACCURACY, RECKONED, THROUGHPUT, Metric
from pytest_aisbench.domain.stage import StoreUrl
from pytest_aisbench.errors import UsageFault
from pytest_aisbench.services.fields import Fields
from pytest_aisbench.services.sections import KEYS, Sections
from pytest_aisbench.settings import option_types, places

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


def read(
    document: places.Document,
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
        framework=fields.text("framework", "python"),
        devices=fields.positive("devices", 8, option_types.MOST_CARDS),
        metrics=_metrics(fields),
        parameters=fields.pairs("parameters"),
        environment=_environment(fields),
        data=_data(fields, folder),
        data_contains=_contents(fields),
        expected_s=fields.duration("expected"),
        options=own,
        update=_update(fields, folder),
    )


def _check_keys(document: places.Document, platforms: Collection[str]) -> None:
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
    if not any(_holds(folder / part, entry) for part in code):
        advice = f"on platform {platform} it is the file that is run once per card"
        raise fields.fault(f"entry: there is no {entry!r} in {', '.join(code)}", "entry", advice=advice)


def _holds(folder: Path, entry: str) -> bool:
    """Also after links are followed: what lies outside the folder is not staged."""
    file = (folder / entry).resolve()
    return file.is_file() and file.is_relative_to(folder.resolve())


def _metrics(fields: Fields) -> dict[str, Metric]:
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


def _environment(fields: Fields) -> dict[str, str]:
    pairs = fields.pairs("environment")
    for name, value in pairs.items():
        if fault := level_fault(name, value):
            raise fields.fault(f"environment: {fault}", "environment", name)
    return pairs


def level_fault(name: str, value: object) -> str:
    """Why this is no value of a log level; empty where it is one, and for every other variable."""
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


def _contents(fields: Fields) -> tuple[str, ...]:
    if "data_contains" not in fields.values:
        return ()
    names = fields.texts("data_contains")
    for name in names:
        if name.startswith("/") or ".." in name.split("/"):
            advice = 'write them as they are called there, such as ["train/", "val/"]'
            raise fields.fault(f"data_contains: {name!r} is not in the data", "data_contains", advice=advice)
    return tuple(names)
