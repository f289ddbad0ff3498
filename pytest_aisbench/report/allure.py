"""`allure-results/`: what Allure needs to show each case, its trials and its history.

allure-pytest writes a result in the process that runs the test. The case with all its trials is known only to the
process of the run, which adds it to these files when the run has ended. So the files are the same with and without
xdist, and a test whose worker crashed, or that belongs to an old run, has its result too.
"""

from __future__ import annotations

import hashlib
import json
import math
import os
import platform
import uuid
from collections.abc import Callable, Generator, Iterable, Iterator, Mapping, Sequence
from contextlib import closing
from pathlib import Path
from typing import Any

import pytest

from pytest_aisbench import __version__
from pytest_aisbench.i18n import ENGLISH, Language
from pytest_aisbench.ledger.database import Database
from pytest_aisbench.ledger.runs import JOB_TIME, PastRun, job_time, past_runs, request_name
from pytest_aisbench.logs import get_logger, ignored
from pytest_aisbench.model.job import Phase
from pytest_aisbench.model.messages import begins_with, plain, translated
from pytest_aisbench.model.results import CaseEntry, Executor, RunEntry, TrialEntry
from pytest_aisbench.model.verdict import Ruling, Verdict, number
from pytest_aisbench.report import results
from pytest_aisbench.report.charts import StepSpan, step_spans
from pytest_aisbench.report.columns import trained_with_sentence
from pytest_aisbench.report.host_plugins import RERUN, STATUS, ReportedTest, guarded, switch_on, warn
from pytest_aisbench.report.rank_charts import case_charts
from pytest_aisbench.report.text import ERROR_OF_TEST, as_typed, json_lines, safe_link, what_to_do, write_text
from pytest_aisbench.stash import SETTINGS, language

_LOG = get_logger("report")
FOLDER = "allure-results"


class Allure:
    """Reporter: amends the results of allure-pytest when the run has ended."""

    order = 30
    on_workers = True

    def __init__(self, config: pytest.Config, folder: Path) -> None:
        self._config, self._folder = config, folder
        self._tests: dict[str, ReportedTest] = {}
        self._say = language(config)
        self._unregister: Callable[[], object] = lambda: None
        with guarded(config, "no allure-results"):
            if switch_on(config, "allure_pytest", "allure_report_dir", folder / FOLDER):
                self._unregister = _catch_lost_files(config)

    def pytest_unconfigure(self) -> None:
        self._unregister()

    @pytest.hookimpl(wrapper=True)
    def pytest_runtest_makereport(self) -> Generator[None, pytest.TestReport, pytest.TestReport]:
        """Remember, in the process of the test, which result allure-pytest writes for it."""
        report = yield
        listener: Any = self._config.pluginmanager.get_plugin("allure_listener")
        if listener and report.when == "teardown":
            with guarded(self._config, "a result of allure-pytest's is not found"):
                report.allure_uuid = listener.allure_logger.get_test(None).uuid  # type: ignore[attr-defined]
        return report

    def pytest_runtest_logreport(self, report: pytest.TestReport) -> None:
        if report.outcome == RERUN:
            self._tests.pop(report.nodeid, None)
        else:
            self._tests.setdefault(report.nodeid, ReportedTest(report.nodeid)).add(report)

    def case(self, entry: CaseEntry) -> None:
        """The files are amended at the end of the run."""

    def run(self, entry: RunEntry) -> None:
        target = getattr(self._config.option, "allure_report_dir", None)
        if not target:
            return
        place = Path(target)
        with guarded(self._config, "no environment in allure-results"):
            place.mkdir(parents=True, exist_ok=True)
            write(place, entry, self._past(entry.run))
        cases = {case.id: case for case in entry.cases}
        tests = {test.uuid: test for test in self._tests.values() if test.uuid}
        for file, result in _written_results(place, set(tests)):
            self._amend(file, result, tests.pop(result["uuid"]), cases, entry)
        for test in [*tests.values(), *(test for test in self._tests.values() if not test.uuid)]:
            test.uuid = test.uuid or str(uuid.uuid5(uuid.NAMESPACE_OID, f"{entry.run} {test.nodeid}"))
            self._amend(place / f"{test.uuid}-result.json", None, test, cases, entry)

    def _past(self, run: str) -> list[PastRun]:
        settings = self._config.stash.get(SETTINGS, None)
        ledger = settings.ledger_file if settings else None
        if ledger is None or not ledger.is_file():
            return []
        with closing(Database(ledger)) as database:
            return past_runs(database, run)

    def _amend(
        self,
        file: Path,
        written: dict[str, Any] | None,
        test: ReportedTest,
        cases: Mapping[str, CaseEntry],
        run: RunEntry,
    ) -> None:
        """Add to the result of a test what the ledger has of its case; `written` is what allure-pytest wrote."""
        case = cases.get(test.case)
        if written and not case:
            return  # it is complete
        with guarded(self._config, f"no lifecycle of {test.nodeid} in allure-results"):
            result = written or new_result(test)
            if case:
                result = amended_result(result, test, case, run, self._say)
                Attachments(file.parent, self._folder, f"{run.run} {test.nodeid}", self._say).add(result, case)
            write_text(file, json.dumps(result, ensure_ascii=True))


