"""Reads an unpacked ais-bench package as an ordinary suite: its code, its session's settings, and our claims.

Only collection knows that there are packages. The job is the one that ais-bench-stubs would have created.
"""

from __future__ import annotations

import re
from collections.abc import Collection, Mapping
from dataclasses import dataclass, replace
from pathlib import Path, PurePosixPath

from pytest_aisbench.config import toml_document
from pytest_aisbench.config.legacy import shell_file
from pytest_aisbench.config.legacy.modelarts_config import SHELL, Section, open_config
from pytest_aisbench.config.options import LEGACY_FILE
from pytest_aisbench.config.settings import PlatformKind, Settings
from pytest_aisbench.config.toml_document import Document
from pytest_aisbench.engine.suites import LEVELS, THRESHOLDS_FILE, Suite, level_fault, read_thresholds
from pytest_aisbench.errors import UsageFault
from pytest_aisbench.model.case import NAME, WORKLOAD_FILE, Update, Workload
from pytest_aisbench.model.metric import ACCURACY, THROUGHPUT, Metric
from pytest_aisbench.platforms.modelarts import OPTIONS, request
from pytest_aisbench.platforms.modelarts.image_rules import PRE_START_SCRIPT
from pytest_aisbench.platforms.modelarts.request import POOL_FLAVORS

_NAMES = {"flavor": "train_instance_type", "data": "inputs", "entry": "boot_file", "devices": "DEVICE_NUM (config.sh)"}
_CODE = "code/code"
_FLAVOR = "flavor"  # the session calls it train_instance_type
_MOST_NODES = 99_999
_LONGEST_NAME = 40
_ENVIRONMENTS = ("mindspore_env.sh", "tensorflow_env.sh")
# What the guide of ais-bench-stubs reports per node of eight Ascend 910, for models that a parameter names.
_KNOWN = {"bert_network": ("sentences/s", "450.58", "0.7139"), "config_path": ("images/s", "14151.18", "0.7706")}


@dataclass(frozen=True)
class Package:
    """The suite, the nodes that the package asks for, and notes about what is not used."""

    suite: Suite
    nodes: int
    notes: tuple[str, ...]


def load_package(settings: Settings, kind: PlatformKind, platforms: Collection[str]) -> Package:
    """`kind` is the chosen platform's; `platforms` are the names of all platforms."""
    assert settings.package is not None
    folder, version = settings.package, settings.modelarts_version
    named = settings.config if settings.config and settings.config.name.endswith(LEGACY_FILE) else None
    config = open_config(named, folder, trusted=settings.trust_config)
    session = config.session(version)
    notes = config.unused_keys(version, OPTIONS - {_FLAVOR}) + _offline_notes(folder)
    workload = _workload(folder, session, version)
    if kind.emulation:
        update = _update(folder, workload.entry, notes)
        # A script of the package's own would fail without its files. One of ours is not written: run/ is for the cloud.
        kept = update is not None and not update.installed
        workload = replace(workload, update=update if kept else None)
        without = "without its inputs" if kept else "without its inputs and its run/ folder"
        notes.append(f"{session.path}: the local cloud runs the package's code, {without}")
    else:
        workload = _for_cloud(workload, session, kind.options, notes)
    path = folder / THRESHOLDS_FILE
    if not path.is_file():
        raise _no_thresholds(path, settings.platform, workload)
    document = toml_document.read(path)
    workload = replace(workload, metrics=_metrics(document))
    suite = Suite(workload, read_thresholds(document, workload, platforms), settings.platform, str(path))
    return Package(suite, session.count("train_instance_count", _MOST_NODES), tuple(notes))


def _workload(folder: Path, session: Section, version: str) -> Workload:
    name = session.need("job_name")
    if not NAME.match(name[:_LONGEST_NAME]):
        raise session.fault("job_name", "is not a name", "use letters, digits, '.', '_' and '-'")
    code = session.store_path("code_dir").rstrip("/")
    boot = session.store_path("boot_file")
    if not code or not boot.startswith(f"{code}/"):
        raise session.fault("boot_file", "is not in code_dir", "write both as /bucket/folder/…")
    entry = boot.removeprefix(f"{code}/")
    if ".." in entry.split("/") or not (folder / _CODE / entry).is_file():
        raise session.fault("boot_file", f"names {entry!r}, which is not in {folder / _CODE}")
    return Workload(
        name=name[:_LONGEST_NAME],
        folder=str(folder.absolute()),
        code=(_CODE,),
        entry=entry,
        framework=_framework(session.text("framework_version")),
        devices=_devices(session, folder),
        metrics={},
        parameters=session.parameters(version),
        folder_name=PurePosixPath(code).name,
        names={**_NAMES, WORKLOAD_FILE: f"{session.name} of {session.path}"},
    )


def _for_cloud(workload: Workload, session: Section, options: Collection[str], notes: list[str]) -> Workload:
    """The workload with its data, its options and its updates, which only the cloud uses."""
    data = session.store_path("inputs").rstrip("/")
    return replace(
        workload,
        data=f"obs:/{data}/" if data else None,
        data_contains=_contents(workload.parameters),
        options={key: value for key, value in _options(session).items() if key in options},
        update=_update(Path(workload.folder), workload.entry, notes),
    )


