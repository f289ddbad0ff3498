"""`aisbench report`: write the reports of an old run again from the ledger, those of several runs as one, the Allure
page, or the list of runs."""

from __future__ import annotations

import argparse
import json
import os
import re
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import ExitStack, closing
from html.parser import HTMLParser
from pathlib import Path
from typing import Any, NamedTuple

from pytest_aisbench.cli import add_command, open_ledger, read_settings
from pytest_aisbench.config.options import LOCAL
from pytest_aisbench.config.settings import Settings
from pytest_aisbench.errors import LedgerError, PlatformError, UsageFault
from pytest_aisbench.i18n import languages
from pytest_aisbench.judge.merge import MergedRun, merge_runs
from pytest_aisbench.ledger import runs as runs_module
from pytest_aisbench.ledger.ledger import Ledger
from pytest_aisbench.ledger.runs import JobLedger, RecordedTest, find_run, past_runs, request_name, write_request
from pytest_aisbench.model.clock import SystemClock
from pytest_aisbench.model.results import CaseEntry, RunEntry
from pytest_aisbench.report.allure import FOLDER, history_lines, page_config
from pytest_aisbench.report.text import exit_meaning
from pytest_aisbench.session import replay
from pytest_aisbench.session.reporters import write_index

_PAGE = "allure.html"
_COPIED = ("logs", "requests")  # what the run left in its folder and the ledger does not have


def register(commands: Any) -> None:
    report = add_command(
        commands,
        "report",
        "write the reports of an old run again, or those of several runs as one, from the ledger",
        "aisbench report shard-1/reports shard-2/reports --output merged",
    )
    report.add_argument(
        "run",
        nargs="*",
        metavar="RUN",
        help="its id, or how it begins, or latest (default); or its folder, or one with a ledger.db, for the latest"
        " there. Several are merged, and their exit code is that of one run with all their cases",
    )
    report.add_argument("--output", type=Path, metavar="DIR", help="where to (default: the run's folder)")
    report.add_argument("--require", metavar="FILE", help="with several runs: the cases that they must have judged")
    report.add_argument("--lang", metavar="|".join(languages()), help="the language of the reports")
    what = report.add_mutually_exclusive_group()
    what.add_argument("--allure", action="store_true", help=f"render {FOLDER} to one file, {_PAGE}, by Node.js")
    what.add_argument("--index", action="store_true", help="only the list of runs, index.html among the reports")
    what.add_argument("--install-allure", action="store_true", help="get what --allure needs, from npm's registry")
    report.add_argument("--config", metavar="FILE", help="settings in TOML (default: aisbench.toml in this folder)")
    report.add_argument(
        "--ledger", metavar="FILE", help="the record of all runs (default: ledger.db among the reports)"
    )
    report.add_argument("--reports", metavar="DIR", help="where the folders of the runs are (default: reports/)")
    report.set_defaults(act=_report)


def _report(options: argparse.Namespace) -> int:
    if options.install_allure:
        print(f"getting {PACKAGE} and what it needs from npm's registry into {allure_home()}", flush=True)
        print(f"installed in {install_allure()}")
        return 0
    settings = read_settings(options, platform=LOCAL)
    if len(options.run) > 1:
        return _merge(options, settings)
    with closing(open_ledger(settings)) as ledger:
        if options.index:
            _index(settings)
        elif options.allure:
            _allure_page(options, settings, ledger)
        else:
            _report_again(options, settings, ledger)
    return 0


def _index(settings: Settings) -> None:
    if not settings.reports.is_dir():
        raise UsageFault(f"there is no folder {settings.reports}", advice="name it with --reports DIR")
    print(write_index(settings))


def _run(options: argparse.Namespace, ledger: Ledger) -> str:
    return _ended_run(ledger, next(iter(options.run), "latest"))


def _ended_run(ledger: Ledger, name: str) -> str:
    run = find_run(ledger.database, name)
    if runs_module.is_under_way(ledger.database, run, SystemClock().now()):
        raise UsageFault(f"the run {run} is still under way, and writes its reports itself", advice="wait for its end")
    return run


