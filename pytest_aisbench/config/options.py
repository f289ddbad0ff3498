"""The table of all options: each is an option of the command line, an ini name, an environment variable and a key of
aisbench.toml. To add an option, add a row here and a field of the same name, with its default, to `settings.Settings`.

Every pytest run in an environment imports this module, so it imports next to nothing.
"""

from __future__ import annotations

import os
import re
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Any

CONFIG_FILE = "aisbench.toml"
LEGACY_FILE = ".py"  # the suffix of a modelarts_config.py
# The default platform, which needs no keys. A local cloud that stands in for another platform uses its sections too.
LOCAL = "local"
PLATFORMS = {  # the built-in ones by name: module and class of their PlatformKind
    LOCAL: "pytest_aisbench.platforms.local_kind:LocalKind",
    "modelarts": "pytest_aisbench.platforms.modelarts:ModelArtsKind",
    "apulis": "pytest_aisbench.platforms.apulis.settings:ApulisKind",
    "slurm": "pytest_aisbench.platforms.slurm.settings:SlurmKind",
}
MOST_CARDS = 128  # of one node: no machine has more, and a typing error should not ask for a million ranks
PYTHON = "python"  # the framework of a workload that needs none
FRAMEWORKS = ("mindspore", "paddle", "torch", "horovod", "tensorflow")  # as an import names them
_DECIMAL = r"[0-9]{1,9}(?:\.[0-9]+)?"  # enough digits for any time or budget, and not for infinity
_UNITS = {"s": 1, "m": 60, "h": 3600, "d": 86400}


# The value of one option: each function reads a text, or says in a ValueError what is wrong with it.


def _quoted(text: str) -> str:
    from pytest_aisbench.secret import quoted

    return quoted(text)


def parse_node_counts(text: str) -> tuple[int, ...]:
    return tuple(sorted({parse_positive(part.strip()) for part in text.split(",")}))


def parse_positive(text: str) -> int:
    if not re.fullmatch(r"[0-9]{1,6}", text) or int(text) < 1:
        raise ValueError(f"{_quoted(text)} is not a whole number of 1 or more")
    return int(text)


def parse_cards(text: str) -> int:
    if parse_positive(text) > MOST_CARDS:
        raise ValueError(f"{text} is more cards than the {MOST_CARDS} that a node may have")
    return parse_positive(text)


def parse_duration(text: str) -> float:
    """Seconds of `90`, `45s`, `30m`, `3h` or `2d`."""
    match = re.fullmatch(rf"({_DECIMAL})([smhd]?)", text)
    if not match or float(match[1]) == 0:
        raise ValueError(f"{_quoted(text)} is not a length of time such as 45s, 30m, 3h or 2d")
    return float(match[1]) * _UNITS[match[2] or "s"]


def parse_card_hours(text: str) -> float:
    if not re.fullmatch(_DECIMAL, text) or float(text) == 0:
        raise ValueError(f"{_quoted(text)} is not a number of card-hours above 0")
    return float(text)


def parse_switch(text: str) -> bool:
    words = {"1": True, "true": True, "yes": True, "0": False, "false": False, "no": False}
    if text.lower() not in words:
        raise ValueError(f"{_quoted(text)} is neither true nor false")
    return words[text.lower()]


def one_of(*words: str) -> Callable[[str], str]:
    def parse(text: str) -> str:
        if text not in words:
            raise ValueError(f"{_quoted(text)} is neither {' nor '.join(words)}")
        return text

    return parse


def parse_path(text: str) -> Path:
    if not text:
        raise ValueError("a path is needed")
    return Path(text).expanduser()


def parse_frameworks(text: str) -> tuple[str, ...]:
    """Such as `mindspore=/venv/bin/python,paddle`."""
    parts = tuple(part.strip() for part in text.split(","))
    for part in parts:
        framework, equals, python = part.partition("=")
        if framework not in FRAMEWORKS or (equals and not Path(python).is_absolute()):
            names = ", ".join(FRAMEWORKS)
            raise ValueError(f"{_quoted(part)} is not a framework ({names}) with the absolute path of its Python")
    return parts


def python_by_framework(frameworks: Iterable[str]) -> dict[str, str]:
    """The Python of each framework; empty for the Python that runs pytest."""
    return {framework: python for framework, _, python in (part.partition("=") for part in frameworks)}


def parse_tester(text: str) -> str:
    from pytest_aisbench.config.access import parse_tester_address

    return parse_tester_address(text)


