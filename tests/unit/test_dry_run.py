"""A dry run: all that a run would say and do, short of doing it."""

from __future__ import annotations

import json
import threading
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from pytest_aisbench.config.settings import Settings
from pytest_aisbench.engine import submit
from pytest_aisbench.engine.budget import Budget, DryRun, Estimate, PlannedCase, dry_run
from pytest_aisbench.errors import LedgerError, Unreachable, UsageFault
from pytest_aisbench.model import codec
from pytest_aisbench.model.case import Case, Shape
from pytest_aisbench.model.job import Request
from pytest_aisbench.model.ports import Clock
from pytest_aisbench.model.trial import Step
from pytest_aisbench.session.dry_run import plan_lines
from pytest_aisbench.traininglog.activity import seconds_until_all_end

Make = Callable[..., Any]
HOUR = 3600.0


def rehearsed(platform: Any, clock: Clock, reports: Path, *cases: Case, until: Step = Step.DONE, **told: Any) -> DryRun:
    return dry_run(Settings(reports=reports, **told), platform, clock, [(case, until) for case in cases])


def read(forecast: DryRun) -> Any:
    return json.loads(forecast.cases[0].request.read_text(encoding="utf-8"))


def test_the_request_is_the_one_that_would_be_sent(healthy: Make, clock: Clock, case: Case, tmp_path: Path) -> None:
    (tmp_path / "suite" / "points").mkdir()
    (tmp_path / "suite" / "points" / "a.bin").write_bytes(b"data")
    case = replace(case, workload=replace(case.workload, data="points"))
    platform = healthy()
    platform.render = lambda spec: Request("POST", "/jobs", codec.dump(spec))

    forecast = rehearsed(platform, clock, tmp_path / "reports", case)

    assert not platform.store.objects_
    trial = submit.new_trial(forecast.folder.name, case, clock.now())
    stage = submit.upload_stage(trial, platform)  # uploads
    assert platform.store.objects_
    assert read(forecast) == codec.dump(platform.render(submit.job_spec(trial, stage, 86400.0)))


def test_a_platform_that_sends_other_words_is_asked_for_them(
    healthy: Make, clock: Clock, case: Case, tmp_path: Path
) -> None:
    platform = healthy()
    platform.to_send = lambda request: replace(request, body={"spec_id": 4})
    platform.sent = lambda request: request
    assert read(rehearsed(platform, clock, tmp_path / "reports", case))["body"] == {"spec_id": 4}

    def unreachable(_: Request) -> Request:
        raise Unreachable("no answer")

    platform.to_send = unreachable
    again = rehearsed(platform, clock, tmp_path / "reports", case)
    assert "spec_id" not in read(again)["body"]


def test_only_the_request_is_written(healthy: Make, clock: Clock, case: Case, tmp_path: Path) -> None:
    platform = healthy()
    reports = tmp_path / "reports"
    (reports / "yesterday").mkdir(parents=True)
    (reports / "latest").symlink_to("yesterday")
    before = threading.active_count()

    forecast = rehearsed(platform, clock, reports, case)

    assert {path.relative_to(reports).as_posix() for path in reports.rglob("*") if path.is_file()} == {
        f"{forecast.folder.name}/requests/toy-2x2.json"
    }
    assert (reports / "latest").readlink() == Path("yesterday")
    assert not platform.jobs
    assert threading.active_count() == before


def test_what_is_wrong_leaves_nothing_behind(healthy: Make, clock: Clock, case: Case, tmp_path: Path) -> None:
    reports = tmp_path / "reports"
    astray = replace(case, workload=replace(case.workload, data="nowhere"))
    with pytest.raises(UsageFault, match=r"toy-2x2: cannot stage .*nowhere: No such file"):
        rehearsed(healthy(), clock, reports, astray)

    platform = healthy()

    def refuse() -> None:
        raise UsageFault("wrong keys")

    platform.check = refuse
    with pytest.raises(UsageFault, match="wrong keys"):
        rehearsed(platform, clock, reports, case)
    assert not reports.exists()


def test_a_platform_that_is_away_can_be_planned_for(healthy: Make, clock: Clock, case: Case, tmp_path: Path) -> None:
    platform = healthy()

    def silent() -> None:
        raise Unreachable("no answer")

    platform.check = silent
    assert rehearsed(platform, clock, tmp_path / "reports", case).card_hours == 96.0


