"""Files for CI servers: `summary.md`, `metrics.txt`, `metrics.csv`, what we add to pytest's `junit.xml`, and GitHub's
step summary and annotations.
"""

from __future__ import annotations

import csv
import io
import math
import os
import platform
import re
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple
from xml.etree import ElementTree as ET

import pytest

from pytest_aisbench import __version__
from pytest_aisbench.i18n import ENGLISH, Language
from pytest_aisbench.model.messages import plain, translated
from pytest_aisbench.model.metric import ACCURACY, THROUGHPUT
from pytest_aisbench.model.results import CaseEntry, RunEntry, TrialEntry
from pytest_aisbench.model.verdict import Outcome, Ruling, number
from pytest_aisbench.report.columns import Column, Output, columns_of, total, verdict_text
from pytest_aisbench.report.host_plugins import (
    PREFIX,
    RERUN,
    case_id_of_report,
    collection_problems,
    guarded,
    switch_on,
    warn,
)
from pytest_aisbench.report.text import (
    as_typed,
    exit_meaning,
    safe_link,
    verdict_counts,
    what_to_do,
    worst_first,
    write_text,
)
from pytest_aisbench.stash import language


class Files:
    """Reporter: writes the files, on every CI server alike."""

    order = 40

    def __init__(self, config: pytest.Config, folder: Path) -> None:
        self._folder, self._lang = folder, language(config)

    def case(self, entry: CaseEntry) -> None:
        """The files are written at the end of the run."""

    def run(self, entry: RunEntry) -> None:
        write_text(self._folder / "metrics.txt", openmetrics_text(entry))
        write_text(self._folder / "metrics.csv", csv_table(entry))
        write_text(self._folder / "summary.md", markdown_summary(entry, self._lang))


# GitHub

_SUMMARY = "GITHUB_STEP_SUMMARY"
_ROOM = 1 << 20  # bytes that GitHub takes from one step
_MOST = 10  # annotations of a kind that GitHub shows of one step


class GitHub:
    """Reporter: the summary of a workflow's step, and annotations; does nothing elsewhere."""

    order = 50
    once = True  # not for the replay of an old run

    def __init__(self, config: pytest.Config, folder: Path) -> None:
        self._config, self._folder = config, folder
        self._places: dict[str, tuple[str, int]] = {}
        self._run: RunEntry | None = None

    def case(self, entry: CaseEntry) -> None:
        """Everything is written at the end of the run."""

    def run(self, entry: RunEntry) -> None:
        self._run = entry
        if target := os.environ.get(_SUMMARY):
            path = Path(target)
            room = _ROOM - (path.stat().st_size if path.exists() else 0)
            text = markdown_summary(entry, language(self._config))
            if len(text.encode()) > room:
                warn(self._config, f"aisbench: {_SUMMARY} is full; the summary is in {self._folder.name}/summary.md")
                return
            with path.open("a", encoding="utf-8", errors="replace") as file:
                file.write(text)

    def pytest_runtest_logreport(self, report: pytest.TestReport) -> None:
        """Remember the file and line of the case's test."""
        file, line, _ = report.location
        if case := case_id_of_report(report):
            self._places.setdefault(case, (str(self._config.rootpath / file), (line or 0) + 1))

    @pytest.hookimpl(trylast=True)
    def pytest_terminal_summary(self, terminalreporter: Any) -> None:
        if self._run and os.environ.get("GITHUB_ACTIONS") == "true":
            for line in github_annotations(self._run, self._places, os.environ.get("GITHUB_WORKSPACE", "")):
                terminalreporter.write_line(line)


def github_annotations(run: RunEntry, places: dict[str, tuple[str, int]], workspace: str) -> list[str]:
    """Workflow commands for the cases that did not pass; of each kind as many as GitHub shows."""
    commands: dict[str, list[str]] = {"error": [], "warning": []}
    for name in missing_cases(run):
        commands["error"].append(_command("error", {"title": f"{name} is missing"}, "required, and not judged"))
    for case in worst_first(run.cases):
        if case.verdict in {Ruling.FAILED, Ruling.BROKEN, Ruling.INCONCLUSIVE}:
            kind = "warning" if case.verdict is Ruling.INCONCLUSIVE else "error"
            commands[kind].append(_command(kind, _annotation(case, places, workspace), case.reason))
    return [line for lines in commands.values() for line in lines[:_MOST]]


