"""What an Allure result tells of a case: its trials as steps at their true times, labels, parameters, links; pure.

A result is a plain dict, as its file has it. Every parameter is excluded from what tells one case from another, so that
the history of a case goes on when a threshold, a place or a version changes.
"""

from __future__ import annotations

import hashlib
import math
from collections.abc import Iterable, Mapping
from typing import Any

from pytest_aisbench.domain.entry import CaseEntry, RunEntry, TrialEntry
from pytest_aisbench.domain.job import Phase
from pytest_aisbench.domain.messages import plain, translated
from pytest_aisbench.domain.threshold import number
from pytest_aisbench.domain.verdict import Ruling, Verdict
from pytest_aisbench.i18n import ENGLISH, Language
from pytest_aisbench.report.text import web, what_to_do
from pytest_aisbench.reporters.lifecycle import Span, spans
from pytest_aisbench.reporters.story import STATUS, Story
from pytest_aisbench.services.transcript import JOB_TIME, job_time

# Our messages begin with the ruling. `[\s\S]` is any character, in Java's and in JavaScript's expressions alike.
CATEGORIES = (
    {"name": "Platform (BROKEN)", "matchedStatuses": ["broken"], "messageRegex": r"BROKEN: [\s\S]*"},
    {"name": "Workload (FAILED)", "matchedStatuses": ["failed"], "messageRegex": r"FAILED: [\s\S]*"},
    {"name": "Noise (INCONCLUSIVE)", "matchedStatuses": ["failed"], "messageRegex": r"INCONCLUSIVE: [\s\S]*"},
)
OWNERS = {Ruling.FAILED: "workload", Ruling.BROKEN: "platform", Ruling.INCONCLUSIVE: "noise"}
BETTER = {"throughput": "higher", "accuracy": "higher", "loss": "lower"}  # of others nobody knows
# Who writes them decides by process and machine; we decide by case, so that they are alike with and without xdist.
_REPLACED = {"parentSuite", "suite", "subSuite", "host", "thread"}


def written(story: Story) -> dict[str, Any]:
    """The result of a test whose own process wrote none: its worker crashed, or the run is an old one."""
    path, _, rest = story.nodeid.partition("::")
    *classes, name = rest.split("::") if rest else [story.nodeid]
    folders, _, file = path.rpartition("/")
    package = ".".join(filter(None, [folders.replace("/", "."), file.rsplit(".", 1)[0]]))
    full = f"{'.'.join([package, *classes])}#{name.partition('[')[0]}"
    suites = {
        "parentSuite": folders.replace("/", "."),
        "suite": file.rsplit(".", 1)[0],
        "subSuite": " > ".join(classes),
    }
    labels = {**suites, "framework": "pytest", "language": "cpython3", "package": package}
    start, stop = story.span(None)
    return {
        "uuid": story.uuid,
        "name": plain(name),
        "fullName": plain(full),
        "titlePath": [part for part in (*path.split("/"), *classes) if part],
        "testCaseId": _md5(full),
        "historyId": _md5(story.nodeid),
        "status": story.status(None),
        "statusDetails": {"message": _first_line(story.text), "trace": story.text} if story.text else {},
        "labels": [{"name": key, "value": plain(value)} for key, value in labels.items() if value],
        "start": _ms(start),
        "stop": _ms(stop),
    }


def told(
    result: Mapping[str, Any], story: Story, case: CaseEntry, run: RunEntry, say: Language = ENGLISH
) -> dict[str, Any]:
    """The result with all that the ledger has of its case; only the attachments are missing."""
    start, stop = story.span(case)
    status = story.status(case)
    ours = [{"name": name, "value": plain(value)} for name, value in labels(case, run) if value]
    kept = [label for label in result.get("labels", ()) if label["name"] not in _REPLACED and label not in ours]
    links = [link for link in result.get("links", ()) if link.get("name") not in {"console", "Tester"}]
    theirs = [step for step in result.get("steps", ()) if not step["name"].startswith("trial ")]
    return {
        **result,
        "testCaseId": case_id_of(story.nodeid),
        "historyId": _md5(story.nodeid),
        "status": status,
        "statusDetails": _details(result.get("statusDetails") or {}, story, case, status),
        "description": result.get("description") or description(case, say),
        "labels": [*kept, *ours],
        "parameters": [{"name": name, "value": value, "excluded": True} for name, value in parameters(case, run)],
        "links": [*links, *({"type": "link", "name": name, "url": url} for name, url in links_of(case, run))],
        "steps": [*(step(case, trial) for trial in case.trials), *theirs],
        "start": _ms(start),
        "stop": _ms(stop),
    }


