"""The summary that a run prints at its end: failures and what to do, the table of all cases, where the report is."""

from __future__ import annotations

import math
import shutil
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import pytest

from pytest_aisbench.i18n import ENGLISH, Language
from pytest_aisbench.judge.stragglers import stragglers_message
from pytest_aisbench.judge.values import mean
from pytest_aisbench.model.case import Mode
from pytest_aisbench.model.messages import plain, translated
from pytest_aisbench.model.metric import ACCURACY, THROUGHPUT, Curve, Series
from pytest_aisbench.model.results import CaseEntry, RunEntry
from pytest_aisbench.model.verdict import Outcome, Ruling, number
from pytest_aisbench.report.columns import Column, Output, columns_of, common_unit, trained_with_sentence, verdict_text
from pytest_aisbench.report.text import (
    cut,
    display_width,
    exit_meaning,
    fit,
    padded,
    verdict_counts,
    what_to_do,
    worst_first,
    wrap,
)
from pytest_aisbench.stash import language

Line = tuple[str, dict[str, bool]]
NARROWEST = 40
_MOST_NAMES = 10  # of cases in one line
_LONGEST = 30  # characters of a cell that is not the name of the case
MARKUP = {
    Ruling.PASSED: {"green": True},
    Ruling.FAILED: {"red": True},
    Ruling.BROKEN: {"red": True},
    Ruling.INCONCLUSIVE: {"yellow": True},
    None: {"yellow": True},
}


def write_summary(
    terminal: Any,
    config: pytest.Config,
    missing: Mapping[str, str],
    run: tuple[Path, RunEntry] | None = None,
    *,
    skipped: Mapping[str, str] | None = None,
    unrecorded: str = "",
) -> None:
    """Write the summary to pytest's own terminal, which decides about colours."""
    width = shutil.get_terminal_size((80, 24)).columns
    say = language(config)
    terminal.section("aisbench")
    if unrecorded:
        terminal.write_line(f"{say('not recorded')}: {unrecorded}", red=True)
    lines = [*missing_lines(missing, width, say), *skipped_lines(skipped or {}, width, say)]
    if run:
        folder, entry = run
        here = f"{config.invocation_params.dir}/"
        place = str(folder).removeprefix(here)
        page = str(getattr(config.option, "htmlpath", None) or place).removeprefix(here)
        lines_of_run = summary_lines(entry, place, page, width, say)
        lines += [("", {}), *lines_of_run] if lines else lines_of_run
    for line, markup in lines:
        terminal.write_line(line, **markup)


def missing_lines(missing: Mapping[str, str], width: int, say: Language = ENGLISH) -> Iterator[Line]:
    """The required cases that have no verdict, a line each."""
    for case, why in missing.items():
        yield from wrapped(f"{say('missing')}: {plain(case)}: {why}", "  ", max(width, NARROWEST), {"red": True})


def skipped_lines(skipped: Mapping[str, str], width: int, say: Language = ENGLISH) -> Iterator[Line]:
    """The cases that no test judged because it was skipped, and why; those with the same reason in one line."""
    by_reason: dict[str, list[str]] = {}
    for case, why in skipped.items():
        by_reason.setdefault(why.replace(f"{case} ", ""), []).append(case)
    for why, cases in by_reason.items():
        yield from wrapped(
            f"{say('skipped')}: {_listed(cases, say)}: {plain(why)}", "  ", max(width, NARROWEST), {"yellow": True}
        )


def summary_lines(run: RunEntry, folder: str, page: str, width: int, say: Language = ENGLISH) -> list[Line]:
    """Lines with pytest's markup for each, none wider than the terminal."""
    width = max(width, NARROWEST)
    cases = worst_first(run.cases)
    troubles = [*_troubles(cases, folder, width, say), *_notes(cases, width, say)]
    return [
        *([*troubles[1:], ("", {})] if troubles else ()),  # the first line is empty
        *_table(cases, width, say),
        *_nodes(cases),
        *_trained_with(cases, width, say),
        *_end(run, cases, page, width, say),
    ]


