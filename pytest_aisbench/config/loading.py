"""Reads all settings of a run: command line > environment > ini > aisbench.toml > default; and the manifest.

Begin with `load_settings`. A wrong or contradictory value is a UsageFault that names its source.
"""

from __future__ import annotations

import re
from collections.abc import Collection, Iterator, Mapping
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

from pytest_aisbench.config.access import (
    ACCESS_SECRETS,
    TESTER_SECRETS,
    exposure_warnings,
    merge_access,
    read_access,
    read_hosts,
    read_tester,
    tester_of_package,
)
from pytest_aisbench.config.options import CONFIG_FILE, LEGACY_FILE, OPTIONS, Option, parse_path, parse_switch
from pytest_aisbench.config.settings import PlatformKind, PlatformKinds, Settings
from pytest_aisbench.errors import UsageFault, near_names, perhaps, raise_together

if TYPE_CHECKING:
    from pytest_aisbench.config.legacy.modelarts_config import LegacySettings
    from pytest_aisbench.config.toml_document import Document

_TABLES = ("access", "hosts")  # beside those of platforms; [tester] is an option too
_SECRETS = {"access": ACCESS_SECRETS, "tester": TESTER_SECRETS}  # by table, of those that every platform has


class Given(NamedTuple):
    """The text of a value, its source, and the folder in which its relative paths begin."""

    text: str
    source: str
    folder: Path


def load_settings(
    command_line: Mapping[str, str | None],
    ini: Mapping[str, str],
    environment: Mapping[str, str],
    root: Path,
    platforms: PlatformKinds,
) -> Settings:
    """Merge all sources. `root` is the default folder of the configuration file and of the reports.

    A relative path begins in the folder of its source: the shell's, or the file's. The chosen platform's kind checks
    the rest. An unknown platform has the defaults here; the start of the session refuses it.
    """
    options = {row.name: row for row in OPTIONS}
    given = _given(options, command_line, ini, environment, root)
    document = _document(given, root, platforms)
    if document:
        given = {**_given_in_file(options, document, environment), **given}
    platform, on_cloud = given["platform"].text if "platform" in given else Settings.platform, "cloud" in given
    kind = platforms.find_kind(platform) or PlatformKind()
    kinds = _kinds_with_tables(document, platforms)
    tables, for_tables = _tables(document, environment, kinds, used="" if on_cloud else platform)
    uses_access = kind.uses_access(tables.get(platform), on_local_cloud=on_cloud)
    access, for_access = read_access(document, environment, used=uses_access)
    notes: tuple[str, ...] = ()
    table = document.data.get("access") if document else None
    written = frozenset(table) if isinstance(table, dict) else frozenset[str]()
    if legacy := _legacy_settings(options, given, connects=not kind.emulation, written=written):
        given = {**{key: Given(text, source, root) for key, (text, source) in legacy.options.items()}, **given}
        access, notes = merge_access(access, written, legacy.access) if legacy.access else access, legacy.notes
        given, about_tester = _with_tester_of_package(options, given, document, emulation=kind.emulation)
        notes += about_tester
    secrets = {**_SECRETS, **{name: each.table_secrets for name, each in kinds.items()}}
    if document and _contains_secrets(document, secrets):
        notes += exposure_warnings(document.path)
    access, about_keys = kind.complete_access(access, environment)
    notes += about_keys
    values, faults = _parse_all(options, given)
    tester, for_tester = read_tester(document, environment, values.get("package"), used=bool(values.get("tester")))
    raise_together([*faults, *_unknown_variables(environment, options, for_access | for_tables | for_tester)])
    sources = {key: value.source for key, value in given.items()}
    hosts = read_hosts(document)
    settings = Settings(
        **{"reports": root / "reports", **values},
        access=replace(access, hosts=hosts),
        tables=tables,
        tester_access=replace(tester, hosts=hosts),
        sources=sources,
        notes=notes,
        required=_required(values.get("require"), sources),
    )
    kind.check(settings)
    return settings


def _kinds_with_tables(document: Document | None, platforms: PlatformKinds) -> dict[str, PlatformKind]:
    """The kinds of the platforms that have a table in the file, by name."""
    own_keys = {*_TABLES, *(row.name for row in OPTIONS)}
    kinds = {key: platforms.find_kind(key) for key in (document.data if document else ()) if key not in own_keys}
    return {key: kind for key, kind in kinds.items() if kind}