def _annotation(case: CaseEntry, places: dict[str, tuple[str, int]], workspace: str) -> dict[str, str]:
    assert case.verdict is not None
    title = {"title": f"{case.id} {case.verdict.value}"}
    if case.id not in places:
        return title
    file, line = places[case.id]
    return {"file": os.path.relpath(file, workspace) if workspace else file, "line": str(line), **title}


def _command(kind: str, properties: dict[str, str], message: str) -> str:
    pairs = ",".join(f"{name}={_escaped(value, ':,')}" for name, value in properties.items())
    return f"::{kind} {pairs}::{_escaped(message)}"


def _escaped(value: str, more: str = "") -> str:
    text = plain(value).replace("%", "%25")
    for char in more:
        text = text.replace(char, f"%{ord(char):02X}")
    return text


# `summary.md`: the verdicts of a run in Markdown, failures first

MOST = 900_000  # bytes; GitHub drops a summary of more than 1 MiB
_MOST_TROUBLES = 50
_LONGEST = 300  # characters of a reason or a log line
_MEANING = re.compile(r"([\\`*_\[\]|~#$])")
FILES = ("report.html", "junit.xml", "results.json", "metrics.txt", "metrics.csv")


def markdown_summary(run: RunEntry, say: Language = ENGLISH, most: int = MOST) -> str:
    """The summary in at most `most` bytes; it counts the cases that do not fit."""
    cases = worst_first(run.cases)
    head = [f"## {_title(run, say)}", "", _facts(run, say), ""]
    head += [f"- **{escaped(case)}**: {say('required')}" for case in missing_cases(run)[:_MOST_TROUBLES]]
    bad = [case for case in cases if case.verdict is not Ruling.PASSED or _warnings(case)]
    for case in bad[:_MOST_TROUBLES]:
        head += _trouble(case, say)
    if len(bad) > _MOST_TROUBLES:
        head.append(f"- {say('more cases in results', count=len(bad) - _MOST_TROUBLES)}")
    columns = columns_of(Output.MARKDOWN)
    headings = " | ".join(column.inline_head(say) for column in columns)
    head += ["", f"| {headings} |", f"|{'---|' * len(columns)}"]
    tail = ["", *_uploads(run, say), f"{say('files beside')}: {', '.join(f'[{name}]({name})' for name in FILES)}", ""]
    room = most - sum(len(line.encode()) + 1 for line in (*head, *tail)) - 200
    rows = [*_fitting((_row(case, columns, say) for case in cases), room)]
    if len(rows) < len(cases):
        tail.insert(0, f"\n{say('more cases in results', count=len(cases) - len(rows))}")
    return "\n".join([*head, *rows, *tail])


def escaped(text: str, limit: int = _LONGEST) -> str:
    """Text of a job, a platform or a user, without effect as Markdown or HTML, in one cell."""
    escaped_html = plain(text, limit).replace("&", "&amp;").replace("<", "&lt;").replace(">", "&gt;")
    return _MEANING.sub(r"\\\1", escaped_html)


def _title(run: RunEntry, say: Language) -> str:
    if run.exit_code is None:
        return say("summary unfinished")
    return say("summary title", code=run.exit_code, meaning=exit_meaning(run, say))


def _facts(run: RunEntry, say: Language) -> str:
    counts = verdict_counts(run.cases).items()
    verdicts = ", ".join(f"{count} {verdict.value if verdict else say('not judged')}" for verdict, count in counts)
    cost = number(sum(case.card_hours for case in run.cases))
    where = escaped(str(run.settings.get("platform", "-")))
    cases = say("cases", count=len(run.cases)) + (f": {verdicts}" if verdicts else "")
    return (
        f"{say.inline('run')} `{plain(run.run)}` {say('on platform')} {where}; {cases}; {say('card-hours', count=cost)}"
    )


