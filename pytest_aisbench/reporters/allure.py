"""`allure-results/`, the lifecycle view; allure-pytest writes it, in the process that runs the test."""

from __future__ import annotations

import itertools
import json
import platform
import uuid
from collections.abc import Generator
from pathlib import Path
from typing import Any

import pytest

from pytest_aisbench.domain.codec import dump
from pytest_aisbench.domain.entry import CaseEntry, RunEntry, trial_entry
from pytest_aisbench.domain.job import Phase
from pytest_aisbench.domain.metric import THROUGHPUT
from pytest_aisbench.domain.trial import Step, Trial
from pytest_aisbench.domain.verdict import Ruling
from pytest_aisbench.reporters.hosts import guarded, switched_on
from pytest_aisbench.reporters.properties import TRIAL, properties_of
from pytest_aisbench.reporters.svg import rank_chart
from pytest_aisbench.reporters.text import plain, words

# Our messages begin with the ruling. `[\s\S]` is any character, in Java's and in JavaScript's expressions alike.
CATEGORIES = [
    {"name": "Platform (BROKEN)", "matchedStatuses": ["broken"], "messageRegex": r"BROKEN: [\s\S]*"},
    {"name": "Workload (FAILED)", "matchedStatuses": ["failed"], "messageRegex": r"FAILED: [\s\S]*"},
    {"name": "Noise (INCONCLUSIVE)", "matchedStatuses": ["failed"], "messageRegex": r"INCONCLUSIVE: [\s\S]*"},
]
STATUS = {Ruling.PASSED: "passed", Ruling.FAILED: "failed", Ruling.BROKEN: "broken", Ruling.INCONCLUSIVE: "failed"}
SUITES = {"parentSuite", "suite", "subSuite"}


class Allure:
    on_workers = True

    def __init__(self, config: pytest.Config, folder: Path) -> None:
        self._config = config
        with guarded(config, "no allure-results"):
            switched_on(config, "allure_pytest", "allure_report_dir", folder / "allure-results")

    def case(self, entry: CaseEntry) -> None:
        """The process that ran the test has told it already."""

    def run(self, entry: RunEntry) -> None:
        target = getattr(self._config.option, "allure_report_dir", None)
        if not target:
            return
        with guarded(self._config, "no environment in allure-results"):
            folder = Path(target)
            folder.mkdir(parents=True, exist_ok=True)
            _unless_there(folder / "categories.json", json.dumps(CATEGORIES, indent=1))
            _unless_there(folder / "environment.properties", environment(entry))

    @pytest.hookimpl(wrapper=True, tryfirst=True)
    def pytest_runtest_teardown(self, item: pytest.Item) -> Generator[None, object, object]:
        """Outermost, so that what allure-pytest adds by itself at this point is there to be replaced."""
        try:
            return (yield)
        finally:
            trial = item.stash.get(TRIAL, None)
            listener: Any = self._config.pluginmanager.get_plugin("allure_listener")
            if trial and listener:
                with guarded(self._config, f"no lifecycle of {trial.case.id} in allure-results"):
                    _tell(listener.allure_logger, trial, str(properties_of(item).get("platform", "")))


def _unless_there(path: Path, text: str) -> None:
    """A folder of the user's may hold files of the user's."""
    if not path.exists():
        path.write_text(text, encoding="utf-8")


def environment(run: RunEntry) -> str:
    """Java properties: one pair a line, everything but plain ASCII escaped."""
    facts: dict[str, Any] = {"run": run.run, "started": run.started}
    facts |= {"python": platform.python_version(), "pytest": pytest.__version__}
    facts |= {name: run.settings[name] for name in ("platform", "nodes") if name in run.settings}
    return "".join(f"{name}={_escaped(plain(words(value), 200))}\n" for name, value in sorted(facts.items()))


def _escaped(text: str) -> str:
    units = text.replace("\\", "\\\\").encode("utf-16-be")
    pairs = (int.from_bytes(units[at : at + 2], "big") for at in range(0, len(units), 2))
    return "".join(chr(unit) if unit < 127 else f"\\u{unit:04x}" for unit in pairs)


def _tell(logger: Any, trial: Trial, where: str) -> None:
    from allure_commons.model2 import Label, Parameter

    case, verdict = trial.case, trial.verdict
    result = logger.get_test(None)
    if result is None:
        return
    labels = {"parentSuite": "aisbench", "suite": case.workload.name, "subSuite": str(case.shape)}
    labels |= {"feature": case.workload.name, "story": case.id, "platform": where, "verdict": verdict.ruling.value}
    result.labels = [label for label in result.labels if label.name not in SUITES]
    result.labels += [Label(name=name, value=value) for name, value in labels.items() if value]
    for name, value in (("nodes", case.shape.nodes), ("devices", case.shape.devices)):
        result.parameters.append(Parameter(name=name, value=str(value)))

    if trial.times:
        result.start, result.stop = _ms(min(trial.times.values())), _ms(max(trial.times.values()))
    result.steps = [*_steps(trial), *result.steps]
    details = result.statusDetails
    if details and not verdict.passed and verdict.reason in (details.message or ""):
        details.message = str(verdict)  # without the exception's name; what CATEGORIES look at

    entry = trial_entry(trial)
    unit = case.workload.metrics[THROUGHPUT].unit if THROUGHPUT in case.workload.metrics else ""
    title = f"{case.id}: throughput by rank"
    chart = rank_chart(entry.throughput_by_rank, case.shape.devices, title=title, unit=unit)
    found = json.dumps({"verdict": dump(verdict), "trial": dump(entry)}, ensure_ascii=True, indent=1)
    for name, body, kind, extension in (
        ("throughput by rank", chart, "image/svg+xml", "svg"),  # allure-pytest 2.13 has another, wrong name for it
        ("verdict", str(verdict), "text/plain", "txt"),
        ("findings and trial", found, "application/json", "json"),
    ):
        if body:
            data, place = body.encode("utf-8", "replace"), {"name": name, "parent_uuid": result.uuid}
            logger.attach_data(str(uuid.uuid4()), data, attachment_type=kind, extension=extension, **place)


def _steps(trial: Trial) -> list[Any]:
    """The life of the job at the times it really had; the test only asked for the outcome."""
    from allure_commons.model2 import TestStepResult

    spans = _spans(trial)
    return [
        TestStepResult(
            name=name, status=_status(trial, name, last=at == len(spans) - 1), start=_ms(start), stop=_ms(stop)
        )
        for at, (name, start, stop) in enumerate(spans)
    ]


def _status(trial: Trial, step: str, *, last: bool) -> str:
    if step.endswith("train") and trial.job and trial.job.phase is Phase.FAILED:
        return "failed"
    return STATUS[trial.verdict.ruling] if last else "passed"


def _spans(trial: Trial) -> list[tuple[str, float, float]]:
    """Each step from when it began until the next did; the watch is told as the queue and the training."""
    order = [step.name.lower() for step in Step]
    times = sorted((at, order.index(name)) for name, at in trial.times.items() if name in order)
    spans: list[tuple[str, float, float]] = []
    for (start, step), (stop, _) in itertools.pairwise(times):
        name, queued = order[step], trial.job.queued_s if trial.job else None
        if name != "watch":
            spans.append((name, start, stop))
        elif queued is None:
            spans.append(("queue and train", start, stop))
        else:
            middle = min(max(start + queued, start), stop)
            spans += [("queue", start, middle), ("train", middle, stop)]
    return spans


def _ms(seconds: float) -> int:
    return round(seconds * 1000)