def _tables(
    document: Document | None, environment: Mapping[str, str], kinds: Mapping[str, PlatformKind], *, used: str
) -> tuple[dict[str, Any], frozenset[str]]:
    """The tables as the platforms read them, and the names of environment variables in them.

    `used` is the platform whose values must be complete.
    """
    tables: dict[str, Any] = {}
    taken: frozenset[str] = frozenset()
    for name, kind in kinds.items():
        assert document is not None
        tables[name], names = kind.read_table(document, environment, used=name == used)
        taken |= names
    return tables, taken


def _given(
    options: Mapping[str, Option],
    command_line: Mapping[str, str | None],
    ini: Mapping[str, str],
    environment: Mapping[str, str],
    root: Path,
) -> dict[str, Given]:
    """The values from the command line, the environment and ini, by name; the first source that has one wins."""
    given: dict[str, Given] = {}
    for row in options.values():
        if (text := command_line.get(row.name)) is not None:
            given[row.name] = Given(str(text), row.flag, Path.cwd())
        elif text := environment.get(row.environment):
            given[row.name] = Given(text, row.environment, Path.cwd())
        elif text := ini.get(row.name):
            given[row.name] = Given(text, f"ini {row.ini}", root)
    return given


def _given_in_file(
    options: Mapping[str, Option], document: Document, environment: Mapping[str, str]
) -> dict[str, Given]:
    return {
        key: Given(_text(document, key, value), f"{document.location(key)}: {key}", document.path.parent)
        for key, value in _options_of_file(document, environment).items()
        if key in options
    }


def _contains_secrets(document: Document, secrets: Mapping[str, Collection[str]]) -> bool:
    """True if the file has a secret itself, not only the name of a variable."""
    from pytest_aisbench.config.toml_document import expand_variables

    return any(
        isinstance(table := document.data.get(name), dict)
        and bool(expand_variables(str(table.get(key, "")), {}).strip())
        for name, keys in secrets.items()
        for key in keys
    )


def _required(manifest: Path | None, sources: Mapping[str, str]) -> tuple[str, ...]:
    if manifest is None:
        return ()
    try:
        return read_manifest(manifest)
    except UsageFault as fault:
        raise UsageFault(f"{sources['require']}: {fault}") from None


def _legacy_settings(
    options: Mapping[str, Option], given: Mapping[str, Given], *, connects: bool, written: Collection[str]
) -> LegacySettings | None:
    """The settings in files of ais-bench-stubs, if the run names any; with keys only if the run `connects`, and those
    that are not `written` in [access]."""
    named = given.get("config")
    config = _parse(options["config"], named) if named and named.text.endswith(LEGACY_FILE) else None
    package = _parse(options["package"], given["package"]) if "package" in given else None
    if config is None and package is None:
        return None
    from pytest_aisbench.config.legacy.modelarts_config import read_legacy_files

    version = given["modelarts_version"].text if "modelarts_version" in given else ""
    trusted = _parse(options["trust_config"], given["trust_config"]) if "trust_config" in given else False
    return read_legacy_files(config, package, version, trusted=trusted, connects=connects, written=written)


def _with_tester_of_package(
    options: Mapping[str, Option], given: dict[str, Given], document: Document | None, *, emulation: bool
) -> tuple[dict[str, Given], tuple[str, ...]]:
    """What is given, with the Tester of the package if the user names none; and a note if that is not used."""
    if "tester" in given or "package" not in given:
        return given, ()
    package = _parse(options["package"], given["package"])
    table = document.data.get("tester") if document else None
    has_token = isinstance(table, dict) and bool(table.get("token"))
    tester = tester_of_package(package, has_token=has_token, emulation=emulation)
    if tester.address:
        given = {**given, "tester": Given(tester.address, tester.source, package)}
    return given, (tester.note,) if tester.note else ()


def _document(given: Mapping[str, Given], root: Path, platforms: PlatformKinds) -> Document | None:
    named, default = given.get("config"), root / CONFIG_FILE
    if named.text.endswith(LEGACY_FILE) if named else not default.is_file():
        return None
    from pytest_aisbench.config import toml_document

    if named:
        try:
            return _check_keys(toml_document.read(named.folder / parse_path(named.text)), platforms)
        except (UsageFault, ValueError) as fault:
            raise UsageFault(f"{named.source}: {fault}") from None
    return _check_keys(toml_document.read(default), platforms)


def _check_keys(document: Document, platforms: PlatformKinds) -> Document:
    allowed = [*(row.name for row in OPTIONS if row.name != "config"), *_TABLES]
    if unknown := [key for key in document.data if key not in allowed and not _has_table(key, platforms)]:
        allowed += [name for name in platforms.platforms if _has_table(name, platforms)]
        raise_together(document.fault(f"unknown key {key!r}", key, advice=perhaps(key, allowed)) for key in unknown)
    return document