def parse_name(text: str) -> str:
    if not re.fullmatch(r"[A-Za-z0-9_.-]+", text):
        raise ValueError(f"{_quoted(text)} is not a name")
    return text


def machine_cores() -> int:
    """The cores that this process may use: in a container, fewer than the machine has."""
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1


def parse_language(text: str) -> str:
    return one_of(*_language_codes())(text)


def _language_codes() -> list[str]:
    """As `i18n.languages` says, which would import the English texts."""
    files = os.listdir(Path(__file__).parents[1] / "i18n")  # noqa: PTH208 - Path.iterdir makes a Path of each
    return sorted(file.removesuffix(".py") for file in files if file.endswith(".py") and not file.startswith("_"))


# The table


class Option:
    """One row. `metavar` is empty for a switch."""

    __slots__ = ("environment", "flag", "help", "ini", "metavar", "name", "parse")

    def __init__(self, name: str, parse: Callable[[str], Any], metavar: str, text: str, *, flag: str = "") -> None:
        self.name = name
        self.parse = parse
        self.metavar = metavar
        self.help = text
        self.flag = flag or f"--aisbench-{name.replace('_', '-')}"
        self.ini = f"aisbench_{name}"
        self.environment = f"AISBENCH_{name.upper()}"


OPTIONS = (
    Option("nodes", parse_node_counts, "N,N", "Select these node counts; other shapes are deselected", flag="--nodes"),
    Option("platform", parse_name, "NAME", f"Where jobs run: {', '.join(PLATFORMS)}, or one of a plugin's"),
    Option("cloud", parse_path, "FILE", "A local cloud that already runs: what `aisbench cloud --json` printed"),
    Option("frameworks", parse_frameworks, "NAME=PYTHON", "Train with these on the local cloud, not in miniature"),
    Option(
        "config",
        parse_path,
        "FILE",
        f"Settings in TOML, or a modelarts_config.py (default: {CONFIG_FILE} where pytest's root is)",
    ),
    Option("package", parse_path, "DIR", "An unpacked ais-bench package, read as it is"),
    Option("modelarts_version", one_of("V1", "V2"), "V1|V2", "Which training-job API"),
    Option(
        "modelarts_client", one_of("sdk", "wheel"), "sdk|wheel", "The SDK from PyPI, or the vendor's modelarts wheel"
    ),
    Option(
        "modelarts_python",
        parse_path,
        "FILE",
        "The Python in which the modelarts wheel is installed (default: this one)",
    ),
    Option("single_server", parse_switch, "", "Every node trains alone with its own cards"),
    Option("devices", parse_cards, "N", "Cards per node (default: the workload's own number)"),
    Option("max_jobs", parse_positive, "K", "Jobs in flight at once (default: local: cores; elsewhere 8)"),
    Option("max_trials", parse_positive, "K", "Trials that may decide one case, lost jobs included"),
    Option("queue_timeout", parse_duration, "TIME", "How long a job may wait, such as 30m or 3h"),
    Option("run_timeout", parse_duration, "TIME", "How long a job may run, such as 30m or 3h"),
    Option("stall", parse_duration, "TIME", "Report a running job that shows no sign of life for so long"),
    Option("heartbeat", parse_duration, "TIME", "Where there is no terminal, say how it goes so often"),
    Option("on_interrupt", one_of("stop", "leave"), "stop|leave", "What becomes of running jobs at Ctrl-C or SIGTERM"),
    Option("fresh", parse_switch, "", "Do not take over jobs that an earlier, killed run left behind"),
    Option("budget", parse_card_hours, "CARD_HOURS", "Refuse to start, or stop, past this cost"),
    Option("dry_run", parse_switch, "", "Show the plan, its requests and its cost; submit nothing"),
    Option("drift", one_of("warn", "fail"), "warn|fail", "What a slow decline through the history of a case does"),
    Option("power", parse_path, "FILE", "Samples of power (time, node, watts) to reckon energy from"),
    Option("require", parse_path, "FILE", "The manifest of cases that must have run; one missing is exit 11"),
    Option("lang", parse_language, "|".join(_language_codes()), "The language of reports and summary"),
    Option("tester", parse_tester, "URL", "Upload the results to this Tester, or none"),
    Option(
        "tester_required", parse_switch, "", "A result that the Tester has not got by the end of the run is exit 12"
    ),
    Option("trust_config", parse_switch, "", "Execute a legacy configuration that cannot be parsed"),
    Option("reports", parse_path, "DIR", "Where each run gets a folder of its own"),
    Option("ledger", parse_path, "FILE", "The record of all runs (default: ledger.db among the reports)"),
)