def _table(cases: Sequence[CaseEntry], width: int, say: Language) -> Iterator[Line]:
    """The table of all cases. If it is too wide, long names are cut first, then verdicts lose their meaning, then the
    unit that all cases share moves into a line of its own; numbers stay to the last."""
    columns, unit = columns_of(Output.TERMINAL), plain(common_unit(cases), _LONGEST)
    headings = [column.inline_head(say) for column in columns]
    cuts = sorted((turn, index, least) for index, column in enumerate(columns) for turn, least in column.narrow)
    for attempt in range(3 if unit else 2):
        rows = [_cells(case, columns, say, attempt) for case in cases]
        widths = [max(map(display_width, cells)) for cells in zip(headings, *rows, strict=True)]
        for turn, index, least in cuts:
            if turn == 0:
                _narrow(widths, width, index, least)
        if _excess(widths, width) <= 0:
            break
    for _turn, index, least in cuts:
        figures = [display_width(row[index].partition(" ")[0]) + len(" …") for row in rows]
        _narrow(widths, width, index, least or max(display_width(headings[index]), *figures, 0))
    yield fit(_line(headings, widths), width), {"bold": True}
    for case, row in zip(cases, rows, strict=True):
        yield fit(_line(row, widths), width), MARKUP[case.verdict]
    if attempt == 2:
        yield from wrapped(say("in unit", unit=unit), "  ", width)


def _cells(case: CaseEntry, columns: Sequence[Column], say: Language, attempt: int) -> list[str]:
    return [case.id, *(plain(column.cell(case, say, attempt), _LONGEST) for column in columns[1:])]


def _narrow(widths: list[int], width: int, index: int, least: int) -> None:
    widths[index] -= min(max(_excess(widths, width), 0), max(widths[index] - least, 0))


def _excess(widths: Sequence[int], width: int) -> int:
    return sum(widths) + 2 * (len(widths) - 1) - width


def _line(cells: Sequence[str], widths: Sequence[int]) -> str:
    name, *others = zip(cells, widths, strict=True)
    padded_cells = [padded(fit(*name), name[1]), *(padded(cut(cell, size), size) for cell, size in others)]
    return "  ".join(padded_cells).rstrip()


def _nodes(cases: Sequence[CaseEntry]) -> Iterator[Line]:
    """The result of each node and their mean, in the format of ais-bench-stubs, because scripts look for it."""
    for case in cases:
        if case.mode == Mode.SINGLE_SERVER.value and case.trials:
            yield "", {}
            yield f"{case.id}:", {}
            newest = case.trials[-1]
            for metric, by_server in ((THROUGHPUT, newest.throughput_by_server), (ACCURACY, newest.accuracy_by_server)):
                values = [value for value in by_server if value is not None]
                average = mean(values) if values and len(values) == len(by_server) == case.nodes else None
                yield f"report >> {metric}_list:{list(by_server)} average:{average}", {}


def _trained_with(cases: Sequence[CaseEntry], width: int, say: Language) -> Iterator[Line]:
    """What really trained: cases that trained with the same in one line. A miniature says nothing of a framework."""
    by_software: dict[str, list[str]] = {}
    for case in cases:
        if sentence := trained_with_sentence(case, say):
            by_software.setdefault(sentence, []).append(case.id)
    if by_software:
        yield "", {}
    for sentence, names in by_software.items():
        line = say("cases trained with", cases=_listed(names, say), software=plain(sentence))
        yield from wrapped(line, "  ", width)


def _listed(names: Sequence[str], say: Language) -> str:
    more = f" {say('more', count=len(names) - _MOST_NAMES)}" if len(names) > _MOST_NAMES else ""
    return ", ".join(map(plain, names[:_MOST_NAMES])) + more


def _troubles(cases: Sequence[CaseEntry], folder: str, width: int, say: Language) -> Iterator[Line]:
    size = max(display_width(say.word(outcome.value)) for outcome in Outcome)
    indent = " " * (size + 3)

    def labelled(label: str, text: str) -> str:
        return f"  {padded(label, size)} {text}"

    for case in cases:
        if case.verdict is Ruling.PASSED:
            continue
        yield "", {}
        why = plain(translated(case.reason, say))
        is_repeated = case.verdict is None and "not judged" in case.reason
        yield from wrapped(
            f"{case.id} {why if is_repeated else f'{verdict_text(case, say)}: {why}'}",
            "  ",
            width,
            MARKUP[case.verdict],
        )
        for finding in case.findings:
            if finding.outcome is not Outcome.MET and finding.text != case.reason:
                line = labelled(say.word(finding.outcome.value), plain(translated(finding.text, say)))
                yield from wrapped(line, indent, width)
        trial = case.trials[-1] if case.trials else None
        if trial and trial.job_id:
            job = f"{plain(trial.job_id)}, {plain(trial.platform_phase or '-')}"
            yield from wrapped(labelled(say("job"), job), indent, width)
        if trial and trial.logs:
            quoted = [name for name in trial.logs if name in case.reason]
            log = next(iter([*quoted, *(name for name in trial.logs if "worker" in name), *trial.logs]))
            yield (
                labelled(say("log"), f"{folder.rstrip('/')}/{plain(log)}"),
                {},
            )  # not wrapped, so that people can copy it
        if todo := what_to_do(case, say):
            yield from wrapped(labelled(say.inline("what to do"), todo), indent, width)


