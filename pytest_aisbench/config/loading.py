"""Reading what a run is told: command line > environment > ini > file > default, and what contradicts itself."""

from __future__ import annotations

import re
from collections.abc import Collection, Mapping
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

from pytest_aisbench.config.access import (
    ACCESS_SECRETS,
    TESTER_SECRETS,
    exposure_warnings,
    read_access,
    read_hosts,
    read_tester,
)
from pytest_aisbench.config.platform_kind import PlatformKind, PlatformKinds
from pytest_aisbench.config.settings import (
    CONFIG_FILE,
    LEGACY_FILE,
    Option,
    Settings,
    option_table,
    parse_path,
    parse_switch,
)
from pytest_aisbench.errors import UsageFault, perhaps

if TYPE_CHECKING:
    from pytest_aisbench.config.legacy.modelarts_config import LegacySettings
    from pytest_aisbench.config.toml_document import Document

_TABLES = ("access", "hosts")  # beside those of platforms; [tester] is an option too
_SECRETS = {"access": ACCESS_SECRETS, "tester": TESTER_SECRETS}  # of each table that every platform has


class Given(NamedTuple):
    """A value as it was written, by whom, and the folder in which its relative paths begin."""

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
    """Merge all sources into one value. `root` is where the configuration file and the reports are by default.

    A relative path begins in the folder of its source: the shell's, or the file's. The chosen platform's kind says
    what else must be there; a platform that is not known has the defaults, and is refused when the session starts.
    """
    options = {row.name: row for row in option_table()}
    given = _given(options, command_line, ini, environment, root)
    document = _document(given, root, platforms)
    if document:
        given = {**_of_file(options, document, environment), **given}
    platform, on_cloud = given["platform"].text if "platform" in given else Settings.platform, "cloud" in given
    kind = platforms.find_kind(platform) or PlatformKind()
    kinds = _with_tables(document, platforms)
    tables, for_tables = _tables(document, environment, kinds, used="" if on_cloud else platform)
    uses_access = kind.uses_access(tables.get(platform), on_local_cloud=on_cloud)
    access, for_access = read_access(document, environment, used=uses_access)
    notes: tuple[str, ...] = ()
    keyless = not document or "access" not in document.data
    if taken := _taken(options, given, connects=keyless and not kind.emulation):
        given = {**{key: Given(text, source, root) for key, (text, source) in taken.options.items()}, **given}
        access, notes = taken.access or access, taken.notes
    secrets = {**_SECRETS, **{name: each.table_secrets for name, each in kinds.items()}}
    if document and _spells_secrets(document, secrets):
        notes += exposure_warnings(document.path)
    access, about_keys = kind.complete_access(access, environment)
    notes += about_keys
    values = {key: _parsed(options[key], told) for key, told in given.items()}
    tester, for_tester = read_tester(document, environment, values.get("package"), used=bool(values.get("tester")))
    _no_strangers(environment, options, for_access | for_tables | for_tester)
    sources = {key: told.source for key, told in given.items()}
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


def _with_tables(document: Document | None, platforms: PlatformKinds) -> dict[str, PlatformKind]:
    """The platforms that have a table in the file, by their names."""
    ours = {*_TABLES, *(row.name for row in option_table())}
    kinds = {key: platforms.find_kind(key) for key in (document.data if document else ()) if key not in ours}
    return {key: kind for key, kind in kinds.items() if kind}


def _tables(
    document: Document | None, environment: Mapping[str, str], kinds: Mapping[str, PlatformKind], *, used: str
) -> tuple[dict[str, Any], frozenset[str]]:
    """What the platforms make of their tables, and the names that were taken from the environment.

    `used` is the platform whose values must be there.
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
    found: dict[str, Given] = {}
    for row in options.values():
        if (told := command_line.get(row.name)) is not None:
            found[row.name] = Given(str(told), row.flag, Path.cwd())
        elif told := environment.get(row.environment):
            found[row.name] = Given(told, row.environment, Path.cwd())
        elif told := ini.get(row.name):
            found[row.name] = Given(told, f"ini {row.ini}", root)
    return found


def _of_file(options: Mapping[str, Option], document: Document, environment: Mapping[str, str]) -> dict[str, Given]:
    return {
        key: Given(_text(document, key, value), f"{document.location(key)}: {key}", document.path.parent)
        for key, value in _flat(document, environment).items()
        if key in options
    }


def _spells_secrets(document: Document, secrets: Mapping[str, Collection[str]]) -> bool:
    """Whether a key stands in the file itself, and not just the name of a variable."""
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


def _taken(options: Mapping[str, Option], given: Mapping[str, Given], *, connects: bool) -> LegacySettings | None:
    """What the predecessor's own files say, where the run was pointed at them; their keys if the run `connects`."""
    named = given.get("config")
    config = _parsed(options["config"], named) if named and named.text.endswith(LEGACY_FILE) else None
    package = _parsed(options["package"], given["package"]) if "package" in given else None
    if config is None and package is None:
        return None
    from pytest_aisbench.config.legacy.modelarts_config import read_legacy_files

    version = given["modelarts_version"].text if "modelarts_version" in given else ""
    trusted = _parsed(options["trust_config"], given["trust_config"]) if "trust_config" in given else False
    return read_legacy_files(config, package, version, trusted=trusted, connects=connects)