def _catch_lost_files(config: pytest.Config) -> Callable[[], object]:
    """Warn once where allure-pytest cannot write a file, in place of its traceback, which would end the session: our
    own record meets the same removed folder or full disk, and the run says so in one line. Returns how to undo it."""
    from allure_commons import hookimpl, plugin_manager

    class LostFiles:
        """Wraps each function of allure-pytest that writes a file."""

        warned = False

        @hookimpl(wrapper=True)
        def report_result(self) -> Generator[None, object, object]:
            try:
                return (yield)
            except OSError as error:
                if not self.warned:
                    warn(config, f"aisbench: files are missing in {FOLDER}: {error}")
                self.warned = True
                return None

        report_container = report_attached_file = report_attached_data = report_result

    plugin = LostFiles()
    plugin_manager.register(plugin)
    return lambda: plugin_manager.unregister(plugin)


def _written_results(place: Path, wanted: set[str]) -> Iterator[tuple[Path, dict[str, Any]]]:
    """The results with these ids, and their files. The newest first: the folder may hold results of a year."""
    for file in sorted(place.glob("*-result.json"), key=lambda file: -file.stat().st_mtime) if wanted else ():
        result_id = ""
        # Another program's file.
        with ignored(_LOG, (ValueError, LookupError, TypeError), "which test %s is the result of", file):
            result = json.loads(file.read_bytes())
            result_id = result["uuid"]
        if result_id in wanted:
            wanted.remove(result_id)
            yield file, result
        if not wanted:
            return


# One result: the trials of its case as steps at their true times, labels, parameters, links

OWNERS = {Ruling.FAILED: "workload", Ruling.BROKEN: "platform", Ruling.INCONCLUSIVE: "noise"}
# allure-pytest sets these by process and machine; we set them by case, so that xdist makes no difference.
_REPLACED = {"parentSuite", "suite", "subSuite", "host", "thread"}


def new_result(test: ReportedTest) -> dict[str, Any]:
    """A result for a test without one: its worker crashed, or it belongs to an old run."""
    path, _, rest = test.nodeid.partition("::")
    *classes, name = rest.split("::") if rest else [test.nodeid]
    folders, _, file = path.rpartition("/")
    package = ".".join(filter(None, [folders.replace("/", "."), file.rsplit(".", 1)[0]]))
    full = f"{'.'.join([package, *classes])}#{name.partition('[')[0]}"
    suites = {
        "parentSuite": folders.replace("/", "."),
        "suite": file.rsplit(".", 1)[0],
        "subSuite": " > ".join(classes),
    }
    labels = {**suites, "framework": "pytest", "language": "cpython3", "package": package}
    start, stop = test.span(None)
    return {
        "uuid": test.uuid,
        "name": plain(name),
        "fullName": plain(full),
        "titlePath": [part for part in (*path.split("/"), *classes) if part],
        "testCaseId": _md5(full),
        "historyId": _md5(test.nodeid),
        "status": test.status(None),
        "statusDetails": {"message": _first_line(test.text), "trace": test.text} if test.text else {},
        "labels": [{"name": key, "value": plain(value)} for key, value in labels.items() if value],
        "start": _ms(start),
        "stop": _ms(stop),
    }