def description(case: CaseEntry, say: Language) -> str:
    """What is to be done; and why, where the message, which is English for the categories, does not say it."""
    why = "" if say.is_source or case.verdict in {None, Ruling.PASSED} else translated(case.reason, say)
    return "\n\n".join(filter(None, (plain(why), what_to_do(case, say))))


def case_id_of(nodeid: str) -> str:
    """A test at each of its shapes is a case of its own, whatever its parameters are called."""
    return _md5(f"aisbench {nodeid}")


def history_ids(nodeid: str) -> tuple[str, str]:
    """By which the history of a case is found: Allure 2 takes ours, Allure 3 makes one of the test case's."""
    return _md5(nodeid), f"{_md5(case_id_of(nodeid))}.{_md5('')}"


def _details(found: Mapping[str, Any], story: Story, case: CaseEntry, status: str) -> dict[str, Any]:
    """What the categories look at: the verdict, without an exception's name before it."""
    if status == "passed":
        return {}
    if status == "skipped":
        return {"message": _first_line(story.text), "trace": found.get("trace") or story.text}
    if case.verdict is None or case.verdict is Ruling.PASSED:
        return {**found, "message": found.get("message") or _first_line(story.text)}
    verdict = Verdict(case.verdict, case.reason, case.findings)
    return {**found, "message": str(verdict), "trace": found.get("trace") or story.text}


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
        ("owner", OWNERS.get(case.verdict, "") if case.verdict else ""),
        ("verdict", case.verdict.value if case.verdict else ""),
        ("platform", platform),
        ("host", platform),  # the rows of the timeline: jobs run side by side
        ("thread", case.id),
    ]


def parameters(case: CaseEntry, run: RunEntry) -> list[tuple[str, str]]:
    """What was measured first: of a long list the page shows the beginning."""
    facts: dict[str, object] = {}
    for name, metric in case.metrics.items():
        facts[name] = "not measured" if metric.value is None else f"{number(metric.value)} {metric.unit}".strip()
    facts |= {"platform": run.settings.get("platform", ""), "nodes": case.nodes, "devices": case.devices_per_node}
    facts |= {"mode": case.mode, "trials": len(case.trials), "card-hours": case.card_hours}
    traits = case.trials[-1].traits if case.trials else {}
    facts |= {name: value for name, value in traits.items() if name not in facts}
    return [(plain(name), plain(str(value))) for name, value in facts.items()]


def links_of(case: CaseEntry, run: RunEntry) -> list[tuple[str, str]]:
    consoles = [("console", trial.console) for trial in case.trials]
    # One that is labelled, as that of a private local cloud, has ended with its run: `web` wants a bare address.
    testers = [("Tester", str(upload["tester"])) for upload in run.uploads if upload["case"] == case.id]
    return list(dict.fromkeys(link for link in (*consoles, *testers) if web(link[1])))


def step(case: CaseEntry, trial: TrialEntry) -> dict[str, Any]:
    """A trial: what became of it, and each step of its life."""
    is_last = trial is case.trials[-1]
    status = STATUS[case.verdict] if is_last and case.verdict else _outcome(trial)
    life = spans(trial.times, trial.queued_s)
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
    """Of a trial that was followed by another, or never judged."""
    known = {Phase.SUCCEEDED.value: "passed", Phase.FAILED.value: "failed"}
    return known.get(trial.phase or "", "broken")


def _part(trial: TrialEntry, span: Span, status: str, *, last: bool) -> dict[str, Any]:
    failed = span.name == "train" and trial.phase == Phase.FAILED.value
    return {
        "name": "queue and train" if span.name == "watch" else span.name,
        "status": "failed" if failed else status if last else "passed",
        "start": _ms(span.start),
        "stop": _ms(span.stop),
    }


def metrics(run: RunEntry) -> list[dict[str, Any]]:
    """What Allure 3 shows on its page of metrics, with a trend through the runs."""
    return [dict(sample) for case in run.cases for sample in _samples(case, run)]


def _samples(case: CaseEntry, run: RunEntry) -> Iterable[Mapping[str, Any]]:
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


def _first_line(text: str) -> str:
    """Of a traceback, the line that says what was raised."""
    lines = [line for line in text.splitlines() if line.strip()]
    raised = [line[1:].strip() for line in lines if line.startswith("E ")]
    return plain(next(iter((*raised, *lines)), ""))


def _md5(text: str) -> str:
    return hashlib.md5(text.encode("utf-8", "replace"), usedforsecurity=False).hexdigest()


def _ms(seconds: float) -> int:
    return round(seconds * 1000)
