"""Reading what a run is told: command line > environment > ini > file > default, and what contradicts itself."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

from pytest_aisbench.errors import UsageFault, perhaps
from pytest_aisbench.settings import CONFIG_FILE, LEGACY_FILE, Option, Settings, table
from pytest_aisbench.settings.access import SECRETS as ACCESS_SECRETS
from pytest_aisbench.settings.access import read_access
from pytest_aisbench.settings.apulis import SECRETS as APULIS_SECRETS
from pytest_aisbench.settings.apulis import read_apulis, require_apulis
from pytest_aisbench.settings.credentials import WAYS, complete, exposed
from pytest_aisbench.settings.hosts import read_hosts
from pytest_aisbench.settings.option_types import path, switch
from pytest_aisbench.settings.tester import SECRETS as TESTER_SECRETS
from pytest_aisbench.settings.tester import read_tester

if TYPE_CHECKING:
    from pytest_aisbench.settings import places
    from pytest_aisbench.settings.legacy.take import Taken

_SECRETS = {"access": ACCESS_SECRETS, "apulis": APULIS_SECRETS, "tester": TESTER_SECRETS}  # of each table


class Given(NamedTuple):
    """A value as it was written, by whom, and the folder in which its relative paths begin."""

    text: str
    source: str
    folder: Path


def freeze(
    command_line: Mapping[str, str | None],
    ini: Mapping[str, str],
    environment: Mapping[str, str],
    root: Path,
) -> Settings:
    """One value out of all that was said. `root` is where the configuration file and the reports are by default.

    A relative path is read as whoever wrote it sees it: from the shell's folder, or from the file's.
    """
    options = {row.name: row for row in table()}
    given = _given(options, command_line, ini, environment, root)
    document = _document(given, root)
    if document:
        given = {**_of_file(options, document, environment), **given}
    platform = given["platform"].text if "platform" in given else Settings.platform
    on_apulis = platform == "apulis" and "cloud" not in given
    apulis, for_apulis = read_apulis(document, environment, used=on_apulis)
    elsewhere = platform not in {"local", "apulis"} or (on_apulis and apulis.by_obs)
    access, for_access = read_access(document, environment, used=elsewhere)
    notes: tuple[str, ...] = ()
    if taken := _taken(options, given, keyless=not document or "access" not in document.data):
        given = {**{key: Given(text, source, root) for key, (text, source) in taken.options.items()}, **given}
        access, notes = taken.access or access, taken.notes
    if document and _spells_secrets(document):
        notes += exposed(document.path)
    if "platform" in given and given["platform"].text == "modelarts":
        access, about_keys = complete(access, environment)
        notes += about_keys
    values = {key: _parsed(options[key], told) for key, told in given.items()}
    tester, for_tester = read_tester(document, environment, values.get("package"), used=bool(values.get("tester")))
    _no_strangers(environment, options, for_access | for_apulis | for_tester)
    sources = {key: told.source for key, told in given.items()}
    hosts = read_hosts(document)
    settings = Settings(
        **{"reports": root / "reports", **values},
        access=replace(access, hosts=hosts),
        apulis=replace(apulis, hosts=hosts),
        tester_access=replace(tester, hosts=hosts),
        sources=sources,
        notes=notes,
        required=_required(values.get("require"), sources),
    )
    _no_contradictions(settings)
    return settings


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


def _of_file(
    options: Mapping[str, Option], document: places.Document, environment: Mapping[str, str]
) -> dict[str, Given]:
    return {
        key: Given(_text(document, key, value), f"{document.place(key)}: {key}", document.path.parent)
        for key, value in _flat(document, environment).items()
        if key in options
    }


def _spells_secrets(document: places.Document) -> bool:
    """Whether a key stands in the file itself, and not just the name of a variable."""
    from pytest_aisbench.settings.places import expanded

    return any(
        isinstance(table := document.data.get(name), dict) and bool(expanded(str(table.get(key, "")), {}).strip())
        for name, keys in _SECRETS.items()
        for key in keys
    )


def _required(manifest: Path | None, sources: Mapping[str, str]) -> tuple[str, ...]:
    if manifest is None:
        return ()
    from pytest_aisbench.settings.manifest import read

    try:
        return read(manifest)
    except UsageFault as fault:
        raise UsageFault(f"{sources['require']}: {fault}") from None


def _taken(options: Mapping[str, Option], given: Mapping[str, Given], *, keyless: bool) -> Taken | None:
    """What the predecessor's own files say, where the run was pointed at them; keys if there are no others."""
    named = given.get("config")
    config = _parsed(options["config"], named) if named and named.text.endswith(LEGACY_FILE) else None
    package = _parsed(options["package"], given["package"]) if "package" in given else None
    if config is None and package is None:
        return None
    from pytest_aisbench.settings.legacy.take import take

    version = given["modelarts_version"].text if "modelarts_version" in given else ""
    trusted = _parsed(options["trust_config"], given["trust_config"]) if "trust_config" in given else False
    elsewhere = "platform" in given and given["platform"].text != "local"
    return take(config, package, version, trusted=trusted, connects=keyless and elsewhere)