def amended_result(
    result: Mapping[str, Any], test: ReportedTest, case: CaseEntry, run: RunEntry, say: Language = ENGLISH
) -> dict[str, Any]:
    """The result with all that the ledger has about its case, except the attachments."""
    start, stop = test.span(case)
    status = test.status(case)
    ours = [{"name": name, "value": plain(value)} for name, value in labels(case, run) if value]
    kept = [label for label in result.get("labels", ()) if label["name"] not in _REPLACED and label not in ours]
    links = [link for link in result.get("links", ()) if link.get("name") not in {"console", "Tester"}]
    theirs = [step for step in result.get("steps", ()) if not step["name"].startswith("trial ")]
    return {
        **result,
        "testCaseId": case_id_of(test.nodeid),
        "historyId": _md5(test.nodeid),
        "status": status,
        "statusDetails": _details(result.get("statusDetails") or {}, test, case, status),
        "description": result.get("description") or description(case, say),
        "labels": [*kept, *ours],
        "parameters": [{"name": name, "value": value, "excluded": True} for name, value in parameters(case, run)],
        "links": [*links, *({"type": "link", "name": name, "url": url} for name, url in links_of(case, run))],
        "steps": [*(trial_step(case, trial) for trial in case.trials), *theirs],
        "start": _ms(start),
        "stop": _ms(stop),
    }


def description(case: CaseEntry, say: Language) -> str:
    """What to do, and the reason in the report's language: the message stays English for the categories."""
    why = "" if say.is_source or case.verdict in {None, Ruling.PASSED} else translated(case.reason, say)
    return "\n\n".join(filter(None, (plain(why), what_to_do(case, say))))


def _owner(case: CaseEntry) -> str:
    """Who must act."""
    if begins_with(case.reason, ERROR_OF_TEST):
        return "test"
    return OWNERS.get(case.verdict, "") if case.verdict else ""


def case_id_of(nodeid: str) -> str:
    """A test at each of its shapes has an id of its own, whatever its parameters are called."""
    return _md5(f"aisbench {nodeid}")


def history_ids(nodeid: str) -> tuple[str, str]:
    """The ids of a test in the history of Allure 2, which takes ours, and of Allure 3, which derives its own."""
    return _md5(nodeid), f"{_md5(case_id_of(nodeid))}.{_md5('')}"


def _details(details: Mapping[str, Any], test: ReportedTest, case: CaseEntry, status: str) -> dict[str, Any]:
    """The message by which Allure sorts into categories: the verdict, without the name of an exception before it."""
    if status == "passed":
        return {}
    if status == "skipped":
        return {"message": _first_line(test.text), "trace": details.get("trace") or test.text}
    if case.verdict is None or case.verdict is Ruling.PASSED:
        return {**details, "message": details.get("message") or _first_line(test.text)}
    verdict = Verdict(case.verdict, case.reason, case.findings)
    return {**details, "message": str(verdict), "trace": details.get("trace") or test.text}


def labels(case: CaseEntry, run: RunEntry) -> list[tuple[str, str]]:
    platform = str(run.settings.get("platform", ""))
    shape = f"{case.nodes}x{case.devices_per_node}"
    return [
        ("parentSuite", "aisbench"),
        ("suite", case.workload),
        ("subSuite", shape),
        ("epic", platform),
        ("feature", case.workload),
        ("story", case.id),
        ("owner", _owner(case)),
        ("verdict", case.verdict.value if case.verdict else ""),
        ("platform", platform),
        ("host", platform),  # the rows of the timeline: jobs run side by side
        ("thread", case.id),
    ]


