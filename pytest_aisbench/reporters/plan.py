"""A dry run on the terminal: what each case would take, and the whole."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from pytest_aisbench.report.text import clip, display_width, fit, padded, span
from pytest_aisbench.reporters.terminal import NARROWEST, Line, wrapped
from pytest_aisbench.services.budget import hours
from pytest_aisbench.services.rehearsal import Forecast, Prospect

HEADINGS = ("case", "nodes", "cards", "would run", "card-hours", "as known from")
_RIGHT = range(1, 5)  # numbers, one below the other
_LEAST = 8  # of a name that is cut


def plan(forecast: Forecast, folder: str, width: int) -> list[Line]:
    """Lines with pytest's markup for each, none wider than the terminal but the last, which is to be copied."""
    width = max(width, NARROWEST)
    return [
        *_table(forecast, width),
        ("", {}),
        *wrapped(_total(forecast), "  ", width),
        *wrapped(_allowance(forecast), "  ", width, {} if _is_within(forecast) else {"red": True}),
        ("nothing was uploaded or submitted", {}),
        (f"requests: {folder}/requests/", {}),
    ]


def _table(forecast: Forecast, width: int) -> Iterator[Line]:
    costs = [prospect.estimate.card_hours for prospect in forecast.prospects]
    digits = 2 if max(costs, default=0.0) >= 1 else 4
    rows = [_row(prospect, digits) for prospect in forecast.prospects]
    columns = [max(map(display_width, column)) for column in zip(HEADINGS, *rows, strict=True)]
    over = sum(columns) + 2 * (len(columns) - 1) - width
    columns[0] -= min(max(over, 0), max(columns[0] - _LEAST, 0))
    yield clip(_line(HEADINGS, columns), width), {"bold": True}
    for row in rows:
        yield clip(_line(row, columns), width), {}


def _row(prospect: Prospect, digits: int) -> tuple[str, ...]:
    shape, estimate = prospect.case.shape, prospect.estimate
    cost = f"{estimate.card_hours:.{digits}f}"
    return prospect.case.id, str(shape.nodes), str(shape.world), span(estimate.seconds), cost, estimate.source


def _line(cells: Sequence[str], columns: Sequence[int]) -> str:
    placed = [
        fit(cell, size).rjust(size) if index in _RIGHT else padded(fit(cell, size), size)
        for index, (cell, size) in enumerate(zip(cells, columns, strict=True))
    ]
    return "  ".join(placed).rstrip()


def _total(forecast: Forecast) -> str:
    cases = len(forecast.prospects)
    jobs = f"{forecast.max_jobs} job{'s' if forecast.max_jobs > 1 else ''} at once"
    cost = f"{cases} case{'s' if cases != 1 else ''}: {hours(forecast.card_hours)} card-hours"
    return f"{cost}, {span(forecast.wall_s)} with {jobs}, queues aside"


def _allowance(forecast: Forecast) -> str:
    limit = forecast.budget.limit
    if limit is None:
        return "budget: none"
    rest = limit - forecast.card_hours
    return f"budget: {hours(limit)} card-hours, {hours(abs(rest))} {'left' if _is_within(forecast) else 'too few'}"


def _is_within(forecast: Forecast) -> bool:
    return not forecast.budget.is_exceeded(forecast.card_hours)
