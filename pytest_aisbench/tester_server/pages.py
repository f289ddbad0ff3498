"""The pages: one function each, from a question to the database to a template."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable, Mapping
from typing import Any

from sqlalchemy import Connection
from starlette.responses import RedirectResponse, Response
from starlette.routing import Route

from pytest_aisbench.tester_server import across, audit, charts, comparison, queries
from pytest_aisbench.tester_server.frame import Frame, NotThere, Visit
from pytest_aisbench.tester_server.rows import PAGE, Mark, as_dict, dicts
from pytest_aisbench.tester_server.shown import path

_RESULT_COLUMNS = (
    "testid", "run_name", "name", "workload", "nodes", "devices", "mode", "platform", "verdict", "status", "reason",
    "throughput", "unit", "accuracy", "target", "reference", "low", "high", "card_hours", "job_id", "attempt",
    "started", "ended",
)  # fmt: skip
_RUN_COLUMNS = (
    "testid", "name", "platform", "started", "ended", "cases", "passed", "failed", "broken", "inconclusive",
    "unjudged", "exit_code", "card_hours",
)  # fmt: skip
_SLOW_COLUMNS = ("ended", "node", "card", "ratio", "cost", "name", "testid", "run_name")
_ON_A_CHART = 120
_ON_A_PAGE = 2000


class Pages:
    def __init__(self, frame: Frame) -> None:
        self._frame = frame

    def routes(self) -> list[Route]:
        project, run = "/p/{project}", "/p/{project}/t/{testid}/r/{run}"
        pages: Mapping[str, Callable[[Visit], Response]] = {
            "/": self.projects,
            project: self.runs,
            run: self.run,
            f"{run}/c/{{name}}": self.result,
            f"{project}/cases": self.cases,
            f"{project}/cases/{{platform}}/{{name}}": self.case,
            f"{project}/scaling": self.scaling,
            f"{project}/stragglers": self.stragglers,
            f"{project}/compare": self.compare,
            f"{project}/search": self.search,
            f"{project}/audit": self.audit,
            f"{project}/results": self.results,
        }
        return [Route(where, self._frame.page(page)) for where, page in pages.items()]

    def projects(self, visit: Visit) -> Response:
        found = queries.projects(visit.connection, visit.only)
        if len(found) == 1:
            return RedirectResponse(path("p", found[0].name), 303)
        return visit.show("projects.html", projects=found)

    def runs(self, visit: Visit) -> Response:
        told: dict[str, Any] = {"platform": visit.asked("platform"), "only_bad": visit.asked("bad") == "1"}
        if visit.format:
            rows = _whole(lambda c, mark: queries.runs(c, visit.project, **told, before=mark, limit=1000))
            return visit.export("runs", _RUN_COLUMNS, rows)
        found = queries.runs(visit.connection, visit.project, **told, before=visit.mark, limit=PAGE + 1)
        shown, older = found[:PAGE], len(found) > PAGE
        return visit.show(
            "runs.html",
            runs=shown,
            older=str(Mark.of(shown[-1])) if older else "",
            platforms=across.platforms(visit.connection, visit.project),
            **told,
        )

    def run(self, visit: Visit) -> Response:
        run = self._run(visit, visit.path("testid"), visit.path("run"))
        if visit.format:
            return visit.export(
                f"run-{run.name}", _RESULT_COLUMNS, lambda connection: dicts(queries.results_of(connection, run.id))
            )
        results = queries.results_of(visit.connection, run.id, _ON_A_PAGE + 1)
        return visit.show(
            "run.html",
            run=run,
            results=results[:_ON_A_PAGE],
            more=len(results) > _ON_A_PAGE,
            end=queries.end_of(visit.connection, run),
            before=queries.run_before(visit.connection, run),
            attachments=[(row, json.loads(row.body)) for row in queries.attachments(visit.connection, run)],
        )

    def result(self, visit: Visit) -> Response:
        run = self._run(visit, visit.path("testid"), visit.path("run"))
        result = queries.result(visit.connection, run.id, visit.path("name"))
        if result is None:
            raise NotThere
        parcel = queries.parcel(visit.connection, result.parcel)
        attempts = queries.attempts(visit.connection, visit.project, run.testid, parcel.run_id)
        chosen = next((each for each in attempts if str(each.attempt) == visit.asked("attempt")), None)
        if chosen and chosen.id != parcel.id:
            parcel = queries.parcel(visit.connection, chosen.id)
        if visit.format == "json":
            return Response(parcel.body, media_type="application/json")  # as it was sent
        series = across.one_series(visit.connection, visit.project, result.platform, result.name)
        assert series is not None
        recent = list(reversed(across.trend(visit.connection, series.id, limit=_ON_A_CHART // 2)))
        body = json.loads(parcel.body)
        told = sorted(body["measured"].items())
        return visit.show(
            "result.html",
            run=run,
            result=result,
            body=body,
            measured=[(name, each) for name, each in told if each.get("value") is not None],
            unmeasured=[(name, each) for name, each in told if each.get("value") is None],
            attempts=attempts,
            sender=queries.sender(visit.connection, parcel),
            chart=charts.trend(recent),
        )

    def cases(self, visit: Visit) -> Response:
        told = {"platform": visit.asked("platform"), "after": visit.asked("after")}
        found = across.series(visit.connection, visit.project, **told, limit=PAGE + 1)
        shown = found[:PAGE]
        return visit.show(
            "cases.html",
            cases=[(row, charts.sparkline(across.spark(visit.connection, row.id))) for row in shown],
            more=f"{shown[-1].name} {shown[-1].platform}" if len(found) > PAGE else "",
            platforms=across.platforms(visit.connection, visit.project),
            **told,
        )

    def case(self, visit: Visit) -> Response:
        series = across.one_series(visit.connection, visit.project, visit.path("platform"), visit.path("name"))
        if series is None:
            raise NotThere
        if visit.format:
            rows = _whole(lambda c, mark: across.trend(c, series.id, mark, 1000))
            return visit.export(f"case-{series.name}", _RESULT_COLUMNS, rows)
        found = across.trend(visit.connection, series.id, visit.mark, _ON_A_CHART + 1)
        shown = found[:_ON_A_CHART]
        return visit.show(
            "case.html",
            series=series,
            results=shown,
            chart=charts.trend(shown[::-1]),
            accuracy=charts.accuracy(shown[::-1]),
            older=str(Mark.of(shown[-1])) if len(found) > _ON_A_CHART else "",
        )

    def scaling(self, visit: Visit) -> Response:
        known = across.workloads(visit.connection, visit.project)
        asked = tuple(visit.asked(name) for name in ("workload", "platform", "mode"))
        keys = [(each.workload, each.platform, each.mode) for each in known]
        largest = max(known, key=lambda each: each.shapes, default=None)
        usual = (largest.workload, largest.platform, largest.mode) if largest else None
        key = asked if asked in keys else usual
        rows = across.shapes(visit.connection, visit.project, key[1], key[0], key[2]) if key else []
        points = charts.scaled(rows)
        if visit.format:
            told = [{**as_dict(point.row), "cards": point.cards, "efficiency": point.efficiency} for point in points]
            columns = ("name", "nodes", "devices", "cards", "throughput", "unit", "efficiency", "testid", "run_name")
            return visit.export("scaling", columns, lambda _: told)
        return visit.show("scaling.html", known=known, key=key, points=points, chart=charts.efficiency(points))

    def stragglers(self, visit: Visit) -> Response:
        platforms = across.platforms(visit.connection, visit.project)
        platform = visit.asked("platform") or (platforms[0] if platforms else "")
        if visit.format:
            found = across.stragglers(visit.connection, visit.project, platform, limit=100_000)
            return visit.export("stragglers", _SLOW_COLUMNS, lambda _: dicts(found))
        rows = across.sightings(visit.connection, visit.project, platform)
        return visit.show(
            "stragglers.html",
            platform=platform,
            platforms=platforms,
            strips=charts.strips(rows),
            oldest=rows[-1].ended if rows else None,
            newest=rows[0].ended if rows else None,
            recent=across.stragglers(visit.connection, visit.project, platform),
        )

    def compare(self, visit: Visit) -> Response:
        a, b = (self._named(visit, visit.asked(side)) for side in "ab")
        if a is None or b is None:
            return visit.show("compare.html", a=a, b=b, pairs=[])
        found = comparison.pairs(queries.results_of(visit.connection, a.id), queries.results_of(visit.connection, b.id))
        if visit.format:
            rows = comparison.rows(found)
            return visit.export("comparison", tuple(rows[0]) if rows else ("case",), lambda _: rows)
        return visit.show("compare.html", a=a, b=b, pairs=found)

    def search(self, visit: Visit) -> Response:
        words = visit.asked("q").strip()[:200]
        hits = queries.search(visit.connection, visit.project, words) if words else queries.Hits((), (), ())
        return visit.show("search.html", words=words, hits=hits)

    def audit(self, visit: Visit) -> Response:
        if visit.format:
            return visit.export("audit", audit.COLUMNS, lambda c: audit.every(c, visit.project))
        before = visit.asked("before")
        mark = int(before) if before.isdecimal() and len(before) < 19 else None
        found = audit.newest(visit.connection, visit.project, mark, PAGE + 1)
        shown = found[:PAGE]
        return visit.show("audit.html", rows=shown, older=str(shown[-1]["id"]) if len(found) > PAGE else "")

    def results(self, visit: Visit) -> Response:
        """Everything, for other programs."""
        told = visit.asked("platform"), visit.asked("case")
        visit = visit.exporting()
        return visit.export("results", _RESULT_COLUMNS, lambda c: dicts(queries.export(c, visit.project, *told)))

    def _run(self, visit: Visit, testid: str, name: str) -> Any:
        found = queries.run(visit.connection, visit.project, testid, name)
        if found is None:
            raise NotThere
        return found

    def _named(self, visit: Visit, text: str) -> Any:
        """`testid/run`; what is asked for and is not there is an error, and not half a comparison."""
        testid, _, name = text.partition("/")
        return self._run(visit, testid, name) if text else None


def _whole(page: Callable[[Connection, Mark | None], Any]) -> Callable[[Connection], Iterable[Mapping[str, Any]]]:
    """All pages of a list, one after the other."""

    def rows(connection: Connection) -> Iterable[Mapping[str, Any]]:
        mark: Mark | None = None
        while found := page(connection, mark):
            yield from dicts(found)
            mark = Mark.of(found[-1])

    return rows
