"""The guard of `python -m tests.bench`: what is red, what is only noise, and that no figure of the page is by hand."""

from __future__ import annotations

from pathlib import Path

import figures
import guard
import pytest
from figures import Figure
from parts import PARTS

DOCS = Path(__file__).parents[2] / "docs"


def _cpu(milliseconds: float, *, loop: float = 50.0, guarded: bool = True) -> Figure:
    return Figure("cpu", "CPU per job", milliseconds, "ms", "the loop", loop, guarded=guarded)


def test_a_quarter_more_is_allowed_and_more_is_red() -> None:
    before = {"jobs": [_cpu(20.0)]}
    assert not list(figures.offenders(before, {"jobs": [_cpu(25.0)]}))
    assert list(figures.offenders(before, {"jobs": [_cpu(25.5)]})) == [
        ("jobs", "jobs: CPU per job: before 0.400, now 0.510, limit 0.500 × the loop")
    ]


def test_a_slower_machine_is_not_red() -> None:
    assert not list(figures.offenders({"jobs": [_cpu(20.0)]}, {"jobs": [_cpu(40.0, loop=100.0)]}))


def test_what_is_not_guarded_is_never_red() -> None:
    assert not list(figures.offenders({"jobs": [_cpu(20.0)]}, {"jobs": [_cpu(200.0, guarded=False)]}))


def test_what_is_nearly_nothing_may_grow_by_its_slack() -> None:
    little = Figure("load", "the plugin", 0.001, guarded=True, slack=0.01)
    assert not list(figures.offenders({"load": [little]}, {"load": [Figure("load", "", 0.01, guarded=True)]}))
    assert list(figures.offenders({"load": [little]}, {"load": [Figure("load", "", 0.012, guarded=True)]}))


def test_a_guarded_figure_that_nobody_committed_is_named() -> None:
    (line,) = figures.uncommitted({}, {"jobs": [_cpu(20.0), Figure("memory", "memory", 100.0)]})
    assert line == "jobs: CPU per job: no figure is committed: run `python -m tests.bench --only jobs`"


@pytest.mark.parametrize(("later", "red"), [([21.0], 0), ([60.0, 21.0], 0), ([60.0, 50.0, 21.0], 1)])
def test_a_part_that_seems_worse_is_measured_again(later: list[float], red: int) -> None:
    runs = iter(later)
    before, now = {"jobs": [_cpu(20.0)]}, {"jobs": [_cpu(70.0)]}
    kept, lines = guard.recheck(before, now, lambda part: [_cpu(next(runs))])
    assert len(lines) == red
    assert kept["jobs"][0].value == min(later[: guard.AGAIN])


def test_a_peer_that_was_slow_once_does_not_make_the_figure_look_good() -> None:
    (growth,) = figures.best([_cpu(60.0, loop=40.0)], [_cpu(66.0, loop=62.0)])
    assert growth.ratio == 1.5


def test_a_part_that_is_as_before_is_measured_once() -> None:
    before = {"jobs": [_cpu(20.0)]}
    assert guard.recheck(before, before, lambda part: pytest.fail(f"{part} was measured again")) == (before, [])


def test_several_runs_give_the_middle_one_and_how_far_they_lie_apart() -> None:
    (middle,) = figures.merged([[_cpu(20.0)], [_cpu(26.0)], [_cpu(21.0)]])
    assert middle.value == 21.0
    assert middle.spread == pytest.approx(6 / 21)


def test_what_was_not_measured_now_stays() -> None:
    old = {"jobs": [_cpu(20.0), Figure("cpu_10000", "CPU per job", 21.0)], "fleet": [Figure("wall", "wall", 2.0)]}
    kept = figures.updated(old, {"jobs": [_cpu(22.0)]})
    assert {figure.name: figure.value for part in kept.values() for figure in part} == {
        "cpu": 22.0,
        "cpu_10000": 21.0,
        "wall": 2.0,
    }


def test_figures_come_back_from_the_file() -> None:
    parts = {"jobs": [_cpu(20.0), Figure("memory", "memory", 130.0, "MiB", target=120.0)]}
    machine, read = figures.from_json(figures.to_json({"cores": "2 cores"}, "2026-01-01", parts))
    assert (machine, read) == ({"cores": "2 cores"}, parts)


def test_only_the_tables_of_the_page_are_replaced() -> None:
    text = "Prose.\n<!-- figures: jobs -->\nold\n<!-- end of figures -->\n| by | hand |\n"
    made = figures.page(text, {}, "2026-01-01", {"jobs": [_cpu(20.0)]})
    before, _, rest = made.partition("<!-- figures: jobs -->\n")
    table, _, after = rest.partition("<!-- end of figures -->")
    assert (before, after) == ("Prose.\n", "\n| by | hand |\n")
    assert "| CPU per job | 20.0 ms | the loop: 50.0 ms | 0.400 |" in table
    assert "old" not in table


def test_a_missed_target_is_said_so() -> None:
    assert "**no**" in Figure("memory", "memory", 130.0, "MiB", target=120.0).cells()
    assert "yes" in Figure("jobs", "a command", 90.0, "ms", "python", 9.0, target=120.0, target_of_value=True).cells()


@pytest.mark.parametrize(("value", "text"), [(0.0, "0"), (0.01234, "0.0123"), (9.999, "10.0"), (1353.4, "1,353")])
def test_numbers_have_three_digits(value: float, text: str) -> None:
    assert figures.number(value) == text


def test_the_tables_of_the_page_are_those_of_the_file() -> None:
    """Whoever edits a figure of the page, or forgets to commit one of both, is told here."""
    page = (DOCS / "benchmarks.md").read_text(encoding="utf-8")
    text = (DOCS / "benchmarks.json").read_text(encoding="utf-8")
    machine, parts = figures.from_json(text)
    assert {f"<!-- figures: {part} -->" for part in [*PARTS, "machine"]} <= set(page.splitlines())
    assert parts
    assert figures.page(page, machine, figures.date_of(text), parts) == page