def parameters(case: CaseEntry, run: RunEntry) -> list[tuple[str, str]]:
    """Measurements first: of a long list Allure shows the beginning."""
    facts: dict[str, object] = {}
    for name, metric in case.metrics.items():
        facts[name] = "not measured" if metric.value is None else f"{number(metric.value)} {metric.unit}".strip()
    facts |= {"platform": run.settings.get("platform", ""), "nodes": case.nodes, "devices": case.devices_per_node}
    facts |= {"mode": case.mode, "trials": len(case.trials), "card-hours": case.card_hours}
    facts |= {"trained with": sentence} if (sentence := trained_with_sentence(case, ENGLISH)) else {}
    traits = case.trials[-1].traits if case.trials else {}
    facts |= {name: value for name, value in traits.items() if name not in facts}
    return [(plain(name), plain(str(value))) for name, value in facts.items()]


def links_of(case: CaseEntry, run: RunEntry) -> list[tuple[str, str]]:
    consoles = [("console", trial.console) for trial in case.trials]
    # `safe_link` drops a labelled address, such as that of a private local cloud, which ended with its run.
    testers = [("Tester", tester) for tester in run.testers.get(case.id, ())]
    return list(dict.fromkeys(link for link in (*consoles, *testers) if safe_link(link[1])))


def trial_step(case: CaseEntry, trial: TrialEntry) -> dict[str, Any]:
    """A trial as a step, with the steps of its life below."""
    is_last = trial is case.trials[-1]
    status = STATUS[case.verdict] if is_last and case.verdict else _outcome(trial)
    life = step_spans(trial.times, trial.queued_s)
    times = list(trial.times.values())
    job = f": job {plain(trial.job_id, 80)} {plain(trial.platform_phase or '', 40)}" if trial.job_id else ""
    return {
        "name": f"trial {trial.trial}{job}".rstrip(),
        "status": status,
        "start": _ms(min(times, default=0.0)),
        "stop": _ms(max(times, default=0.0)),
        "steps": [_part(trial, each, status, last=each is life[-1]) for each in life],
    }


def _outcome(trial: TrialEntry) -> str:
    """The status of a trial that another one followed, or that was never judged."""
    statuses = {Phase.SUCCEEDED.value: "passed", Phase.FAILED.value: "failed", Phase.CANCELLED.value: "skipped"}
    return statuses.get(trial.phase or "", "broken")


def _part(trial: TrialEntry, span: StepSpan, status: str, *, last: bool) -> dict[str, Any]:
    failed = span.name == "train" and trial.phase == Phase.FAILED.value
    return {
        "name": "queue and train" if span.name == "watch" else span.name,
        "status": "failed" if failed else status if last else "passed",
        "start": _ms(span.start),
        "stop": _ms(span.stop),
    }


def _first_line(text: str) -> str:
    """The line of a traceback that names what was raised, else the first line."""
    lines = [line for line in text.splitlines() if line.strip()]
    raised = [line[1:].strip() for line in lines if line.startswith("E ")]
    return plain(next(iter((*raised, *lines)), ""))


def _md5(text: str) -> str:
    return hashlib.md5(text.encode("utf-8", "replace"), usedforsecurity=False).hexdigest()


def _ms(seconds: float) -> int:
    return round(seconds * 1000)


# Attachments of a result: charts, logs, documents

MOST_LOGS = 16  # of a trial
LONGEST = 256_000  # bytes of the end of a log; the whole log lies among the reports
_TYPES = {"svg": "image/svg+xml", "txt": "text/plain", "json": "application/json"}


