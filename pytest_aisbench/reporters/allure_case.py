"""What an Allure result tells of a case: its trials as steps at their true times, labels, parameters, links; pure.

A result is a plain dict, as its file has it. Every parameter is excluded from what tells one case from another, so that
the history of a case goes on when a threshold, a place or a version changes.
"""

from __future__ import annotations

import hashlib
import itertools
from collections.abc import Iterable, Mapping
from typing import Any
from urllib.parse import urlsplit

from pytest_aisbench.domain.entry import CaseEntry, RunEntry, TrialEntry
from pytest_aisbench.domain.job import Phase
from pytest_aisbench.domain.threshold import number
from pytest_aisbench.domain.trial import Step
from pytest_aisbench.domain.verdict import Ruling, Verdict
from pytest_aisbench.reporters.story import STATUS, Story
from pytest_aisbench.reporters.text import plain, what_to_do

# Our messages begin with the ruling. `[\s\S]` is any character, in Java's and in JavaScript's expressions alike.
CATEGORIES = (
    {"name": "Platform (BROKEN)", "matchedStatuses": ["broken"], "messageRegex": r"BROKEN: [\s\S]*"},
    {"name": "Workload (FAILED)", "matchedStatuses": ["failed"], "messageRegex": r"FAILED: [\s\S]*"},
    {"name": "Noise (INCONCLUSIVE)", "matchedStatuses": ["failed"], "messageRegex": r"INCONCLUSIVE: [\s\S]*"},
)
OWNERS = {Ruling.FAILED: "workload", Ruling.BROKEN: "platform", Ruling.INCONCLUSIVE: "noise"}
# Who writes them decides by process and machine; we decide by case, so that they are alike with and without xdist.
_OURS = {"parentSuite", "suite", "subSuite", "host", "thread", "epic", "feature", "story", "owner"}
_STEPS = [step.name.lower() for step in Step]


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


def told(result: Mapping[str, Any], story: Story, case: CaseEntry, run: RunEntry) -> dict[str, Any]:
    """The result with all that the ledger has of its case; only the attachments are missing."""
    start, stop = story.span(case)
    status = story.status(case)
    kept = [label for label in result.get("labels", ()) if label["name"] not in _OURS]
    links = [link for link in result.get("links", ()) if link.get("name") not in {"console", "Tester"}]
    theirs = [step for step in result.get("steps", ()) if not step["name"].startswith("trial ")]
    return {
        **result,
        "testCaseId": case_id_of(story.nodeid),
        "historyId": _md5(story.nodeid),
        "status": status,
        "statusDetails": _details(result.get("statusDetails") or {}, story, case, status),
        "description": result.get("description") or what_to_do(case),
        "labels": [*kept, *({"name": name, "value": plain(value)} for name, value in labels(case, run) if value)],
        "parameters": [{"name": name, "value": value, "excluded": True} for name, value in parameters(case, run)],
        "links": [*links, *({"type": "link", "name": name, "url": url} for name, url in links_of(case, run))],
        "steps": [*(step(case, trial) for trial in case.trials), *theirs],
        "start": _ms(start),
        "stop": _ms(stop),
    }


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
    facts: dict[str, object] = {"platform": run.settings.get("platform", "")}
    facts |= {"nodes": case.nodes, "devices per node": case.devices_per_node, "mode": case.mode}
    facts |= {"trials": len(case.trials), "card-hours": case.card_hours}
    for name, metric in case.metrics.items():
        facts[name] = "not measured" if metric.value is None else f"{number(metric.value)} {metric.unit}".strip()
    if case.trials:
        facts = {**case.trials[-1].traits, **facts}
    return [(plain(name), plain(str(value))) for name, value in facts.items()]


def links_of(case: CaseEntry, run: RunEntry) -> list[tuple[str, str]]:
    consoles = [("console", trial.console) for trial in case.trials]
    # One that is labelled, as that of a private local cloud, has ended with its run: `_is_web` wants a bare address.
    testers = [("Tester", str(upload["tester"])) for upload in run.uploads if upload["case"] == case.id]
    return list(dict.fromkeys(link for link in (*consoles, *testers) if _is_web(link[1])))


