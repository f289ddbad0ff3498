"""`summary.md`: the verdicts of a run where a CI server shows Markdown, what is wrong before what is right."""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence

from pytest_aisbench.domain.entry import CaseEntry, RunEntry
from pytest_aisbench.domain.messages import plain, translated
from pytest_aisbench.domain.threshold import number
from pytest_aisbench.domain.verdict import Outcome, Ruling
from pytest_aisbench.i18n import ENGLISH, Language
from pytest_aisbench.report.columns import Column, Output, shown_in
from pytest_aisbench.report.text import web, what_to_do, worst_first
from pytest_aisbench.reporters.facts import missing

MOST = 900_000  # bytes; GitHub takes 1 MiB from a step, and nothing of what is longer
_MOST_TROUBLES = 50
_LONGEST = 300  # characters of a reason or a log line
_MEANING = re.compile(r"([\\`*_\[\]|~#$])")
FILES = ("report.html", "junit.xml", "results.json", "metrics.txt", "metrics.csv")


def text(run: RunEntry, say: Language = ENGLISH, most: int = MOST) -> str:
    """No longer than `most` bytes: the cases that do not fit are counted."""
    cases = worst_first(run.cases)
    head = [f"## {_title(run, say)}", "", _facts(run, say), ""]
    head += [f"- **{escaped(case)}**: {say('required')}" for case in missing(run)[:_MOST_TROUBLES]]
    bad = [case for case in cases if case.verdict is not Ruling.PASSED or _warnings(case)]
    for case in bad[:_MOST_TROUBLES]:
        head += _trouble(case, say)
    if len(bad) > _MOST_TROUBLES:
        head.append(f"- {say('more cases in results', count=len(bad) - _MOST_TROUBLES)}")
    columns = shown_in(Output.MARKDOWN)
    headings = " | ".join(column.inline_head(say) for column in columns)
    head += ["", f"| {headings} |", f"|{'---|' * len(columns)}"]
    tail = ["", *_uploads(run, say), f"{say('files beside')}: {', '.join(f'[{name}]({name})' for name in FILES)}", ""]
    room = most - sum(len(line.encode()) + 1 for line in (*head, *tail)) - 200
    rows = [*_fitting((_row(case, columns, say) for case in cases), room)]
    if len(rows) < len(cases):
        tail.insert(0, f"\n{say('more cases in results', count=len(cases) - len(rows))}")
    return "\n".join([*head, *rows, *tail])


def escaped(text: str, limit: int = _LONGEST) -> str:
    """The text of a job, a platform or a user as plain text: no markup, no HTML, no second cell."""
    escaped_html = plain(text, limit).replace("&", "&amp;").replace("<", "&lt;").replace(">", "&gt;")
    return _MEANING.sub(r"\\\1", escaped_html)


def _title(run: RunEntry, say: Language) -> str:
    if run.exit_code is None:
        return say("summary unfinished")
    return say("summary title", code=run.exit_code, meaning=say.exit_code(run.exit_code))


def _facts(run: RunEntry, say: Language) -> str:
    counts: dict[str, int] = {}
    for case in worst_first(run.cases):
        word = case.verdict.value if case.verdict else say("not judged")
        counts[word] = counts.get(word, 0) + 1
    verdicts = ", ".join(f"{count} {word}" for word, count in counts.items())
    cost = number(sum(case.card_hours for case in run.cases))
    where = escaped(str(run.settings.get("platform", "-")))
    cases = say("cases", count=len(run.cases)) + (f": {verdicts}" if verdicts else "")
    return (
        f"{say.inline('run')} `{plain(run.run)}` {say('on platform')} {where}; {cases}; {say('card-hours', count=cost)}"
    )


def _trouble(case: CaseEntry, say: Language) -> Iterator[str]:
    verdict = say.word(case.verdict.value) if case.verdict else say("not judged")
    yield f"- **{escaped(case.id)}** {verdict}: {escaped(translated(case.reason, say))}"
    for finding in case.findings:
        if finding.outcome not in {Outcome.MET, Outcome.WAIVED} and finding.text != case.reason:
            yield f"  - {say.word(finding.outcome.value)}: {escaped(translated(finding.text, say))}"
    yield from (f"  - {say.inline('warning')}: {escaped(translated(warning, say))}" for warning in _warnings(case))
    if case.verdict is Ruling.PASSED:
        return
    if case.trials:
        newest = case.trials[-1]
        if newest.job_id:
            console = f", [{say('console')}](<{url}>)" if (url := web(newest.console)) else ""
            yield f"  - {say('job')} {escaped(newest.job_id)}, {escaped(newest.platform_phase or '-')}{console}"
        for log in [name for name in newest.logs if "worker" in name][:1]:
            yield f"  - {say('log')} {escaped(log)}"
        notes = [note for note in newest.notes if note not in _warnings(case)]  # a warning is a note of its trial too
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
