"""`aisbench report`: the reports of an old run from the ledger, its page of Allure, and the list of runs."""

from __future__ import annotations

import argparse
import shutil
import sys
import tempfile
from contextlib import closing
from pathlib import Path
from typing import TYPE_CHECKING, Any

from pytest_aisbench.commands import means
from pytest_aisbench.errors import LedgerError, UsageFault
from pytest_aisbench.i18n import languages
from pytest_aisbench.settings import LOCAL

if TYPE_CHECKING:
    from pytest_aisbench.services.ledger import Ledger
    from pytest_aisbench.settings import Settings

_PAGE = "allure.html"
_RESULTS = "allure-results"
_BROUGHT = ("logs", "requests")  # what the run itself left, which no ledger has


def register(acts: Any) -> None:
    report = acts.add_parser("report", help="write the reports of an old run again, from the ledger")
    report.add_argument("run", nargs="?", default="latest", metavar="RUN", help="its id, or how it begins; or latest")
    report.add_argument("--output", type=Path, metavar="DIR", help="where to (default: the run's folder)")
    report.add_argument("--lang", metavar="|".join(languages()), help="the language of the reports")
    what = report.add_mutually_exclusive_group()
    what.add_argument("--allure", action="store_true", help=f"render {_RESULTS} to one file, {_PAGE}, by Node.js")
    what.add_argument("--index", action="store_true", help="only the list of runs, index.html among the reports")
    what.add_argument("--install-allure", action="store_true", help="get what --allure needs, from npm's registry")
    report.add_argument("--config", metavar="FILE", help="settings in TOML (default: aisbench.toml in this folder)")
    report.add_argument(
        "--ledger", metavar="FILE", help="the record of all runs (default: ledger.db among the reports)"
    )
    report.add_argument("--reports", metavar="DIR", help="where the folders of the runs are (default: reports/)")
    report.set_defaults(act=_report)


def _report(options: argparse.Namespace) -> None:
    if options.install_allure:
        from pytest_aisbench.adapters import allure_npm

        print(
            f"getting {allure_npm.PACKAGE} and what it needs from npm's registry into {allure_npm.home()}", flush=True
        )
        print(f"installed in {allure_npm.install()}")
        return
    settings = means.settings(options, platform=LOCAL)
    with closing(means.ledger(settings)) as ledger:
        if options.index:
            _index(settings)
        elif options.allure:
            _allure(options, settings, ledger)
        else:
            _again(options, settings, ledger)


def _index(settings: Settings) -> None:
    from pytest_aisbench.session.archive import write_index

    if not settings.reports.is_dir():
        raise UsageFault(f"there is no folder {settings.reports}", advice="name it with --reports DIR")
    print(write_index(settings))


def _run(options: argparse.Namespace, ledger: Ledger) -> str:
    from pytest_aisbench.services import runs
    from pytest_aisbench.services.clock import SystemClock

    run = runs.named(ledger.database, options.run)
    if runs.is_under_way(ledger.database, run, SystemClock().now()):
        raise UsageFault(f"the run {run} is still under way, and writes its reports itself", advice="wait for its end")
    return run


def _again(options: argparse.Namespace, settings: Settings, ledger: Ledger) -> None:
    run = _run(options, ledger)
    target = (options.output or settings.reports / run).absolute()
    for line in _retell(run, settings, ledger, target):
        print(f"aisbench report: {line}", file=sys.stderr)
    names = sorted(path.name for path in target.iterdir() if not path.name.startswith("."))
    print(f"{run}: {', '.join(names)}\n{target}")
    if options.output is None:
        _index(settings)


def _retell(run: str, settings: Settings, ledger: Ledger, target: Path) -> list[str]:
    """Beside the target first, then in its place: a report that cannot be written leaves the old one as it was."""
    from pytest_aisbench.services import transcript
    from pytest_aisbench.session import replay

    entry, tests = ledger.entry(run), transcript.read(ledger.database, run)
    try:
        target.mkdir(parents=True, exist_ok=True)
        with tempfile.TemporaryDirectory(prefix=".report-", dir=target.parent) as place:
            draft = Path(place) / run
            draft.mkdir()
            _bring(settings.reports / run, target, draft)
            _requests(ledger, run, draft)
            warnings = replay.tell(entry, tests, draft, settings)
            for path in draft.iterdir():
                if path.is_symlink():
                    continue
                if path.is_dir():
                    shutil.rmtree(target / path.name, ignore_errors=True)
                path.replace(target / path.name)
    except OSError as error:
        why = error.strerror or error  # of a folder that was copied in part, there are many
        raise LedgerError(f"{target} cannot be written: {why}", advice="name another --output") from None
    missing = sum(not (target / log).is_file() for case in entry.cases for trial in case.trials for log in trial.logs)
    return [
        *warnings,
        *([f"{missing} log files are not here: the ledger has their last lines only"] if missing else []),
    ]


def _bring(run: Path, target: Path, draft: Path) -> None:
    """What the run left beside its reports, and no ledger has, is copied where it is not yet; the reporters see it."""
    for name in _BROUGHT:
        if (run / name).is_dir() and not (target / name).exists():
            shutil.copytree(run / name, target / name)
        if (target / name).is_dir():
            (draft / name).symlink_to(target / name, target_is_directory=True)
    executor = Path(_RESULTS) / "executor.json"  # whoever tells it again did not run it
    if (run / executor).is_file():
        (draft / _RESULTS).mkdir()
        shutil.copy(run / executor, draft / executor)


def _requests(ledger: Ledger, run: str, draft: Path) -> None:
    from pytest_aisbench.services.folder import request_name, write_request

    if not (draft / "requests").exists():
        for trial in ledger.trials(run):
            if trial.request:
                write_request(draft, request_name(trial.case.id, trial.number), trial.request)


def _allure(options: argparse.Namespace, settings: Settings, ledger: Ledger) -> None:
    from pytest_aisbench.adapters import allure_npm
    from pytest_aisbench.reporters import allure_files
    from pytest_aisbench.services.transcript import past

    run = _run(options, ledger)
    folder = (options.output or settings.reports / run).absolute()
    if not (folder / _RESULTS).is_dir():
        for line in _retell(run, settings, ledger, folder):
            print(f"aisbench report: {line}", file=sys.stderr)
    lines = allure_files.history_lines(past(ledger.database, run, measured=True))
    config = allure_files.page_config(run, settings.lang)
    allure_npm.render(folder / _RESULTS, folder / _PAGE, config, lines)
    print(f"{folder / _PAGE}: {(folder / _PAGE).stat().st_size / 1e6:.1f} MB, one file that needs no network")
    if options.output is None:
        _index(settings)