def _is_web(url: str) -> bool:
    """Nothing that a page would execute, and no password of anybody's."""
    try:
        parts = urlsplit(url)
    except ValueError:
        return False
    return parts.scheme in {"http", "https"} and bool(parts.hostname) and parts.username is None and " " not in url


def step(case: CaseEntry, trial: TrialEntry) -> dict[str, Any]:
    """A trial: what became of it, and each step of its life."""
    is_last = trial is case.trials[-1]
    status = STATUS[case.verdict] if is_last and case.verdict else _outcome(trial)
    spans = _spans(trial)
    times = list(trial.times.values())
    job = f": job {plain(trial.job_id, 80)} {plain(trial.platform_phase or '', 40)}" if trial.job_id else ""
    return {
        "name": f"trial {trial.trial}{job}".rstrip(),
        "status": status,
        "start": _ms(min(times, default=0.0)),
        "stop": _ms(max(times, default=0.0)),
        "steps": [
            {
                "name": name,
                "status": _part(trial, name, status, last=at == len(spans) - 1),
                "start": _ms(a),
                "stop": _ms(b),
            }
            for at, (name, a, b) in enumerate(spans)
        ],
    }


def _outcome(trial: TrialEntry) -> str:
    """Of a trial that was followed by another, or never judged."""
    known = {Phase.SUCCEEDED.value: "passed", Phase.FAILED.value: "failed"}
    return known.get(trial.phase or "", "broken")


def _part(trial: TrialEntry, name: str, status: str, *, last: bool) -> str:
    if name == "run" and trial.phase == Phase.FAILED.value:
        return "failed"
    return status if last else "passed"


def _spans(trial: TrialEntry) -> list[tuple[str, float, float]]:
    """Each step from when it began until the next did; the watch is told as the queue and the run."""
    times = sorted((at, _STEPS.index(name)) for name, at in trial.times.items() if name in _STEPS)
    spans: list[tuple[str, float, float]] = []
    for (start, number_), (stop, _) in itertools.pairwise(times):
        name = _STEPS[number_]
        if name != "watch":
            spans.append((name, start, stop))
        elif trial.queued_s is None:
            spans.append(("queue and run", start, stop))
        else:
            middle = min(max(start + trial.queued_s, start), stop)
            spans += [("queue", start, middle), ("run", middle, stop)]
    return spans


def metrics(run: RunEntry) -> list[dict[str, Any]]:
    """What Allure 3 shows on its page of metrics, with a trend through the runs."""
    return [dict(sample) for case in run.cases for sample in _samples(case, run)]


def _samples(case: CaseEntry, run: RunEntry) -> Iterable[Mapping[str, Any]]:
    times = [at for trial in case.trials for at in trial.times.values()] or [0.0]
    place = {
        "group": case.workload,
        "groupTitle": plain(case.workload),
        "start": _ms(min(times)),
        "stop": _ms(max(times)),
    }
    measured = [(name, metric.value, metric.unit, _better(name)) for name, metric in case.metrics.items()]
    for name, value, unit, better in (*measured, ("card_hours", case.card_hours, "card-hours", "lower")):
        if value is not None:
            key = f"{case.id}.{name}"
            title = f"{case.id} {name.replace('_', ' ')}"
            yield {
                "id": f"{run.run}.{key}",
                "key": key,
                "value": value,
                "title": title,
                "unit": plain(unit),
                **place,
            } | ({"better": better} if better else {})


def _better(metric: str) -> str:
    """Of a metric that a suite made up nobody knows."""
    return {"throughput": "higher", "accuracy": "higher", "loss": "lower"}.get(metric, "")


def _first_line(text: str) -> str:
    """Of a traceback, the line that says what was raised."""
    lines = [line for line in text.splitlines() if line.strip()]
    raised = [line[1:].strip() for line in lines if line.startswith("E ")]
    return plain(next(iter((*raised, *lines)), ""))


def _md5(text: str) -> str:
    return hashlib.md5(text.encode("utf-8", "replace"), usedforsecurity=False).hexdigest()


def _ms(seconds: float) -> int:
    return round(seconds * 1000)