def _trouble(case: CaseEntry, say: Language) -> Iterator[str]:
    yield f"- **{escaped(case.id)}** {verdict_text(case, say)}: {escaped(translated(case.reason, say))}"
    for finding in case.findings:
        if finding.outcome not in {Outcome.MET, Outcome.WAIVED} and finding.text != case.reason:
            yield f"  - {say.word(finding.outcome.value)}: {escaped(translated(finding.text, say))}"
    yield from (f"  - {say.inline('warning')}: {escaped(translated(warning, say))}" for warning in _warnings(case))
    if case.verdict is Ruling.PASSED:
        return
    if case.trials:
        newest = case.trials[-1]
        if newest.job_id:
            console = f", [{say('console')}](<{url}>)" if (url := safe_link(newest.console)) else ""
            yield f"  - {say('job')} {escaped(newest.job_id)}, {escaped(newest.platform_phase or '-')}{console}"
        for log in [name for name in newest.logs if "worker" in name][:1]:
            yield f"  - {say('log')} {escaped(log)}"
        notes = [note for note in newest.notes if note not in _warnings(case)]  # a warning is also a note of its trial
        yield from (f"  - {say.inline('note')}: {escaped(translated(note, say))}" for note in notes[:5])
    if todo := what_to_do(case, say):
        yield f"  - {say.inline('what to do')}: {todo}"


def _row(case: CaseEntry, columns: Sequence[Column], say: Language) -> str:
    return f"| {' | '.join(escaped(column.cell(case, say)) for column in columns)} |"


def _warnings(case: CaseEntry) -> Sequence[str]:
    return case.background.warnings if case.background else ()


def _uploads(run: RunEntry, say: Language) -> Iterator[str]:
    for state in ("spooled", "dead"):
        if count := sum(upload["state"] == state for upload in run.uploads):
            yield f"{say('Tester')}: {count} {state}"
            yield ""


def _fitting(rows: Iterator[str], room: int) -> Iterator[str]:
    for row in rows:
        room -= len(row.encode()) + 1
        if room < 0:
            return
        yield row


# `metrics.txt`, in the text format of OpenMetrics, and `metrics.csv`, for Jenkins' plot plugin

_DIGITS = 4  # of measurements
_FEW = 2  # digits of times and costs, which differ with every run
_PREFIX = "aisbench_"


class Sample(NamedTuple):
    labels: dict[str, str]
    value: float


class Family(NamedTuple):
    name: str
    help: str
    samples: list[Sample]
    unit: str = ""
    kind: str = "gauge"


def openmetrics_text(run: RunEntry) -> str:
    """The content of `metrics.txt`."""
    lines: list[str] = []
    for family in _families(run):
        if family.samples:
            name = _PREFIX + family.name
            lines.append(f"# TYPE {name} {family.kind}")
            if family.unit:
                lines.append(f"# UNIT {name} {family.unit}")
            lines.append(f"# HELP {name} {family.help}")
            lines += [f"{name}{_labels(sample.labels)} {_number(sample.value)}" for sample in family.samples]
    return "".join(f"{line}\n" for line in [*lines, "# EOF"])


def csv_table(run: RunEntry) -> str:
    """The content of `metrics.csv`: a row of names, a row of values. What was not measured has no column."""
    columns: dict[str, float] = {}
    for case in _cases_by_name(run):
        for name, metric in case.metrics.items():
            columns |= _finite(f"{case.id} {name}", metric.value, _DIGITS)
        for column in columns_of(Output.CSV):
            columns |= _finite(f"{case.id} {column.key}", column.value(case) if column.value else None, column.digits)
    written = io.StringIO()
    writer = csv.writer(written, quoting=csv.QUOTE_ALL, lineterminator="\n")
    writer.writerow(plain(name) for name in columns)
    writer.writerow(_number(value) for value in columns.values())
    return written.getvalue()


