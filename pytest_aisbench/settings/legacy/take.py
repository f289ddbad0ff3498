"""What the predecessor's files say of a whole run: keys, API version, mode."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path

from pytest_aisbench.errors import UsageFault
from pytest_aisbench.settings.access import Access
from pytest_aisbench.settings.credentials import exposed
from pytest_aisbench.settings.legacy import config as configs
from pytest_aisbench.settings.legacy import exports

CONFIG = Path("code/config/modelarts_config.py")
SHELL = Path("code/config/config.sh")


@dataclass(frozen=True)
class Taken:
    """Values of options and where each stands; the access; and what somebody should know."""

    options: Mapping[str, tuple[str, str]] = field(default_factory=dict)
    access: Access | None = None  # None: not asked for
    notes: tuple[str, ...] = ()


def take(config: Path | None, package: Path | None, version: str, *, trusted: bool, connects: bool) -> Taken:
    """`version` as somebody gave it, or empty; keys are read only where the run `connects` to a platform."""
    options = _options(package) if package else {}
    if not connects and config is None:
        return Taken(options)
    found = open_config(config, package, trusted=trusted)
    if not connects:
        return Taken(options)
    access, notes = found.access(version or options.get("modelarts_version", ("V2", ""))[0])
    if found.executed:
        notes.insert(0, f"{found.path} was executed, as --aisbench-trust-config allows")
    elif access.access_key or access.secret_access_key:
        notes.extend(exposed(found.path))
    return Taken(options, access, tuple(notes))


def open_config(config: Path | None, package: Path | None, *, trusted: bool) -> configs.Config:
    """The configuration that was named itself, or the package's own."""
    return configs.read(config or (package or Path()) / CONFIG, trusted=trusted)


def _options(package: Path) -> dict[str, tuple[str, str]]:
    if not (package / "code").is_dir():
        advice = "name the folder that holds ais-bench-stubs and code/"
        raise UsageFault(
            f"{package} is not an unpacked ais-bench package: there is no folder code in it", advice=advice
        )
    shell = exports.read(package / SHELL)
    version = shell.choice("MODELARTS_VERSION", "V1", "V2", default="V1")
    single_server = shell.choice("SINGLESERVER_MODE", "True", "False", default="False")
    return {
        "modelarts_version": (version, shell.place("MODELARTS_VERSION")),
        **({"single_server": ("true", shell.place("SINGLESERVER_MODE"))} if single_server == "True" else {}),
    }