def _notes(cases: Sequence[CaseEntry], width: int, say: Language) -> Iterator[Line]:
    kinds = {(case.id, text): "warning" for case in cases if case.background for text in case.background.warnings}
    for case in cases:
        for note in (note for trial in case.trials for note in trial.notes):
            kinds.setdefault((case.id, note), "note")  # a warning is also a note of its trial
        slow = stragglers_message(case.trials[-1].stragglers) if case.trials else ""
        is_above = case.verdict is not Ruling.PASSED and slow in case.reason
        if slow and not is_above:
            kinds[case.id, slow] = "note"
    if kinds:
        yield "", {}
    for (case_id, text), kind in kinds.items():
        yield from wrapped(
            f"{say.inline(kind)}: {case_id}: {plain(translated(text, say))}", "      ", width, {"yellow": True}
        )


def wrapped(text: str, indent: str, width: int, markup: dict[str, bool] | None = None) -> Iterator[Line]:
    for line in wrap(text, indent, width):
        yield line, markup or {}


def _end(run: RunEntry, cases: Sequence[CaseEntry], page: str, width: int, say: Language) -> Iterator[Line]:
    words = {verdict: say.catalogue.inline(say.meaning(verdict.value)) for verdict in Ruling}
    counts = verdict_counts(cases).items()
    verdicts = ", ".join(f"{count} {words[verdict] if verdict else say('not judged')}" for verdict, count in counts)
    hours = say("card-hours", count=number(sum(case.card_hours for case in run.cases)))
    yield "", {}
    yield from wrapped(f"{say('cases', count=len(run.cases))}: {verdicts or say('none')}; {hours}", "  ", width)
    if run.exit_code is not None and any(case.verdict is not Ruling.PASSED for case in run.cases):
        yield from wrapped(f"{say.inline('exit code')} {run.exit_code}: {exit_meaning(run, say)}", "  ", width)
    yield from _uploads(run, width)
    yield f"{say('report')}: {page}", {}  # not wrapped, so that people can copy it


def _uploads(run: RunEntry, width: int) -> Iterator[Line]:
    """Which Tester has the results, and what to do about those that it has not."""
    for tester in dict.fromkeys(upload["tester"] for upload in run.uploads):
        bound = [upload for upload in run.uploads if upload["tester"] == tester]
        counts = {
            state: sum(upload["state"] == state for upload in bound) for state in ("delivered", "spooled", "dead")
        }
        states = ", ".join(f"{count} {state}" for state, count in counts.items() if count)
        todo = ": aisbench flush" if counts["spooled"] else ": aisbench flush --dead" if counts["dead"] else ""
        markup = {"yellow": True} if todo else {}
        yield from wrapped(f"Tester {tester}: {states}{todo}", "  ", width, markup)
        for why in dict.fromkeys(upload["why"] for upload in bound if upload["why"]):
            yield from wrapped(f"  {plain(why)}", "  ", width, markup)


# Curves as lines of text: for `aisbench jobs` and for the bars

_LEVELS = "▁▂▃▄▅▆▇█"
_WIDTH = 60


def curve_lines(curve: Curve) -> list[str]:
    """Loss, speed, and the pace in words; empty if the log has none."""
    lines = []
    if curve.loss.points:
        lines.append(f"loss   {_curve_row(curve.loss)}")
    if curve.speed.points:
        lines.append(f"speed  {_curve_row(curve.speed)} {curve.unit}")
    if pace := curve.pace:
        lines.append(f"pace   {pace}")
    return lines


def _curve_row(series: Series) -> str:
    first, last = series.points[0], series.points[-1]
    where = f"epoch {last.epoch} step {last.step}" if last.epoch else f"step {last.step}"
    return f"{sparkline(series.values)}  {number(first.value)} → {number(last.value)} at {where}"


def sparkline(values: Sequence[float], width: int = _WIDTH) -> str:
    """One character per value, or per mean of several if there are more values than `width`."""
    size = math.ceil(len(values) / width)
    means = [sum(part) / len(part) for at in range(0, len(values), size) if (part := values[at : at + size])]
    low, high = min(means), max(means)
    span = high - low
    if not math.isfinite(span) or span <= 0:
        return _LEVELS[0] * len(means)
    return "".join(_LEVELS[min(7, int(8 * (mean - low) / span))] for mean in means)