def _families(run: RunEntry) -> Iterator[Family]:
    cases = _cases_by_name(run)
    for name, help_text in (
        (THROUGHPUT, "What all cards of the case did together, in its unit."),
        (ACCURACY, "What the trained model reached."),
    ):
        yield Family(name, help_text, [*_measured(cases, [name])])
    others = sorted({name for case in cases for name in case.metrics} - {THROUGHPUT, ACCURACY})
    yield Family("measurement", "Any other metric of the workload.", [*_measured(cases, others)])
    per_card = "Share of the speed per card at the base shape that is kept at this shape."
    yield Family("efficiency", per_card, [*_each(cases, lambda case: case.efficiency, _DIGITS)])
    yield Family("pace", "Speed by the log, of one rank or of the whole job.", [*_paces(cases)])
    yield Family("card_hours", "Time that the jobs ran, times their cards.", [*_each(cases, lambda c: c.card_hours)])
    yield Family("verdict", "The verdict; all 0 where there is none.", [*_verdicts(cases)], kind="stateset")
    waited = "Time that the jobs waited in a queue."
    yield Family("queued_seconds", waited, [*_each(cases, lambda c: total(c, "queued_s"))], "seconds")
    yield Family("ran_seconds", "Time that the jobs ran.", [*_each(cases, lambda c: total(c, "ran_s"))], "seconds")
    slow = "Cards and nodes that were slower than the others."
    yield Family("stragglers", slow, [*_each(cases, lambda c: len(c.trials[-1].stragglers) if c.trials else None)])
    yield Family("trials", "Attempts that decided the case.", [*_each(cases, lambda c: len(c.trials))])
    if run.settings.get("required"):
        absent = Sample({}, len(missing_cases(run)))
        yield Family("missing_cases", "Required cases without a verdict.", [absent])
    if run.exit_code is not None:
        yield Family("exit_code", "What the run told its shell.", [Sample({}, run.exit_code)])


def _measured(cases: Iterable[CaseEntry], names: Iterable[str]) -> Iterator[Sample]:
    for name in names:
        for case in cases:
            if name in case.metrics and (value := case.metrics[name].value) is not None and math.isfinite(value):
                candidates = {"metric": "" if name in {THROUGHPUT, ACCURACY} else name, "unit": case.metrics[name].unit}
                labels = {key: text for key, text in candidates.items() if text}  # an empty label counts as none
                yield Sample({**_case_labels(case), **labels}, rounded(value, _DIGITS))


def _paces(cases: Iterable[CaseEntry]) -> Iterator[Sample]:
    for case in cases:
        if case.trials and (pace := case.trials[-1].pace):
            labels = {**_case_labels(case), "of": pace.of, "unit": pace.unit}
            for part, speed in (("whole", pace.whole), ("warm_up", pace.warm_up), ("steady", pace.steady)):
                for value in _finite("", speed, _DIGITS).values():
                    yield Sample({**labels, "part": part}, value)


def _each(cases: Iterable[CaseEntry], of: Callable[[CaseEntry], float | None], digits: int = _FEW) -> Iterator[Sample]:
    for case in cases:
        for value in _finite("", of(case), digits).values():
            yield Sample(_case_labels(case), value)


def _verdicts(cases: Iterable[CaseEntry]) -> Iterator[Sample]:
    rulings = [(ruling, ruling.value) for ruling in Ruling]
    for case in cases:
        labels = _case_labels(case)
        for ruling, word in rulings:
            yield Sample({**labels, f"{_PREFIX}verdict": word}, float(case.verdict is ruling))


def _case_labels(case: CaseEntry) -> dict[str, str]:
    return {"case": case.id, "workload": case.workload, "nodes": str(case.nodes)}


def _cases_by_name(run: RunEntry) -> list[CaseEntry]:
    """In the order of names: the order in which cases end differs with xdist."""
    return sorted(run.cases, key=lambda case: case.id)


def _finite(name: str, value: float | None, digits: int) -> dict[str, float]:
    return {} if value is None or not math.isfinite(value) else {name: rounded(value, digits)}


