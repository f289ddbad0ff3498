"""Allure 3 from npm, in a folder of its own: it renders results to one file that needs no network.

Its page asks a stranger to count its readers; here that is taken out, and the page itself forbids it.
"""

from __future__ import annotations

import json
import os
import re
import shutil
import subprocess
import tempfile
from collections.abc import Mapping, Sequence
from html.parser import HTMLParser
from pathlib import Path
from typing import Any

from pytest_aisbench.errors import PlatformError, UsageFault

PACKAGE = "allure@3.18.0"
NODE = 20  # the oldest that it works with
_INSTALL_S, _RENDER_S = 600, 600
_INSTALL = "aisbench report --install-allure"
_TAG = re.compile(
    r"<script[^>]*\ssrc=\"https://www\.googletagmanager\.com/[^>]*></script>\s*<script>[^<]*\bgtag\([^<]*</script>"
)
_POLICY = "default-src 'self' data: blob: 'unsafe-inline' 'unsafe-eval'"
_ALONE = f'<meta http-equiv="Content-Security-Policy" content="{_POLICY}">'
_PASSED_ON = ("PATH", "TMPDIR", "LANG", "LC_ALL")


def home() -> Path:
    """Where it is kept: in the user's cache, by its version."""
    cache = os.environ.get("XDG_CACHE_HOME") or str(Path.home() / ".cache")
    return Path(cache) / "pytest-aisbench" / PACKAGE.replace("@", "-")


def is_installed() -> bool:
    return _program().is_file()


def _program() -> Path:
    return home() / "node_modules" / "allure" / "cli.js"


def install() -> Path:
    """From the registry that npm knows, without running scripts of packages; whole or not at all."""
    _node()
    npm = shutil.which("npm")
    if npm is None:
        raise UsageFault("npm is not installed here", advice="install Node.js with npm, then try again")
    target = home()
    target.parent.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(prefix=".allure-", dir=target.parent) as draft:
        options = ("--ignore-scripts", "--no-audit", "--no-fund", "--no-update-notifier", "--loglevel=error")
        _run([npm, "install", "--prefix", draft, *options, PACKAGE], Path(draft), dict(os.environ), _INSTALL_S)
        if not is_installed():
            shutil.rmtree(target, ignore_errors=True)
            Path(draft).rename(target)
            Path(draft).mkdir()  # for the end of the block
    return target


def render(results: Path, target: Path, config: Mapping[str, Any], history: str) -> None:
    """`results` is a folder of results, `target` the page; `history` has a line for each earlier run."""
    node = _node()
    if not is_installed():
        raise UsageFault(f"Allure is not installed in {home()}", advice=f"`{_INSTALL}` gets {PACKAGE} from npm")
    with tempfile.TemporaryDirectory(prefix="aisbench-allure-") as folder:
        place = Path(folder)
        (place / "history.jsonl").write_text(history, encoding="utf-8")
        told = {**config, "historyPath": str(place / "history.jsonl"), "appendHistory": False}
        (place / "allurerc.json").write_text(json.dumps(told), encoding="utf-8")
        # A CI server's variables would be read, and a token among them is none of its business.
        environment = {name: os.environ[name] for name in _PASSED_ON if name in os.environ}
        environment |= {"HOME": folder, "ALLURE_NO_ANALYTICS": "true"}
        options = ("--config", str(place / "allurerc.json"), "--output", str(place / "page"), "--cwd", folder)
        said = _run([node, str(_program()), "generate", *options, str(results)], place, environment, _RENDER_S)
        page = place / "page" / "index.html"
        if not page.is_file():
            raise PlatformError(f"Allure wrote no page: {said.strip()[-300:]}", advice=f"try `{_INSTALL}` again")
        text = alone(page.read_text(encoding="utf-8"))
    draft = target.with_name(f".{target.name}.{os.getpid()}")
    draft.write_text(text, encoding="utf-8")
    draft.replace(target)


def alone(page: str) -> str:
    """The page without the stranger's tag, and forbidden to ask for anything from elsewhere."""
    text = _TAG.sub("", page)
    strangers = _strangers(text)
    if strangers or "googletagmanager" in text:
        asked = ", ".join(strangers) or "googletagmanager"
        raise PlatformError(
            f"Allure's page asks for {asked}", advice=f"{PACKAGE} is what this version knows; report it"
        )
    return text.replace("<head>", f"<head>\n    {_ALONE}", 1)


class _Sources(HTMLParser):
    def __init__(self) -> None:
        super().__init__()
        self.found: list[str] = []

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        for name, value in attrs:
            if (name == "src" or (tag == "link" and name == "href")) and (value or "").lower().startswith(
                ("http:", "https:", "//")
            ):
                self.found.append(value or "")


def _strangers(page: str) -> Sequence[str]:
    parser = _Sources()
    parser.feed(page)
    return parser.found


def _node() -> str:
    node = shutil.which("node")
    advice = f"install Node.js {NODE} or newer (https://nodejs.org); all other reports need none"
    if node is None:
        raise UsageFault("the page of Allure is made by Node.js, which is not installed here", advice=advice)
    said = _run([node, "--version"], Path.cwd(), dict(os.environ), 60).strip()
    version = re.match(r"v(\d+)\.", said)
    if version is None or int(version[1]) < NODE:
        raise UsageFault(f"Node.js {said} is too old for {PACKAGE}", advice=advice)
    return node


def _run(command: Sequence[str], folder: Path, environment: Mapping[str, str], seconds: float) -> str:
    name = Path(command[0]).name
    try:
        done = subprocess.run(
            command,
            cwd=folder,
            env=environment,
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            errors="replace",
            timeout=seconds,
            check=False,
        )
    except subprocess.TimeoutExpired:
        raise PlatformError(f"{name} did not end within {seconds:.0f} s", advice="try again") from None
    except OSError as error:
        raise PlatformError(f"{name} cannot be started: {error.strerror}", advice="look at its installation") from None
    if done.returncode:
        lines = [line for line in done.stdout.splitlines() if line.strip()]
        raise PlatformError(f"{name} ended with {done.returncode}: {' '.join(lines[-3:])[-400:]}", advice="see above")
    return done.stdout