class Attachments:
    """Adds attachments to a result. Their names follow from what they show: a replayed run writes the same files."""

    def __init__(self, place: Path, folder: Path, of: str, say: Language) -> None:
        """`place` is where the results are, `folder` the run's own."""
        self._place, self._folder, self._of, self._say = place, folder, of, say

    def add(self, result: dict[str, Any], case: CaseEntry) -> None:
        """Attach charts and documents of the case to the result, files of a trial to its step."""
        ours = [self._write("case", *each) for each in self._of_case(case)]
        mine = {attachment["source"] for attachment in ours}
        theirs = [each for each in result.get("attachments", ()) if each["source"] not in mine]
        result["attachments"] = [*ours, *theirs]
        for step, trial in zip(result["steps"], case.trials, strict=False):
            step["attachments"] = [self._write(f"trial {trial.trial}", *each) for each in self._of_trial(case, trial)]

    def _write(self, whose: str, name: str, body: str | bytes, kind: str) -> dict[str, str]:
        file = f"{uuid.uuid5(uuid.NAMESPACE_OID, f'{self._of} {whose} {name}')}-attachment.{kind}"
        data = body if isinstance(body, bytes) else body.encode("utf-8", "replace")
        with open(f"{self._place}/{file}", "wb") as out:  # noqa: PTH123 - a run writes ten thousand of them
            out.write(data)
        return {"name": name, "source": file, "type": _TYPES[kind]}

    def _of_case(self, case: CaseEntry) -> Iterator[tuple[str, str | bytes, str]]:
        for chart in case_charts(case, self._say):
            if picture := chart.draw():
                yield plain(chart.name.removeprefix(case.id).lstrip(":： ")), picture, "svg"
        yield "verdict", str(Verdict(case.verdict, case.reason, case.findings)) if case.verdict else case.reason, "txt"
        yield "case", json_lines(results.case_document(case)), "json"

    def _of_trial(self, case: CaseEntry, trial: TrialEntry) -> Iterator[tuple[str, str | bytes, str]]:
        request = self._folder / "requests" / f"{request_name(case.id, trial.trial)}.json"
        if request.is_file():
            yield "request", request.read_bytes(), "json"
        if trial.events:
            yield "what the platform says happened", "\n".join(map(plain, trial.events)), "txt"
        logs = [log for log in trial.logs if self._is_there(log)]
        for log in logs[:MOST_LOGS]:
            yield plain(Path(log).name), self._end_of(self._folder / log), "txt"
        if trial.last_lines and not logs:
            yield "last lines", "\n".join(map(plain, trial.last_lines)), "txt"

    def _is_there(self, log: str) -> bool:
        """True if the file exists below the run's folder: a name in the ledger may be anything."""
        path = Path(log)
        return not path.is_absolute() and ".." not in path.parts and (self._folder / path).is_file()

    def _end_of(self, path: Path) -> bytes:
        with path.open("rb") as file:
            left_out = file.seek(0, os.SEEK_END) - LONGEST
            file.seek(max(left_out, 0))
            body = file.read(LONGEST)
        note = f"({left_out} bytes before are in {path.relative_to(self._folder)})\n" if left_out > 0 else ""
        return note.encode() + body


# Files beside the results: environment, executor, categories, metrics, history

# Our messages begin with the verdict. `[\s\S]` is any character, in Java's and in JavaScript's expressions alike.
CATEGORIES = (
    {"name": "Platform (BROKEN)", "matchedStatuses": ["broken"], "messageRegex": r"BROKEN: [\s\S]*"},
    {"name": "Workload (FAILED)", "matchedStatuses": ["failed"], "messageRegex": r"FAILED: [\s\S]*"},
    {
        "name": "Test (INCONCLUSIVE)",
        "matchedStatuses": ["failed"],
        "messageRegex": r"INCONCLUSIVE: its test ended by an error [\s\S]*",
    },
    {
        "name": "Noise (INCONCLUSIVE)",
        "matchedStatuses": ["failed"],
        "messageRegex": r"INCONCLUSIVE: (?!its test ended by an error )[\s\S]*",
    },
)
BETTER = {"throughput": "higher", "accuracy": "higher", "loss": "lower"}  # of other metrics we do not know
STATUSES = ("failed", "broken", "skipped", "passed", "unknown")


def write(place: Path, run: RunEntry, past: Sequence[PastRun]) -> None:
    """Write the files beside the results. Files that the user or a CI server put there stay."""
    _unless_there(place / "categories.json", _json(CATEGORIES))
    _unless_there(place / "environment.properties", environment(run))
    _unless_there(place / "executor.json", _json(executor(run.executor, run.run)))
    with (place / f"{run.run}-perf.json").open("w", encoding="utf-8") as file:
        file.writelines(_json_array(metrics(run)))
    if past:
        (place / "history").mkdir(exist_ok=True)
        _unless_there(place / "history" / "history.json", _json(history(past)))
        _unless_there(place / "history" / "history-trend.json", _json(trend(past)))