def rounded(value: float, digits: int) -> float:
    """A finite number to so many significant digits."""
    result = float(f"{value:.{digits}g}")
    return result if math.isfinite(result) else rounded(0.99 * value, digits)  # rounding up exceeded the largest float


def _number(value: float) -> str:
    return f"{value:.15g}"


def _labels(labels: dict[str, str]) -> str:
    if not labels:
        return ""
    return "{" + ",".join(f'{name}="{_escaped_label(value)}"' for name, value in labels.items()) + "}"


def _escaped_label(value: str) -> str:
    return plain(value).replace("\\", r"\\").replace('"', r"\"")


# A case and a run as flat names and values: the properties in junit.xml


def case_properties(case: CaseEntry, where: str = "") -> dict[str, str]:
    """What the ledger has about a case; `where` is the platform."""
    facts = dict(_case(case, where))
    return {name: plain(str(value)) for name, value in facts.items() if value is not None}


def _case(case: CaseEntry, where: str) -> Iterator[tuple[str, Any]]:
    yield from (("case", case.id), ("workload", case.workload), ("platform", where or None))
    yield from (("nodes", case.nodes), ("devices_per_node", case.devices_per_node))
    yield from (("shape", f"{case.nodes}x{case.devices_per_node}"), ("mode", case.mode))
    yield from (("verdict", case.verdict.value if case.verdict else None), ("reason", case.reason))
    yield from (("trials", len(case.trials)), ("card_hours", case.card_hours))
    for name, metric in case.metrics.items():
        yield from ((name, metric.value), (f"{name}.unit", metric.unit or None))
    for finding in case.findings:
        yield from ((f"{finding.metric}.wanted", finding.wanted), (f"{finding.metric}.outcome", finding.outcome.value))
    if case.background and case.background.reference is not None:
        yield f"{THROUGHPUT}.reference", number(case.background.reference)
    if case.background and case.background.interval:
        yield f"{THROUGHPUT}.interval", " .. ".join(map(number, case.background.interval))
    yield "efficiency", None if (share := case.efficiency) is None else number(share)
    if case.trials:
        yield from _trial(case, case.trials[-1])


def _trial(case: CaseEntry, newest: TrialEntry) -> Iterator[tuple[str, Any]]:
    yield from (("job_id", newest.job_id), ("phase", newest.phase))
    yield from (("queued_s", total(case, "queued_s")), ("ran_s", total(case, "ran_s")))
    yield "stragglers", "; ".join(map(str, newest.stragglers)) or None
    for name, trait in newest.traits.items():
        yield f"trait.{name}", trait


def run_properties(run: RunEntry) -> dict[str, str]:
    """The run, its platform, the versions that it used, and how it ended."""
    facts: dict[str, Any] = {"run": run.run, "schema": run.schema, "started": run.started, "finished": run.finished}
    facts |= {name: as_typed(run.settings[name]) for name in ("platform", "nodes") if name in run.settings}
    facts |= {"version": __version__, "python": platform.python_version(), "pytest": pytest.__version__}
    if run.exit_code is not None:
        facts |= {"exit_code": run.exit_code, "exit": exit_meaning(run)}
    facts["missing"] = ",".join(missing_cases(run)) or None
    return {name: plain(str(value)) for name, value in facts.items() if value is not None}


def missing_cases(run: RunEntry) -> list[str]:
    """The required cases without a verdict."""
    judged = {case.id for case in run.cases if case.verdict}
    return [case for case in run.settings.get("required") or () if case not in judged]


# junit.xml: pytest writes it, we add the properties of each case and of the run.


