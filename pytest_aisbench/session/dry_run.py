"""A dry run: checks everything, renders every request, prints the cost of each case, and submits nothing."""

from __future__ import annotations

import shutil
from collections.abc import Iterator
from functools import partial
from typing import TYPE_CHECKING, Any

import pytest
from rich.text import Text

from pytest_aisbench import registry
from pytest_aisbench.engine.budget import DryRun, PlannedCase, card_hours_text, dry_run
from pytest_aisbench.engine.suites import expired_claims
from pytest_aisbench.errors import GivenUp
from pytest_aisbench.judge import exit_code
from pytest_aisbench.model.clock import SystemClock, day
from pytest_aisbench.report.host_plugins import write_line
from pytest_aisbench.report.terminal import (
    NARROWEST,
    Line,
    add_column,
    new_table,
    table_lines,
    wrapped,
    write_exit_code,
)
from pytest_aisbench.report.text import span
from pytest_aisbench.session import collection
from pytest_aisbench.session.outcome import errors_in_one_line

if TYPE_CHECKING:
    from pytest_aisbench.config.settings import Settings
    from pytest_aisbench.model.case import Case
    from pytest_aisbench.model.ports import Platform
    from pytest_aisbench.model.trial import Step, Trial


class DryRunOwner(collection.ChecksSelection):
    """A pytest plugin object in the Controller's place: it plans, and runs no test, so that none can pass."""

    def __init__(self, config: pytest.Config, settings: Settings) -> None:
        self._config = config
        self._settings = settings
        self._platform: Platform | None = None
        self._dry_run: DryRun | None = None
        self._session: pytest.Session | None = None  # once it has ended

    def reached(self, case: Case, until: Step) -> Trial:
        raise GivenUp(f"{case.id} gets no further than its request: this is a dry run")

    def run_name(self) -> str:
        return ""

    def platform(self) -> Platform:
        if self._platform is None:
            self._platform = registry.of_session(self._config).connect(self._settings)
        return self._platform

    @pytest.hookimpl(tryfirst=True)
    def pytest_collection_modifyitems(self, items: list[pytest.Item]) -> None:
        collection.select(self._config, items, self._settings.nodes, partial(write_line, self._config))

    @pytest.hookimpl(tryfirst=True)
    def pytest_runtestloop(self, session: pytest.Session) -> bool | None:
        """In place of pytest's own loop, which says what is wrong with the collection, or only lists it."""
        option = self._config.option
        if option.collectonly or (session.testsfailed and not option.continue_on_collection_errors):
            return None
        with errors_in_one_line():
            wants = collection.plan(self._config, session.items).wants
            if wants:
                self._dry_run = dry_run(self._settings, self.platform(), SystemClock(), wants)
                self._dry_run.budget.require()
                for line in expired_claims((case for case, _ in wants), day(SystemClock().now())):
                    write_line(self._config, line)
        return True

    @pytest.hookimpl(tryfirst=True)
    def pytest_sessionfinish(self, session: pytest.Session) -> None:
        if session.exitstatus == exit_code.PASSED and not self._config.option.collectonly:
            session.exitstatus = exit_code.NOTHING_JUDGED
        self._session = session

    def pytest_terminal_summary(self, terminalreporter: Any) -> None:
        if self._config.option.collectonly:
            return
        terminalreporter.section("aisbench: dry run")
        if self._dry_run is None:
            terminalreporter.write_line("no case is planned, and no test was run")
            return
        width = shutil.get_terminal_size((80, 24)).columns
        folder = str(self._dry_run.folder).removeprefix(f"{self._config.invocation_params.dir}/")
        for line, markup in plan_lines(self._dry_run, folder, width):
            terminalreporter.write_line(line, **markup)

    @pytest.hookimpl(trylast=True)
    def pytest_unconfigure(self) -> None:
        if self._session:
            write_exit_code(self._config, int(self._session.exitstatus))
        if self._platform:
            self._platform.close()


HEADINGS = ("case", "nodes", "cards", "would run", "card-hours", "as known from")
_RIGHT = range(1, 5)  # numbers, one below the other


def plan_lines(planned: DryRun, folder: str, width: int) -> list[Line]:
    """Lines with pytest's markup for each, none wider than the terminal but the last, which is to be copied."""
    width = max(width, NARROWEST)
    return [
        *_table(planned, width),
        ("", {}),
        *wrapped(_total(planned), "  ", width),
        *wrapped(_allowance(planned), "  ", width, {} if _is_within(planned) else {"red": True}),
        ("nothing was uploaded or submitted", {}),
        (f"requests: {folder}/requests/", {}),
    ]


def _table(planned: DryRun, width: int) -> Iterator[Line]:
    costs = [case.estimate.card_hours for case in planned.cases]
    digits = 2 if max(costs, default=0.0) >= 1 else 4
    table = new_table()
    rows = [_row(case, digits) for case in planned.cases]
    for index, (heading, *cells) in enumerate(zip(HEADINGS, *rows, strict=True)):
        add_column(table, heading, cells, wraps=not index, right=index in _RIGHT)
    for row in rows:
        table.add_row(*map(Text, row))
    return table_lines(table, width)


def _row(planned_case: PlannedCase, digits: int) -> tuple[str, ...]:
    shape, estimate = planned_case.case.shape, planned_case.estimate
    cost = f"{estimate.card_hours:.{digits}f}"
    return planned_case.case.id, str(shape.nodes), str(shape.world), span(estimate.seconds), cost, estimate.source


def _total(planned: DryRun) -> str:
    cases = len(planned.cases)
    jobs = f"{planned.max_jobs} job{'s' if planned.max_jobs > 1 else ''} at once"
    cost = f"{cases} case{'s' if cases != 1 else ''}: {card_hours_text(planned.card_hours)} card-hours"
    return f"{cost}, {span(planned.wall_s)} with {jobs}, queues aside"


def _allowance(planned: DryRun) -> str:
    limit = planned.budget.limit
    if limit is None:
        return "budget: none"
    rest = limit - planned.card_hours
    word = "left" if _is_within(planned) else "too few"
    return f"budget: {card_hours_text(limit)} card-hours, {card_hours_text(abs(rest))} {word}"


def _is_within(planned: DryRun) -> bool:
    return not planned.budget.is_exceeded(planned.card_hours)
