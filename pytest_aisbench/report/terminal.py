"""What a run prints at its end: a block for each failure, the table of cases, where the report is, the exit code."""

from __future__ import annotations

import io
import math
import shutil
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal, NamedTuple

import pytest
from _pytest._code.code import ReprFileLocation, TerminalRepr
from rich.console import Console
from rich.table import Table
from rich.text import Text

from pytest_aisbench.i18n import ENGLISH, Language
from pytest_aisbench.judge.exit_code import PASSED
from pytest_aisbench.judge.noise_test import CALCULATION
from pytest_aisbench.judge.stragglers import stragglers_message
from pytest_aisbench.judge.values import mean
from pytest_aisbench.model.case import Mode
from pytest_aisbench.model.messages import begins_with, plain, translated, without
from pytest_aisbench.model.metric import ACCURACY, THROUGHPUT, Curve, Series
from pytest_aisbench.model.results import PRIVATE, CaseEntry, RunEntry, TrialEntry
from pytest_aisbench.model.verdict import Outcome, Ruling, number
from pytest_aisbench.report.columns import (
    ALWAYS,
    NOT_MEASURED,
    Output,
    columns_of,
    common_unit,
    trained_with_sentence,
    verdict_text,
)
from pytest_aisbench.report.host_plugins import case_id_of_report
from pytest_aisbench.report.text import (
    display_width,
    exit_meaning,
    padded,
    verdict_counts,
    what_to_do,
    worst_first,
    wrap,
)
from pytest_aisbench.secret import mask
from pytest_aisbench.stash import language

if TYPE_CHECKING:
    from typing_extensions import Self

Line = tuple[str, dict[str, bool]]
NARROWEST = 40
_MOST_NAMES = 10  # of cases in one line
_LONGEST = 30  # characters of a unit, which may be a stranger's
_LONGEST_CELL = 80
_GAP = 2  # columns between those of a table, and behind the last
_MOST_FINDINGS = 3  # of a failure, besides its reason
_LEAST_NAME = 8  # columns of the name of a case, where the terminal is too narrow for it
_LEAST_WRAPPED = 16  # columns of a cell that may have several lines
_CONSOLE = Console(file=io.StringIO(), width=NARROWEST, color_system=None, highlight=False, emoji=False, markup=False)
_STYLES = {Ruling.PASSED: "green", Ruling.INCONCLUSIVE: "yellow", None: "yellow"}
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
        page = _relative(getattr(config.option, "htmlpath", None) or folder, config)
        reported = [*terminal.stats.get("failed", ()), *terminal.stats.get("error", ())]
        blocks = [each for each in reported if isinstance(each.longrepr, Failure) and config.option.tbstyle != "no"]
        printed = {str(case_id_of_report(report)) for report in blocks}
        lines_of_run = summary_lines(entry, page, width, say, printed=printed, verbose=config.get_verbosity() > 0)
        lines += [("", {}), *lines_of_run] if lines else lines_of_run
    for line, markup in lines:
        terminal.write_line(line, **markup)


def write_exit_code(config: pytest.Config, code: int) -> None:
    """Write what a code other than 0 means, as the last line of all."""
    terminal: Any = config.pluginmanager.get_plugin("terminalreporter")
    if terminal and code:
        say = language(config)
        terminal.write_line(say("exit code means", code=code, meaning=say.exit_code(code)), red=True)
        terminal.flush()


# Failures


class _Row(NamedTuple):
    """A line below the reason of a failure."""

    label: str  # empty if it continues the row above
    text: str
    wraps: bool = True  # False for what people copy