class Junit:
    """Reporter: adds our properties to the file before pytest writes it."""

    order = 20

    def __init__(self, config: pytest.Config, folder: Path) -> None:
        self._config = config
        self._cases: dict[str, str] = {}  # by test
        self._begun: dict[str, pytest.TestReport] = {}  # the last report of each test that has not ended
        self._ending: Any = None  # pytest's record of the test whose last report is given to all plugins now
        with guarded(config, "no junit.xml"):
            if switch_on(config, "junitxml", "xmlpath", folder / "junit.xml"):
                log = self._log()
                log.pytest_sessionstart()
                for report in collection_problems(config):
                    log.pytest_collectreport(report)

    def _log(self) -> Any:
        from _pytest.junitxml import xml_key

        return self._config.stash[xml_key]

    def case(self, entry: CaseEntry) -> None:
        """Properties are written at the end of the run: a later test may change the verdict of the case."""

    def pytest_runtest_logreport(self, report: pytest.TestReport) -> None:
        self._begun[report.nodeid] = report
        if case := case_id_of_report(report):
            self._cases[report.nodeid] = case
        if report.when == "teardown":
            del self._begun[report.nodeid]
            if case and getattr(self._config.option, "xmlpath", None):
                with guarded(self._config, "the properties of a test in junit.xml"):
                    self._ending = self._log().node_reporter(report)

    @pytest.hookimpl(specname="pytest_runtest_logreport", trylast=True)
    def pytest_runtest_logreport_forget(self, report: pytest.TestReport) -> None:
        """A test that a crashed worker began and another one ran again is one test, not two.

        A test that ended keeps its case's id, by which `run` writes the properties: all of them would take 5 kB."""
        ending, self._ending = self._ending, None
        if ending:
            _drop_properties(ending.to_xml().find("properties"), keep="case")
        outcome: str = report.outcome
        if outcome == RERUN:
            with guarded(self._config, "a test twice in junit.xml"):
                log = self._log()
                begun = log.node_reporter(report)
                log.node_reporters_ordered.remove(begun)
                for key in [key for key, value in log.node_reporters.items() if value is begun]:
                    del log.node_reporters[key]

    def run(self, entry: RunEntry) -> None:
        """Add the properties; pytest's own fixture for properties of the suite does not work under xdist."""
        if not getattr(self._config.option, "xmlpath", None):
            return
        with guarded(self._config, "no properties of cases in junit.xml"):
            cases, where = {case.id: case for case in entry.cases}, str(entry.settings.get("platform", ""))
            shared: dict[tuple[str, str], ET.Element] = {}
            for node in self._log().node_reporters_ordered:
                case_id = self._cases.get(str(getattr(node, "id", "")), "")
                element = self._finished_element(node)
                if case := cases.get(case_id or _property(element, "case")):
                    _set_properties(element, case_properties(case, where), shared)
        with guarded(self._config, "no suite properties in junit.xml"):
            log = self._log()
            for name, value in run_properties(entry).items():
                log.add_global_property(PREFIX + name, value)

    def _finished_element(self, node: Any) -> ET.Element:
        """The XML of a test. Without this, an interrupted test would have no name and no outcome, which reads as a
        pass."""
        if "properties" in vars(node):
            report = self._begun.get(str(node.id))
            if report is not None and not node.attrs:
                node.record_testreport(report)
            if report is not None and report.when == "setup" and not node.nodes:
                node._add_simple("skipped", "the run ended before this test did")  # noqa: SLF001
            node.finalize()
        element: ET.Element = node.to_xml()
        return element


def _property(element: ET.Element, name: str) -> str:
    entry = element.find(f"./properties/property[@name='{PREFIX}{name}']")
    return "" if entry is None else entry.get("value", "")


def _set_properties(element: ET.Element, values: Mapping[str, str], shared: dict[tuple[str, str], ET.Element]) -> None:
    """Replace our properties by these; what the test recorded itself stays.

    Most values of a case are those of all cases, so that `shared` saves a thousand cases most of their elements.
    """
    properties = element.find("properties")
    if properties is None:
        properties = ET.Element("properties")
        element.insert(0, properties)
    _drop_properties(properties)
    for pair in values.items():
        if pair not in shared:
            shared[pair] = ET.Element("property", name=PREFIX + pair[0], value=pair[1])
        properties.append(shared[pair])


def _drop_properties(properties: ET.Element | None, keep: str = "") -> None:
    """Remove ours, except the one with the name `keep`."""
    if properties is not None:
        kept = [
            each
            for each in properties
            if not (name := each.get("name", "")).startswith(PREFIX) or name == PREFIX + keep
        ]
        properties[:] = kept