def test_reports_that_cannot_be_written_are_said_so(healthy: Make, clock: Clock, case: Case, tmp_path: Path) -> None:
    (tmp_path / "reports").write_text("a file")
    with pytest.raises(LedgerError, match="cannot be made: Not a directory; name another --aisbench-reports"):
        rehearsed(healthy(), clock, tmp_path / "reports", case)


def test_a_case_that_is_only_staged_has_a_request_and_no_cost(
    healthy: Make, clock: Clock, case: Case, tmp_path: Path
) -> None:
    forecast = rehearsed(healthy(), clock, tmp_path / "reports", case, until=Step.SUBMIT, budget=0.1)
    forecast.budget.require()
    assert (forecast.card_hours, forecast.wall_s) == (0.0, 0.0)
    assert forecast.cases[0].request.is_file()


def test_the_jobs_at_once_are_the_users_or_the_platforms(
    healthy: Make, clock: Clock, case: Case, tmp_path: Path
) -> None:
    assert rehearsed(healthy(), clock, tmp_path / "reports", case).max_jobs == 8
    assert rehearsed(healthy(), clock, tmp_path / "reports", case, max_jobs=3).max_jobs == 3


@pytest.mark.parametrize(
    ("seconds", "places", "wall"),
    [
        ([], 4, 0.0),
        ([1.0, 5.0, 2.0], 8, 5.0),
        ([1.0, 5.0, 2.0], 1, 8.0),
        ([1.0, 2.0, 3.0, 4.0], 2, 5.0),
        ([3.0, 3.0, 2.0, 2.0, 2.0], 2, 7.0),
    ],
)
def test_the_longest_go_first_and_the_next_where_a_place_is_free(
    seconds: list[float], places: int, wall: float
) -> None:
    assert seconds_until_all_end((), seconds, places) == wall


def forecast_of(case: Case, limit: float | None, *rows: tuple[str, Shape, float, str]) -> DryRun:
    found = [
        Estimate(replace(case, workload=replace(case.workload, name=name), shape=shape), seconds, source)
        for name, shape, seconds, source in rows
    ]
    return DryRun(
        folder=Path("reports/run"),
        cases=tuple(PlannedCase(each, Path("reports/run/requests/x.json")) for each in found),
        budget=Budget(limit, {each.case.id: each for each in found}),
        max_jobs=8,
    )


ROWS = (("resnet50", Shape(1, 8), 3 * HOUR, "expected"), ("bert", Shape(16, 8), 4000.0, "history of 3 trials"))


def test_the_plan_is_a_table_and_a_sum(case: Case) -> None:
    assert [line for line, _ in plan_lines(forecast_of(case, None, *ROWS), "reports/run", 80)] == [
        "case          nodes  cards   would run  card-hours  as known from",
        "resnet50-1x8      1      8  3 h 00 min       24.00  expected",
        "bert-16x8        16    128  1 h 06 min      142.22  history of 3 trials",
        "",
        "2 cases: 166.222 card-hours, 3 h 00 min with 8 jobs at once, queues aside",
        "budget: none",
        "nothing was uploaded or submitted",
        "requests: reports/run/requests/",
    ]


@pytest.mark.parametrize(
    ("limit", "line", "red"),
    [
        (200.0, "budget: 200 card-hours, 33.7778 left", {}),
        (100.0, "budget: 100 card-hours, 66.2222 too few", {"red": True}),
    ],
)
def test_the_plan_says_whether_the_budget_allows_it(case: Case, limit: float, line: str, red: dict[str, bool]) -> None:
    assert (line, red) in plan_lines(forecast_of(case, limit, *ROWS), "reports/run", 80)


@pytest.mark.parametrize("width", [10, 40, 80])
def test_the_plan_fits(case: Case, width: int) -> None:
    long = forecast_of(case, 1e9, ("a-workload-with-a-name-of-forty-characters", Shape(1024, 128), 9e7, "expected"))
    lines = [line for line, _ in plan_lines(long, "reports/run", width)]
    assert max(len(line) for line in lines[:-1]) <= max(width, 40)
    if width == 80:
        assert "".join(line.split()[0] for line in lines[1:4]) == "a-workload-with-a-name-of-forty-characters-1024x128"