def _report_again(options: argparse.Namespace, settings: Settings, ledger: Ledger) -> None:
    run = _run(options, ledger)
    target = (options.output or settings.reports / run).absolute()
    _print_written(run, target, _rewrite(run, settings, ledger, target))
    if options.output is None:
        _index(settings)


def _print_written(run: str, target: Path, warnings: Iterable[str]) -> None:
    for line in warnings:
        print(f"aisbench report: {line}", file=sys.stderr)
    names = sorted(path.name for path in target.iterdir() if not path.name.startswith("."))
    print(f"{run}: {', '.join(names)}\n{target}")


# Several runs as one


class _Shard(NamedTuple):
    ledger: Ledger
    run: str
    folder: Path  # of the run


def _merge(options: argparse.Namespace, settings: Settings) -> int:
    if options.allure or options.index:
        raise UsageFault("--allure and --index take one run", advice="merge the runs first")
    with ExitStack() as ledgers:
        shards = [_shard(name, settings, ledgers) for name in options.run]
        if len({(shard.ledger.path, shard.run) for shard in shards}) < len(shards):
            raise UsageFault("a run is named twice", advice="name each once")
        entries = [shard.ledger.entry(shard.run) for shard in shards]
        name = f"{min(entry.run for entry in entries)}-merged-{len(shards)}"
        merged = merge_runs(entries, name, settings.required)
        target = (options.output or settings.reports / name).absolute()
        tests = _tests_that_count(shards, merged)

        def bring(_target: Path, draft: Path) -> None:
            for index, shard in enumerate(shards):
                cases = [case for case in merged.entry.cases if merged.taken_from[case.id] == index]
                _copy_files(shard, cases, draft)

        warnings = [*merged.notes, *_write(merged.entry, tests, target, settings, bring)]
    _print_written(name, target, warnings)
    code = merged.entry.exit_code or 0
    print(f"exit code {code}: {exit_meaning(merged.entry)}")
    return code


def _shard(name: str, settings: Settings, ledgers: ExitStack) -> _Shard:
    """A run of the ledger of this folder, or one that has its ledger beside it."""
    folder, run = Path(name).resolve(), "latest"
    if (folder / "results.json").is_file():
        folder, run = folder.parent, folder.name
    file = folder / settings.ledger_file.name
    if not file.is_file():
        file, folder, run = settings.ledger_file, settings.reports, name
    ledger = ledgers.enter_context(closing(JobLedger(file)))
    run = _ended_run(ledger, run)
    return _Shard(ledger, run, folder / run)


def _tests_that_count(shards: Sequence[_Shard], merged: MergedRun) -> list[RecordedTest]:
    """The tests of each case from the run whose result counts; of tests without a case, which each shard may have run,
    the first that did not pass."""
    tests: dict[str, RecordedTest] = {}
    for index, shard in enumerate(shards):
        for test in runs_module.read_tests(shard.ledger.database, shard.run):
            present = tests.get(test.nodeid)
            is_worse = present is not None and present.status in {"passed", "skipped"} and test.status != "passed"
            if merged.taken_from.get(test.case, index) == index and (test.case or present is None or is_worse):
                tests[test.nodeid] = test
    return [*tests.values()]


def _copy_files(shard: _Shard, cases: Iterable[CaseEntry], draft: Path) -> None:
    """The logs and requests of these cases."""
    for case in cases:
        names = [log for trial in case.trials for log in trial.logs]
        names += [f"requests/{request_name(case.id, trial.trial)}.json" for trial in case.trials]
        for name in names:
            if (shard.folder / name).is_file():
                (draft / name).parent.mkdir(parents=True, exist_ok=True)
                shutil.copy(shard.folder / name, draft / name)


# One run


def _rewrite(run: str, settings: Settings, ledger: Ledger, target: Path) -> list[str]:
    def bring(target: Path, draft: Path) -> None:
        _copy_from_run(settings.reports / run, target, draft)
        _write_requests(ledger, run, draft)

    return _write(ledger.entry(run), runs_module.read_tests(ledger.database, run), target, settings, bring)