def _has_table(name: str, platforms: PlatformKinds) -> bool:
    kind = platforms.find_kind(name)
    return kind is not None and bool(kind.table_keys)


def _options_of_file(document: Document, environment: Mapping[str, str]) -> dict[str, Any]:
    """The keys of the file, with the url of a table `[tester]` as the option `tester`."""
    from pytest_aisbench.config.toml_document import expand_variables

    tester = document.data.get("tester")
    if not isinstance(tester, dict):
        return document.data
    rest = {key: value for key, value in document.data.items() if key != "tester"}
    return {**rest, "tester": expand_variables(str(tester["url"]), environment)} if "url" in tester else rest


def _text(document: Document, key: str, value: Any) -> str:
    if isinstance(value, list):
        return ",".join(_text(document, key, item) for item in value)
    if isinstance(value, bool) and any(row.parse is parse_switch for row in OPTIONS if row.name == key):
        return str(value)
    if isinstance(value, bool) or not isinstance(value, (str, int, float)):
        raise document.fault(f"{key} cannot be a {type(value).__name__}", key)
    return str(value)


def _parse(row: Option, given: Given) -> Any:
    try:
        value = row.parse(given.text)
    except ValueError as error:
        raise UsageFault(f"{given.source}: {error}", advice=f"{row.flag} {row.metavar}: {row.help}") from None
    return given.folder / value if isinstance(value, Path) else value


def _parse_all(
    options: Mapping[str, Option], given: Mapping[str, Given]
) -> tuple[dict[str, Any], tuple[UsageFault, ...]]:
    """The values, and what is wrong with those that have none."""
    values: dict[str, Any] = {}
    faults: list[UsageFault] = []
    for key, value in given.items():
        try:
            values[key] = _parse(options[key], value)
        except UsageFault as fault:
            faults.append(fault)
    return values, tuple(faults)


def _unknown_variables(
    environment: Mapping[str, str], options: Mapping[str, Option], used: frozenset[str]
) -> Iterator[UsageFault]:
    prefix = "AISBENCH_"
    names = [row.environment for row in options.values()]
    for key in environment:
        if key.startswith(prefix) and key not in names and key not in used:
            # All names begin alike: only the rest of them can be near or far.
            rests = [name.removeprefix(prefix) for name in names]
            near = [prefix + rest for rest in near_names(key.removeprefix(prefix), rests)]
            advice = (
                f"did you mean {' or '.join(near)}?"
                if near
                else "unset it, or see `pytest --help`: --aisbench-NAME is AISBENCH_NAME"
            )
            yield UsageFault(f"{key}: unknown environment variable", advice=advice)


# The manifest of --aisbench-require: the cases that must have run

_CASE = re.compile(r"\S+-[1-9][0-9]*x[1-9][0-9]*(-single)?(\[\S+=\S+\])?")
_ADVICE = "one case id a line, such as resnet50-2x8; `aisbench require` writes them"


def read_manifest(path: Path) -> tuple[str, ...]:
    """The case ids of a manifest: one per line, with `#` for comments; or `cases = […]` in a file `*.toml`.

    There are no wildcards: a manifest must notice a missing case, and a pattern would not.
    """
    rows = _of_toml(path) if path.suffix == ".toml" else _of_lines(path)
    for line, case in rows:
        if not isinstance(case, str) or not _CASE.fullmatch(case):
            raise UsageFault(f"the manifest {path}{line}: {case!r} is no case id", advice=_ADVICE)
    if not rows:
        raise UsageFault(f"the manifest {path} requires nothing", advice=_ADVICE)
    return tuple(dict.fromkeys(case for _, case in rows))


def _of_lines(path: Path) -> list[tuple[str, str]]:
    try:
        text = path.read_text(encoding="utf-8-sig")
    except OSError as error:
        raise UsageFault(f"the manifest {path} cannot be read: {error.strerror}", advice=_ADVICE) from None
    except UnicodeDecodeError:
        raise UsageFault(f"the manifest {path} is not text in UTF-8", advice=_ADVICE) from None
    lines = ((f":{number}", line.partition("#")[0].strip()) for number, line in enumerate(text.splitlines(), start=1))
    return [(number, case) for number, case in lines if case]


def _of_toml(path: Path) -> list[tuple[str, Any]]:
    from pytest_aisbench.config import toml_document

    document = toml_document.read(path)
    cases = document.data.get("cases", [])
    if not isinstance(cases, list) or set(document.data) - {"cases"}:
        raise UsageFault(f"the manifest {path} is not cases = […] alone", advice=_ADVICE)
    return [("", case) for case in cases]