def _document(given: Mapping[str, Given], root: Path) -> places.Document | None:
    told, found = given.get("config"), root / CONFIG_FILE
    if told.text.endswith(LEGACY_FILE) if told else not found.is_file():
        return None
    from pytest_aisbench.settings import places

    if told:
        try:
            return _checked(places.read(told.folder / path(told.text)))
        except (UsageFault, ValueError) as fault:
            raise UsageFault(f"{told.source}: {fault}") from None
    return _checked(places.read(found))


def _checked(document: places.Document) -> places.Document:
    known = [*(row.name for row in table() if row.name != "config"), "access", "hosts", "apulis"]
    for key in document.data:
        if key not in known:
            raise document.fault(f"unknown key {key!r}", key, advice=perhaps(key, known))
    return document


def _flat(document: places.Document, environment: Mapping[str, str]) -> dict[str, Any]:
    """With `tester` as it is on the command line, where the file has a table of that name."""
    from pytest_aisbench.settings.places import expanded

    told = document.data.get("tester")
    if not isinstance(told, dict):
        return document.data
    rest = {key: value for key, value in document.data.items() if key != "tester"}
    return {**rest, "tester": expanded(str(told["url"]), environment)} if "url" in told else rest


def _text(document: places.Document, key: str, value: Any) -> str:
    if isinstance(value, list):
        return ",".join(_text(document, key, item) for item in value)
    if isinstance(value, bool) and any(row.parse is switch for row in table() if row.name == key):
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


def _no_contradictions(settings: Settings) -> None:
    if settings.cloud is not None and settings.platform == "modelarts":
        sources = f"{settings.sources['cloud']} and {settings.sources['platform']}"
        raise UsageFault(f"{sources} contradict each other", advice="a running local cloud is platform local")
    if settings.platform == "apulis" and settings.cloud is None:
        require_apulis(settings.apulis, settings.access, settings.sources["platform"])
    if settings.platform == "modelarts":
        access = settings.access
        needed = ("bucket",) if settings.modelarts_client == "wheel" else ("access_key", "secret_access_key", "bucket")
        missing = [key for key in needed if not getattr(access, key)]  # a notebook's wheel has keys of its own
        if not (access.modelarts_endpoint or access.region_name):
            missing.append("region_name (or the endpoints of a computing centre)")
        if missing:
            keyless = "access_key" in missing and "secret_access_key" in missing
            rest = "; the rest belongs to [access]" if len(missing) > 2 else ""
            advice = WAYS.format(config=CONFIG_FILE) + rest if keyless else f"write them to [access] in {CONFIG_FILE}"
            raise UsageFault(
                f"{settings.sources['platform']}: platform modelarts needs {', '.join(missing)}", advice=advice
            )