def _contents(parameters: Mapping[str, str]) -> tuple[str, ...]:
    """What the data of a model must contain, by the guide of ais-bench-stubs."""
    if "bert_network" in parameters:
        return ("train/", "val/", "ms_bert_large.ckpt")
    return ("train/", "val/") if "imagenet" in parameters.get("config_path", "") else ()


def _options(session: Section) -> dict[str, str]:
    flavor, pool = session.text("train_instance_type"), session.text("pool_id")
    if flavor and pool and not flavor.startswith(POOL_FLAVORS):
        advice = "set train_instance_type to None for a dedicated pool, or pool_id to None for the public one"
        raise session.fault("pool_id", "and train_instance_type exclude each other", advice)
    if not flavor and not pool:
        advice = "such as modelarts.kat1.8xlarge; or set pool_id for a dedicated pool"
        raise session.fault("train_instance_type", "is missing", advice)
    session.need("framework_version")
    given = {_FLAVOR: "" if pool else flavor}
    for key in sorted(OPTIONS - {_FLAVOR}):
        given[key] = session.text(key)
    return {key: value for key, value in given.items() if value}


def _framework(version: str) -> str:
    match = re.match(r"mindspore|tensorflow", version, re.IGNORECASE)
    return match[0].lower() if match else "python"


def _devices(session: Section, folder: Path) -> int:
    """By the flavor's name; if it does not tell, as config.sh says."""
    cards = request.cards_of_flavor(session.text("train_instance_type"))
    if cards:
        return cards
    shell = shell_file.read(folder / SHELL)
    count = shell.text("DEVICE_NUM") if "DEVICE_NUM" in shell.values else "8"
    if count not in {"1", "2", "4", "8", "16"}:
        raise UsageFault(f"{shell.location('DEVICE_NUM')}: DEVICE_NUM is none of 1, 2, 4, 8, 16")
    return int(count)


def _update(folder: Path, entry: str, notes: list[str]) -> Update | None:
    """The files of the package's `run/`. If the package has a pre-start script of its own, that installs them."""
    beside = folder / _CODE / PurePosixPath(entry).parent
    script = beside / PRE_START_SCRIPT
    files = sorted((folder / "run").glob("*"), key=lambda path: (path.suffix != ".whl", path.name))
    paths = tuple(str(path.relative_to(folder)) for path in files if path.is_file())
    if script.is_file():
        _check_script(script, entry, notes)
        return Update(paths, installed=False) if paths else None
    return Update(_dependencies_first(paths)) if paths else None


def _dependencies_first(files: tuple[str, ...]) -> tuple[str, ...]:
    """Wheels before CANN, and protobuf before what needs it: the order of the script of ais-bench-stubs."""
    return tuple(sorted(files, key=lambda file: (file.endswith(".run"), "protobuf" not in file, file)))


def _check_script(script: Path, entry: str, notes: list[str]) -> None:
    variables = shell_file.read(script)
    for name in LEVELS:
        value = variables.values.get(name)
        if isinstance(value, str) and (fault := level_fault(name, value)):
            raise UsageFault(f"{variables.location(name)}: {fault}")
    text = script.read_text(encoding="utf-8", errors="replace")
    if re.search(r"-name\s+['\"]?train\.py\b", text) and PurePosixPath(entry).name != "train.py":
        notes.append(
            f"{script} looks for train.py and the boot file is {entry}: it would update nothing; without it, run/ is "
            "installed by one that finds its own place"
        )


def _offline_notes(folder: Path) -> list[str]:
    notes = []
    for name in _ENVIRONMENTS:
        path = folder / "code/config" / name
        if count := len(shell_file.read(path).values):
            notes.append(f"{path}: its {count} variables are for offline runs, and jobs on ModelArts do not get them")
    return notes


def _metrics(document: Document) -> dict[str, Metric]:
    """The unit of the claim on throughput, since a package does not tell its unit."""
    unit = "samples/s"
    for shapes in document.data.values():
        for rows in shapes.values() if isinstance(shapes, dict) else ():
            row = rows.get(THROUGHPUT) if isinstance(rows, dict) else None
            if isinstance(row, dict) and isinstance(row.get("unit"), str):
                unit = row["unit"]
    return {THROUGHPUT: Metric(THROUGHPUT, unit), ACCURACY: Metric(ACCURACY, "")}


def _no_thresholds(path: Path, platform: str, workload: Workload) -> UsageFault:
    example_row = next((row for key, row in _KNOWN.items() if key in workload.parameters), None)
    unit, throughput, accuracy = example_row or ("samples/s", "1000", "0.75")
    why = "the guide's numbers for eight Ascend 910" if example_row else "put your own numbers here"
    example = (
        f'[{platform}."*"]  # {why}\n'
        f'throughput = {{ reference = {throughput}, lower = -0.05, unit = "{unit}", per = "node" }}\n'
        f"accuracy = {{ reference = {accuracy}, lower = -0.01 }}\n"
    )
    return UsageFault(f"{path}: there is no such file, so nothing is claimed", advice=f"write it, such as\n\n{example}")
