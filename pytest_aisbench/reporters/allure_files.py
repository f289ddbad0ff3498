"""What lies beside the results of Allure: environment, executor, categories, metrics, history."""

from __future__ import annotations

import json
import platform
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest

from pytest_aisbench import __version__
from pytest_aisbench.domain.entry import RunEntry
from pytest_aisbench.domain.executor import Executor
from pytest_aisbench.domain.messages import plain
from pytest_aisbench.report.text import as_typed
from pytest_aisbench.reporters.allure_case import CATEGORIES, history_ids, metrics
from pytest_aisbench.services.transcript import Past

FOLDER = "allure-results"
STATUSES = ("failed", "broken", "skipped", "passed", "unknown")


def write(place: Path, run: RunEntry, past: Sequence[Past]) -> None:
    """A folder of the user's may hold files of the user's, or what a CI server's plugin put there: they stay."""
    _unless_there(place / "categories.json", _json(CATEGORIES))
    _unless_there(place / "environment.properties", environment(run))
    _unless_there(place / "executor.json", _json(executor(run.executor, run.run)))
    (place / f"{run.run}-perf.json").write_text(_json(metrics(run)), encoding="utf-8")
    if past:
        (place / "history").mkdir(exist_ok=True)
        _unless_there(place / "history" / "history.json", _json(history(past)))
        _unless_there(place / "history" / "history-trend.json", _json(trend(past)))


def _unless_there(path: Path, text: str) -> None:
    if not path.exists():
        path.write_text(text, encoding="utf-8")


def _json(value: Any) -> str:
    return json.dumps(value, indent=1, ensure_ascii=True, allow_nan=False)


def environment(run: RunEntry) -> str:
    """Java properties: one pair a line, everything but plain ASCII escaped."""
    facts: dict[str, Any] = {"run": run.run, "started": run.started}
    facts |= {"pytest-aisbench": __version__, "python": platform.python_version(), "pytest": pytest.__version__}
    facts |= {name: run.settings[name] for name in ("platform", "nodes", "region") if run.settings.get(name)}
    return "".join(f"{name}={_escaped(plain(as_typed(value), 200))}\n" for name, value in sorted(facts.items()))


def _escaped(text: str) -> str:
    units = text.replace("\\", "\\\\").encode("utf-16-be", "surrogatepass")
    pairs = (int.from_bytes(units[at : at + 2], "big") for at in range(0, len(units), 2))
    return "".join(chr(unit) if unit < 127 else f"\\u{unit:04x}" for unit in pairs)


def executor(told: Executor, run: str) -> dict[str, Any]:
    """Allure draws the sign of a CI server by its type."""
    facts: dict[str, Any] = {"name": told.name or "local", "type": told.name.lower() or "local"}
    facts |= {"buildName": told.build or run, "reportName": f"aisbench {run}", "buildUrl": told.url}
    facts |= {"buildOrder": told.number}
    return {name: value for name, value in facts.items() if value not in {"", None}}


def history(past: Sequence[Past]) -> dict[str, Any]:
    """As Allure 2 leaves it in a report, for the next one to read; made from the ledger, it misses no run."""
    found: dict[str, Any] = {}
    for run in past:
        for test in run.tests:
            known = found.setdefault(
                history_ids(test.nodeid)[0], {"statistic": dict.fromkeys((*STATUSES, "total"), 0), "items": []}
            )
            known["statistic"][test.status] += 1
            known["statistic"]["total"] += 1
            start, stop = round(test.started * 1000), round(test.stopped * 1000)
            times = {"start": start, "stop": stop, "duration": stop - start}
            known["items"].append({"uid": run.run, "status": test.status, "time": times})
    return found


def trend(past: Sequence[Past]) -> list[dict[str, Any]]:
    """Newest first; the newest has the highest number."""
    return [
        {"buildOrder": len(past) - at, "reportName": f"aisbench {run.run}", "data": _counts(run)}
        for at, run in enumerate(past)
    ]


def _counts(run: Past) -> dict[str, int]:
    said = [test.status for test in run.tests]
    return {**{status: said.count(status) for status in STATUSES}, "total": len(said)}


def page_config(run: str, lang: str) -> dict[str, Any]:
    """What Allure 3 is told: it reads categories from here only."""
    options = {"singleFile": True, "reportLanguage": lang, "reportName": f"aisbench {run}"}
    options |= {"groupBy": ["epic", "feature", "story"], "sections": ["charts", "timeline", "metrics"]}
    return {"name": f"aisbench {run}", "categories": CATEGORIES, "plugins": {"awesome": {"options": options}}}


def history_lines(past: Sequence[Past]) -> str:
    """As Allure 3 keeps it: a line per report, the oldest first."""
    return "".join(f"{json.dumps(_line(run), ensure_ascii=True, allow_nan=False)}\n" for run in reversed(past))


def _line(run: Past) -> dict[str, Any]:
    results: dict[str, Any] = {}
    for test in run.tests:
        key = history_ids(test.nodeid)[1]
        start, stop = round(test.started * 1000), round(test.stopped * 1000)
        results[key] = {
            "id": f"{run.run} {test.nodeid}",
            "name": plain(test.nodeid.rpartition("::")[2]),
            "status": test.status,
            "start": start,
            "stop": stop,
            "duration": stop - start,
            "historyId": key,
            "url": "",
            "labels": [],
            "reportLinks": [],
        }
    return {
        "uuid": run.run,
        "name": f"aisbench {run.run}",
        "timestamp": round(run.started * 1000),
        "knownTestCaseIds": [key.partition(".")[0] for key in results],
        "testResults": results,
        "metrics": dict(run.metrics),
        "url": "",
    }