class Failure(TerminalRepr):
    """The block that pytest prints of a case that did not pass: its reason, lines of its log, where to read on.

    In a file its lines are as long as they are; on a terminal they are wrapped: `indents` has the width of the label of
    each line that may be.
    """

    def __init__(self, lines: Sequence[str], place: tuple[str, int], indents: Mapping[int, int]) -> None:
        self._lines, self._indents = [mask(line) for line in lines], indents
        self.reprcrash = ReprFileLocation(*place, self._lines[0])  # pytest's list of failures and JUnit quote it

    @classmethod
    def of(cls, case: CaseEntry, folder: str, place: tuple[str, int], say: Language, *, verbose: bool) -> Self:
        rows = list(_failure_rows(case, folder, say, verbose=verbose))
        size = max((display_width(row.label) for row in rows), default=0)
        reason = say("label", label=verdict_text(case, say), text=_in_words(case.reason, say))
        lines = [reason, *(f"  {padded(row.label, size)} {row.text}".rstrip() for row in rows)]
        return cls(lines, place, {0: 2, **{index: size + 3 for index, row in enumerate(rows, 1) if row.wraps}})

    def __str__(self) -> str:
        return "\n".join(self._lines)

    def toterminal(self, tw: Any) -> None:
        is_file = isinstance(getattr(tw, "_file", None), io.StringIO)  # `longreprtext`, which is for files
        for index, text in enumerate(self._lines):
            indent = None if is_file else self._indents.get(index)
            for line in [text] if indent is None else wrap(text, " " * indent, tw.fullwidth):
                tw.line(line, red=not index)


def failure_of(entry: CaseEntry, folder: Path, report: pytest.TestReport, config: pytest.Config) -> Failure:
    """The block for a test that failed by its case's verdict; with -v it has all findings, events and last lines."""
    file, line, _ = report.location
    place, verbose = (file, (line or 0) + 1), config.get_verbosity() > 0
    return Failure.of(entry, _relative(folder, config), place, language(config), verbose=verbose)


def _relative(folder: Path | str, config: pytest.Config) -> str:
    """The folder as a person names it in the one that pytest was started in."""
    return str(folder).removeprefix(f"{config.invocation_params.dir}/")


def _failure_rows(case: CaseEntry, folder: str, say: Language, *, verbose: bool) -> Iterator[_Row]:
    trial = case.trials[-1] if case.trials else None
    if trial:
        yield from _quoted_lines(trial, say)
    yield from _other_findings(case, say, verbose=verbose)
    if trial and verbose:
        yield from (_Row(say("event"), plain(event)) for event in trial.events)
        yield from (_Row(say("log"), plain(line), wraps=False) for line in trial.last_lines)
    if trial and trial.job_id:
        yield _Row(say("job"), f"{plain(trial.job_id)} ({plain(trial.platform_phase or '-')})", wraps=False)
    if trial and (log := _log_to_read(case, trial)):
        yield _Row(say("read on"), f"{folder.rstrip('/')}/{plain(log)}", wraps=False)
    if todo := what_to_do(case, say):
        yield _Row(say.inline("what to do"), todo)


def _quoted_lines(trial: TrialEntry, say: Language) -> Iterator[_Row]:
    """The lines of the log that matter, after the rank that printed them; events of the platform if there is no log."""
    excerpt = trial.excerpt
    if excerpt is None:
        if not trial.logs:
            yield from (
                _Row("" if number else say("event"), plain(text)) for number, text in enumerate(trial.events[-3:])
            )
        return
    if excerpt.rank is not None:
        label = say("rank n", first=excerpt.rank)
    else:
        label = say("log") if excerpt.node is None else say("node n", node=excerpt.node)
    lines = map(plain, excerpt.lines)
    yield _Row(label, next(lines, say("printed nothing")), wraps=False)
    yield from (_Row("", line, wraps=False) for line in lines)


def _other_findings(case: CaseEntry, say: Language, *, verbose: bool) -> Iterator[_Row]:
    """What else was missed or not measured; all findings, with their arithmetic, where more is asked for."""
    if verbose:
        yield from (_Row(say.word(each.outcome.value), plain(translated(each.text, say))) for each in case.findings)
        return
    reason = without(case.reason, CALCULATION)
    others = [
        (each, text)
        for each in case.findings
        if each.outcome in {Outcome.MISSED, Outcome.UNMEASURED} and (text := without(each.text, CALCULATION)) != reason
    ]
    for finding, text in others[:_MOST_FINDINGS]:
        yield _Row(say.word(finding.outcome.value), plain(translated(text, say)))
    if len(others) > _MOST_FINDINGS:
        yield _Row("", say("more findings", count=len(others) - _MOST_FINDINGS))