def _write(
    entry: RunEntry,
    tests: Sequence[RecordedTest],
    target: Path,
    settings: Settings,
    bring: Callable[[Path, Path], None],
) -> list[str]:
    """Write the reports beside `target`, then move them there: if that fails, the old reports stay as they were.

    `bring` puts what the ledger does not have into the target or the draft."""
    try:
        target.mkdir(parents=True, exist_ok=True)
        with tempfile.TemporaryDirectory(prefix=".report-", dir=target.parent) as place:
            draft = Path(place) / entry.run
            draft.mkdir()
            bring(target, draft)
            warnings = replay.write_reports(entry, tests, draft, settings)
            for path in draft.iterdir():
                if path.is_symlink():
                    continue
                if path.is_dir():
                    shutil.rmtree(target / path.name, ignore_errors=True)
                path.replace(target / path.name)
    except OSError as error:
        why = error.strerror or error  # shutil.Error, of a folder that was copied in part, has no strerror
        raise LedgerError(f"{target} cannot be written: {why}", advice="name another --output") from None
    missing = sum(not (target / log).is_file() for case in entry.cases for trial in case.trials for log in trial.logs)
    return [
        *warnings,
        *([f"{missing} log files are not here: the ledger has their last lines only"] if missing else []),
    ]


def _copy_from_run(run: Path, target: Path, draft: Path) -> None:
    """Copy what the run left in its folder and the ledger does not have, and link it into the draft."""
    for name in _COPIED:
        if (run / name).is_dir() and not (target / name).exists():
            shutil.copytree(run / name, target / name)
        if (target / name).is_dir():
            (draft / name).symlink_to(target / name, target_is_directory=True)
    executor = Path(FOLDER) / "executor.json"  # it names who ran the run, not who reports it again
    if (run / executor).is_file():
        (draft / FOLDER).mkdir()
        shutil.copy(run / executor, draft / executor)


def _write_requests(ledger: Ledger, run: str, draft: Path) -> None:
    if not (draft / "requests").exists():
        for trial in ledger.trials(run):
            if trial.request:
                write_request(draft, request_name(trial.case.id, trial.number), trial.request)


def _allure_page(options: argparse.Namespace, settings: Settings, ledger: Ledger) -> None:
    run = _run(options, ledger)
    folder = (options.output or settings.reports / run).absolute()
    if not (folder / FOLDER).is_dir():
        for line in _rewrite(run, settings, ledger, folder):
            print(f"aisbench report: {line}", file=sys.stderr)
    lines = history_lines(past_runs(ledger.database, run, measured=True))
    config = page_config(run, settings.lang)
    render_allure(folder / FOLDER, folder / _PAGE, config, lines)
    print(f"{folder / _PAGE}: {(folder / _PAGE).stat().st_size / 1e6:.1f} MB, one file that needs no network")
    if options.output is None:
        _index(settings)


# Allure 3, installed by npm in a folder of its own

PACKAGE = "allure@3.18.0"
NODE = 20  # the oldest that it works with
_NPM_S = 600
_INSTALL = "aisbench report --install-allure"
_TAG = re.compile(
    r"<script[^>]*\ssrc=\"https://www\.googletagmanager\.com/[^>]*></script>\s*<script>[^<]*\bgtag\([^<]*</script>"
)
_POLICY = "default-src 'self' data: blob: 'unsafe-inline' 'unsafe-eval'"
_POLICY_TAG = f'<meta http-equiv="Content-Security-Policy" content="{_POLICY}">'
_PASSED_ON = ("PATH", "TMPDIR", "LANG", "LC_ALL")


def allure_home() -> Path:
    """The folder of Allure in the user's cache, named by its version."""
    cache = os.environ.get("XDG_CACHE_HOME") or str(Path.home() / ".cache")
    return Path(cache) / "pytest-aisbench" / PACKAGE.replace("@", "-")


def is_allure_installed() -> bool:
    return _program().is_file()


def _program() -> Path:
    return allure_home() / "node_modules" / "allure" / "cli.js"