def _document(given: Mapping[str, Given], root: Path, platforms: PlatformKinds) -> Document | None:
    told, found = given.get("config"), root / CONFIG_FILE
    if told.text.endswith(LEGACY_FILE) if told else not found.is_file():
        return None
    from pytest_aisbench.config import toml_document

    if told:
        try:
            return _checked(toml_document.read(told.folder / parse_path(told.text)), platforms)
        except (UsageFault, ValueError) as fault:
            raise UsageFault(f"{told.source}: {fault}") from None
    return _checked(toml_document.read(found), platforms)


def _checked(document: Document, platforms: PlatformKinds) -> Document:
    known = [*(row.name for row in option_table() if row.name != "config"), *_TABLES]
    for key in document.data:
        if key not in known and not _has_table(key, platforms):
            known += [name for name in platforms.platforms if _has_table(name, platforms)]
            raise document.fault(f"unknown key {key!r}", key, advice=perhaps(key, known))
    return document


def _has_table(name: str, platforms: PlatformKinds) -> bool:
    kind = platforms.find_kind(name)
    return kind is not None and bool(kind.table_keys)


def _flat(document: Document, environment: Mapping[str, str]) -> dict[str, Any]:
    """With `tester` as it is on the command line, where the file has a table of that name."""
    from pytest_aisbench.config.toml_document import expand_variables

    told = document.data.get("tester")
    if not isinstance(told, dict):
        return document.data
    rest = {key: value for key, value in document.data.items() if key != "tester"}
    return {**rest, "tester": expand_variables(str(told["url"]), environment)} if "url" in told else rest


def _text(document: Document, key: str, value: Any) -> str:
    if isinstance(value, list):
        return ",".join(_text(document, key, item) for item in value)
    if isinstance(value, bool) and any(row.parse is parse_switch for row in option_table() if row.name == key):
        return str(value)
    if isinstance(value, bool) or not isinstance(value, (str, int, float)):
        raise document.fault(f"{key} cannot be a {type(value).__name__}", key)
    return str(value)


def _parsed(row: Option, told: Given) -> Any:
    try:
        value = row.parse(told.text)
    except ValueError as error:
        raise UsageFault(f"{told.source}: {error}", advice=f"{row.flag} {row.metavar}: {row.help}") from None
    return told.folder / value if isinstance(value, Path) else value


def _no_strangers(environment: Mapping[str, str], options: Mapping[str, Option], used: frozenset[str]) -> None:
    known = [row.environment for row in options.values()]
    for key in environment:
        if key.startswith("AISBENCH_") and key not in known and key not in used:
            raise UsageFault(f"{key}: unknown environment variable", advice=perhaps(key, known))


# -- The manifest of `--aisbench-require`: the cases that must have run.

_CASE = re.compile(r"\S+-[1-9][0-9]*x[1-9][0-9]*(-single)?")
_ADVICE = "one case id a line, such as resnet50-2x8; `aisbench require` writes them"


def read_manifest(path: Path) -> tuple[str, ...]:
    """Case ids, a line each, with `#` for comments; a file that ends in `.toml` has `cases = […]`.

    There are no wildcards: a manifest is there to notice what a pattern would not miss.
    """
    found = _of_toml(path) if path.suffix == ".toml" else _of_lines(path)
    for place, case in found:
        if not isinstance(case, str) or not _CASE.fullmatch(case):
            raise UsageFault(f"the manifest {path}{place}: {case!r} is no case id", advice=_ADVICE)
    if not found:
        raise UsageFault(f"the manifest {path} requires nothing", advice=_ADVICE)
    return tuple(dict.fromkeys(case for _, case in found))


def _of_lines(path: Path) -> list[tuple[str, str]]:
    try:
        text = path.read_text(encoding="utf-8-sig")
    except OSError as error:
        raise UsageFault(f"the manifest {path} cannot be read: {error.strerror}", advice=_ADVICE) from None
    except UnicodeDecodeError:
        raise UsageFault(f"the manifest {path} is not text in UTF-8", advice=_ADVICE) from None
    lines = ((f":{number}", line.partition("#")[0].strip()) for number, line in enumerate(text.splitlines(), start=1))
    return [(place, case) for place, case in lines if case]


def _of_toml(path: Path) -> list[tuple[str, Any]]:
    from pytest_aisbench.config import toml_document

    document = toml_document.read(path)
    cases = document.data.get("cases", [])
    if not isinstance(cases, list) or set(document.data) - {"cases"}:
        raise UsageFault(f"the manifest {path} is not cases = […] alone", advice=_ADVICE)
    return [("", case) for case in cases]