def _log_to_read(case: CaseEntry, trial: TrialEntry) -> str:
    """The log that the lines are from, else the one that the reason names, else the first worker's."""
    if trial.excerpt:
        return trial.excerpt.log
    named = [name for name in trial.logs if name in case.reason]
    return next(iter([*named, *(name for name in trial.logs if "worker" in name), *trial.logs]), "")


def _in_words(text: str, say: Language) -> str:
    return plain(translated(without(text, CALCULATION), say))


# The summary


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


def summary_lines(
    run: RunEntry,
    page: str,
    width: int,
    say: Language = ENGLISH,
    *,
    printed: Collection[str] = (),
    verbose: bool = False,
) -> list[Line]:
    """Lines with pytest's markup for each, none wider than the terminal. `printed`: cases whose `Failure` pytest has
    printed above."""
    width = max(width, NARROWEST)
    cases = worst_first(run.cases)
    above = [
        *_troubles([case for case in cases if case.id not in printed], width, say),
        *_notes(cases, width, say, verbose=verbose),
        *(_passed_in_detail(cases, width, say) if verbose else ()),
    ]
    return [
        *above,
        *([("", {})] if above else ()),
        *(_case_table(cases, width, say) if cases else ()),
        *_nodes(cases),
        *_trained_with(cases, width, say),
        *_end(run, cases, page, width, say),
    ]


def _case_table(cases: Sequence[CaseEntry], width: int, say: Language) -> Iterator[Line]:
    """The table of all cases, without columns that are empty. If it is too wide, verdicts lose their meaning, then the
    unit that all cases share moves into a line of its own, then columns are left out; figures are never cut."""
    unit = plain(common_unit(cases), _LONGEST)
    filled = [
        column
        for column in columns_of(Output.TERMINAL)
        if any(column.cell(case, say) not in {"", NOT_MEASURED} for case in cases)
    ]
    for attempt in range(max((column.attempts for column in filled if column.attempts < ALWAYS), default=0) + 1):
        table, briefness = new_table(), attempt if unit else min(attempt, 1)
        texts = [
            [plain(column.cell(case, say, briefness), _LONGEST_CELL) for case in cases]
            for column in filled
            if attempt < column.attempts
        ]
        for column, cells in zip((column for column in filled if attempt < column.attempts), texts, strict=True):
            add_column(table, column.inline_head(say), cells, wraps=column.wraps)
        for case, *row in zip(cases, *texts, strict=True):
            table.add_row(*map(Text, row), style=_STYLES.get(case.verdict, "red"))
        if narrowest(table) <= width:
            break
    else:
        table.columns[0].no_wrap, table.columns[0].min_width = False, _LEAST_NAME
    yield from table_lines(table, width)
    if briefness >= 2:
        yield from wrapped(say("in unit", unit=unit), "  ", width)


def new_table() -> Table:
    """A table of rich without lines, for a summary."""
    return Table(box=None, pad_edge=False, padding=(0, _GAP, 0, 0), header_style="bold", show_edge=False)


def add_column(table: Table, heading: str, cells: Iterable[str], *, wraps: bool = False, right: bool = False) -> None:
    """Add a column. Only cells that may wrap have several lines; where the table is too wide, all must."""
    widest = max(map(display_width, (heading, *cells)))
    least = min(widest, _LEAST_WRAPPED) if wraps else widest
    justify: Literal["right", "left"] = "right" if right else "left"
    table.add_column(heading, no_wrap=not wraps, min_width=least, justify=justify, overflow="fold")


def narrowest(table: Table) -> int:
    """How many columns of a terminal the table takes at least, if only cells that may wrap do so."""
    return sum((column.min_width or 0) + _GAP for column in table.columns)


def table_lines(table: Table, width: int) -> Iterator[Line]:
    """The table as lines with pytest's markup: pytest's own terminal decides about colours."""
    for segments in _CONSOLE.render_lines(table, _CONSOLE.options.update(width=width), pad=False):
        style = segments[0].style if segments else None
        markup = (
            {str(style.color.name): True} if style and style.color else {"bold": True} if style and style.bold else {}
        )
        yield "".join(segment.text for segment in segments).rstrip(), markup