def install_allure() -> Path:
    """Install Allure from npm's registry without running the packages' scripts, completely or not at all."""
    _node()
    npm = shutil.which("npm")
    if npm is None:
        raise UsageFault("npm is not installed here", advice="install Node.js with npm, then try again")
    target = allure_home()
    target.parent.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(prefix=".allure-", dir=target.parent) as draft:
        options = ("--ignore-scripts", "--no-audit", "--no-fund", "--no-update-notifier", "--loglevel=error")
        _run_npm([npm, "install", "--prefix", draft, *options, PACKAGE], Path(draft), dict(os.environ), _NPM_S)
        if not is_allure_installed():
            shutil.rmtree(target, ignore_errors=True)
            Path(draft).rename(target)
            Path(draft).mkdir()  # the temporary folder that the block deletes
    return target


def render_allure(results: Path, target: Path, config: Mapping[str, Any], history: str) -> None:
    """Render the folder `results` to the page `target`; `history` has a line for each earlier run."""
    node = _node()
    if not is_allure_installed():
        raise UsageFault(f"Allure is not installed in {allure_home()}", advice=f"`{_INSTALL}` gets {PACKAGE} from npm")
    with tempfile.TemporaryDirectory(prefix="aisbench-allure-") as folder:
        place = Path(folder)
        (place / "history.jsonl").write_text(history, encoding="utf-8")
        settings = {**config, "historyPath": str(place / "history.jsonl"), "appendHistory": False}
        (place / "allurerc.json").write_text(json.dumps(settings), encoding="utf-8")
        # Allure would read a CI server's variables, and must not see the tokens among them.
        environment = {name: os.environ[name] for name in _PASSED_ON if name in os.environ}
        environment |= {"HOME": folder, "ALLURE_NO_ANALYTICS": "true"}
        options = ("--config", str(place / "allurerc.json"), "--output", str(place / "page"), "--cwd", folder)
        output = _run_npm([node, str(_program()), "generate", *options, str(results)], place, environment, _NPM_S)
        page = place / "page" / "index.html"
        if not page.is_file():
            raise PlatformError(f"Allure wrote no page: {output.strip()[-300:]}", advice=f"try `{_INSTALL}` again")
        text = without_network(page.read_text(encoding="utf-8"))
    draft = target.with_name(f".{target.name}.{os.getpid()}")
    draft.write_text(text, encoding="utf-8")
    draft.replace(target)


def without_network(page: str) -> str:
    """The page without Google's tag, and with a policy that forbids it every other address."""
    text = _TAG.sub("", page)
    addresses = _foreign_addresses(text)
    if addresses or "googletagmanager" in text:
        asked = ", ".join(addresses) or "googletagmanager"
        raise PlatformError(
            f"Allure's page asks for {asked}", advice=f"{PACKAGE} is what this version knows; report it"
        )
    return text.replace("<head>", f"<head>\n    {_POLICY_TAG}", 1)


class _ForeignAddresses(HTMLParser):
    def __init__(self) -> None:
        super().__init__()
        self.addresses: list[str] = []

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        for name, value in attrs:
            if (name == "src" or (tag == "link" and name == "href")) and (value or "").lower().startswith(
                ("http:", "https:", "//")
            ):
                self.addresses.append(value or "")


def _foreign_addresses(page: str) -> Sequence[str]:
    parser = _ForeignAddresses()
    parser.feed(page)
    return parser.addresses


def _node() -> str:
    node = shutil.which("node")
    advice = f"install Node.js {NODE} or newer (https://nodejs.org); all other reports need none"
    if node is None:
        raise UsageFault("the page of Allure is made by Node.js, which is not installed here", advice=advice)
    text = _run_npm([node, "--version"], Path.cwd(), dict(os.environ), 60).strip()
    version = re.match(r"v(\d+)\.", text)
    if version is None or int(version[1]) < NODE:
        raise UsageFault(f"Node.js {text} is too old for {PACKAGE}", advice=advice)
    return node


def _run_npm(command: Sequence[str], folder: Path, environment: Mapping[str, str], seconds: float) -> str:
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