def _unless_there(path: Path, text: str) -> None:
    if not path.exists():
        path.write_text(text, encoding="utf-8")


def _json(value: Any) -> str:
    return json.dumps(value, indent=1, ensure_ascii=True, allow_nan=False)


def _json_array(values: Iterable[Mapping[str, Any]]) -> Iterator[str]:
    """A line for each value: an indented document of a thousand cases takes ten times as long."""
    before = "["
    for value in values:
        yield f"{before}\n{json.dumps(value, allow_nan=False)}"
        before = ","
    yield "\n]" if before == "," else "[]"


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


def executor(server: Executor, run: str) -> dict[str, Any]:
    """The CI server that ran the tests; Allure chooses its icon by the type."""
    facts: dict[str, Any] = {"name": server.name or "local", "type": server.name.lower() or "local"}
    facts |= {"buildName": server.build or run, "reportName": f"aisbench {run}", "buildUrl": server.url}
    facts |= {"buildOrder": server.number}
    return {name: value for name, value in facts.items() if value not in {"", None}}


def metrics(run: RunEntry) -> Iterator[Mapping[str, Any]]:
    """The metrics that Allure 3 shows, with a trend through the runs."""
    return (sample for case in run.cases for sample in _samples(case, run))


def _samples(case: CaseEntry, run: RunEntry) -> Iterator[Mapping[str, Any]]:
    times = [at for trial in case.trials for at in trial.times.values()] or [0.0]
    lasted = job_time(case.card_hours, case.nodes, case.devices_per_node)
    measured = [(name, metric.value, metric.unit) for name, metric in case.metrics.items()]
    for name, value, unit in (*measured, (JOB_TIME, lasted, "s")):
        if value is not None and math.isfinite(value):
            key = f"{case.id}.{name}"
            yield {
                "id": f"{run.run}.{key}",
                "key": key,
                "value": value,
                "unit": plain(unit),
                "title": plain(f"{case.id} {name.replace('_', ' ')}"),
                "group": case.workload,
                "groupTitle": plain(case.workload),
                "better": BETTER.get(name, "neutral"),
                "start": _ms(min(times)),
                "stop": _ms(max(times)),
            }


def history(past: Sequence[PastRun]) -> dict[str, Any]:
    """The history as Allure 2 reads it from the report before; made from the ledger, it lacks no run."""
    tests: dict[str, Any] = {}
    for run in past:
        for test in run.tests:
            entry = tests.setdefault(
                history_ids(test.nodeid)[0], {"statistic": dict.fromkeys((*STATUSES, "total"), 0), "items": []}
            )
            entry["statistic"][test.status] += 1
            entry["statistic"]["total"] += 1
            start, stop = round(test.started * 1000), round(test.stopped * 1000)
            times = {"start": start, "stop": stop, "duration": stop - start}
            entry["items"].append({"uid": run.run, "status": test.status, "time": times})
    return tests


def trend(past: Sequence[PastRun]) -> list[dict[str, Any]]:
    """Counts of each run, newest first; the newest has the highest number."""
    return [
        {"buildOrder": len(past) - at, "reportName": f"aisbench {run.run}", "data": _counts(run)}
        for at, run in enumerate(past)
    ]


def _counts(run: PastRun) -> dict[str, int]:
    statuses = [test.status for test in run.tests]
    return {**{status: statuses.count(status) for status in STATUSES}, "total": len(statuses)}


def page_config(run: str, lang: str) -> dict[str, Any]:
    """The configuration of Allure 3, which reads categories from here only."""
    options = {"singleFile": True, "reportLanguage": lang, "reportName": f"aisbench {run}"}
    options |= {"groupBy": ["epic", "feature", "story"], "sections": ["charts", "timeline", "metrics"]}
    return {"name": f"aisbench {run}", "categories": CATEGORIES, "plugins": {"awesome": {"options": options}}}


def history_lines(past: Sequence[PastRun]) -> str:
    """The history as Allure 3 keeps it: a line per report, the oldest first."""
    return "".join(f"{json.dumps(_line(run), ensure_ascii=True, allow_nan=False)}\n" for run in reversed(past))


def _line(run: PastRun) -> dict[str, Any]:
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