def _troubles(cases: Sequence[CaseEntry], width: int, say: Language) -> Iterator[Line]:
    """A line for each case that did not pass, and whose `Failure` pytest has not printed."""
    for case in cases:
        if case.verdict is Ruling.PASSED:
            continue
        why = _in_words(case.reason, say)
        is_repeated = case.verdict is None and "not judged" in case.reason
        text = why if is_repeated else say("label", label=verdict_text(case, say), text=why)
        yield from wrapped(f"{plain(case.id)} {text}", "  ", width, MARKUP[case.verdict])
        if todo := what_to_do(case, say):
            yield from wrapped(f"  {say.inline('what to do')} {todo}", "    ", width)


def _notes(cases: Sequence[CaseEntry], width: int, say: Language, *, verbose: bool) -> Iterator[Line]:
    kinds = {(case.id, text): "warning" for case in cases if case.background for text in case.background.warnings}
    for case in cases:
        for note in (note for trial in case.trials for note in trial.notes):
            if verbose or not begins_with(note, "again"):  # noise asked for it, and the reason counts the trials
                kinds.setdefault((case.id, note), "note")  # a warning is also a note of its trial
        slow = stragglers_message(case.trials[-1].stragglers) if case.trials else ""
        is_above = case.verdict is not Ruling.PASSED and slow in case.reason
        if slow and not is_above:
            kinds[case.id, slow] = "note"
    for (case_id, text), kind in kinds.items():
        words = plain(translated(text, say)) if verbose else _in_words(text, say)
        yield from wrapped(
            say("label", label=say.inline(kind), text=say("label", label=plain(case_id), text=words)),
            "      ",
            width,
            {"yellow": True},
        )


def _passed_in_detail(cases: Sequence[CaseEntry], width: int, say: Language) -> Iterator[Line]:
    """The findings of the cases that passed, with their arithmetic."""
    for case in cases:
        for finding in case.findings if case.verdict is Ruling.PASSED else ():
            words = plain(translated(finding.text, say))
            yield from wrapped(
                say("label", label=f"{plain(case.id)} {say.word(finding.outcome.value)}", text=words), "  ", width
            )


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


def wrapped(text: str, indent: str, width: int, markup: dict[str, bool] | None = None) -> Iterator[Line]:
    for line in wrap(text, indent, width):
        yield line, markup or {}


def _end(run: RunEntry, cases: Sequence[CaseEntry], page: str, width: int, say: Language) -> Iterator[Line]:
    words = {verdict: say.catalogue.inline(say.meaning(verdict.value)) for verdict in Ruling}
    counts = [
        say("counted", count=count, what=words[verdict] if verdict else say("not judged"))
        for verdict, count in verdict_counts(cases).items()
    ]
    hours = say("card-hours", count=number(sum(case.card_hours for case in run.cases)))
    verdicts = say("comma").join(counts) or say("none")
    yield "", {}
    yield from wrapped(
        say("totals", cases=say("cases", count=len(run.cases)), verdicts=verdicts, hours=hours), "  ", width
    )
    if run.exit_code == PASSED and any(case.verdict is None for case in run.cases):
        yield from wrapped(say("exit code means", code=run.exit_code, meaning=exit_meaning(run, say)), "  ", width)
    yield from _uploads(run, width, say)
    yield say("label", label=say("report"), text=page), {}  # not wrapped, so that people can copy it


def _uploads(run: RunEntry, width: int, say: Language) -> Iterator[Line]:
    """Which Tester has the results, and what to do about those that it has not. The Tester of a private local cloud
    ends with the run: its address leads nowhere, and it matters only if it did not take all."""
    for tester in dict.fromkeys(upload["tester"] for upload in run.uploads):
        bound = [upload for upload in run.uploads if upload["tester"] == tester]
        counts = {
            state: sum(upload["state"] == state for upload in bound) for state in ("delivered", "spooled", "dead")
        }
        states = ", ".join(f"{count} {state}" for state, count in counts.items() if count)
        todo = ": aisbench flush" if counts["spooled"] else ": aisbench flush --dead" if counts["dead"] else ""
        markup = {"yellow": True} if todo else {}
        if tester.endswith(f"({PRIVATE})"):
            if todo:
                yield from wrapped(say("private Tester", states=states), "  ", width, markup)
        else:
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
    if curve.skipped or curve.nans:
        lines.append(f"steps  {curve.skipped or 0} skipped, {curve.nans or 0} with a loss that is not finite")
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
