"""The pages of the Tester: each method of `Pages` asks `queries.py` and fills a template.

`Frame` does what all pages need: it checks access, chooses the language and renders. A `Visit` is one request.
"""

from __future__ import annotations

import asyncio
import json
import time
from collections.abc import Awaitable, Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from datetime import datetime, timedelta, timezone
from functools import partial
from typing import Any
from urllib.parse import parse_qs, urlencode

from jinja2 import Environment, PackageLoader, StrictUndefined
from sqlalchemy import Connection, Engine
from starlette.concurrency import run_in_threadpool
from starlette.requests import ClientDisconnect, Request
from starlette.responses import HTMLResponse, RedirectResponse, Response
from starlette.routing import Route

from pytest_aisbench.i18n import ENGLISH, SOURCE, language, languages
from pytest_aisbench.model.clock import stamp
from pytest_aisbench.model.messages import plain
from pytest_aisbench.tester_server import charts, queries, signatures
from pytest_aisbench.tester_server.auth import (
    COLUMNS,
    COOKIE,
    PROJECT,
    SESSION_S,
    AccessPolicy,
    Denied,
    Holder,
    close_session,
    every_action,
    find_token,
    newest_actions,
    open_session,
)
from pytest_aisbench.tester_server.formatting import (
    FORMATS,
    compare_results,
    comparison_rows,
    export_response,
    format_change,
    format_number,
    format_share,
    format_time,
    path,
    result_path,
    run_path,
    series_path,
)
from pytest_aisbench.tester_server.schema import PAGE, Mark, as_dict, dicts, writing

_LANGUAGE = "aisbench_language"
_FORM = 16 * 1024  # bytes: a remark of 1,000 Chinese characters has nine for each
_FORM_S = 10.0  # for all of them
_YEAR_S = 365 * 86_400


class NotThere(Exception):
    """The page does not exist: the answer is 404."""


class Unreadable(Exception):
    """The address asks for something that has no meaning: the answer is 400, and the text says what."""


@dataclass(frozen=True)
class Visit:
    """One reader's request for one page."""

    frame: Frame
    request: Request
    connection: Connection
    only: str | None  # the one project that may be read; None for all
    format: str  # csv or json; empty for the page

    @property
    def project(self) -> str:
        return self.path("project")

    @property
    def mark(self) -> Mark | None:
        return Mark.parse(self.asked("before"))

    @property
    def period(self) -> queries.Period:
        return queries.Period(
            self._midnight("since"),
            self._midnight("until", timedelta(days=1)),  # that day belongs to it
            self.asked("commit").strip()[:64],
        )

    def _midnight(self, name: str, later: timedelta = timedelta()) -> float | None:
        text = self.asked(name)
        try:
            day = datetime.strptime(text, "%Y-%m-%d").replace(tzinfo=timezone.utc) if text else None
            return (day + later).timestamp() if day else None
        except (ValueError, OverflowError):  # the day after the last one that there is
            raise Unreadable("A day is written like 2027-01-31.") from None

    @property
    def period_asked(self) -> dict[str, str]:
        return {name: self.asked(name) for name in ("since", "until", "commit")}

    def path(self, name: str) -> str:
        return str(self.request.path_params[name])

    def asked(self, name: str) -> str:
        return self.request.query_params.get(name, "")

    @property
    def signer(self) -> Holder | None:
        """The reader, if this reader may sign runs of the project."""
        return self.frame.access.signer(self.connection, self.request, self.project)

    def show(self, template: str, **values: Any) -> Response:
        return self.frame.show(self.request, template, project=self.request.path_params.get("project", ""), **values)

    def exporting(self) -> Visit:
        return self if self.format else replace(self, format="json")

    def export(
        self, name: str, columns: Sequence[str], rows: Callable[[Connection], Iterable[Mapping[str, Any]]]
    ) -> Response:
        """A download that is written while it is read, by a connection of its own: this one closes first."""

        def read() -> Iterable[Mapping[str, Any]]:
            with self.frame.engine.connect() as connection:
                yield from rows(connection)

        safe = "".join(char if (char.isalnum() and char.isascii()) or char in "-_." else "_" for char in name)
        return export_response(self.format, safe, columns, read())


class Frame:
    """Renders pages, and serves login and logout."""

    def __init__(self, engine: Engine, access: AccessPolicy) -> None:
        self.engine = engine
        self.access = access
        self._templates = Environment(
            loader=PackageLoader("pytest_aisbench.tester_server"),
            autoescape=True,
            undefined=StrictUndefined,
            finalize=_printable,
            trim_blocks=True,
            lstrip_blocks=True,
        )
        self._templates.filters.update(
            number=format_number, share=format_share, signed=format_change, clock=format_time, iso=stamp
        )
        self._templates.globals.update(
            path=path,
            run_path=run_path,
            result_path=result_path,
            series_path=series_path,
            exit_codes=frozenset(ENGLISH.catalogue.exit_codes),
        )

    def page(self, make: Callable[[Visit], Response]) -> Callable[[Request], Awaitable[Response]]:
        async def answer(request: Request) -> Response:
            response = await run_in_threadpool(self._answer, make, request)
            asked = request.query_params.get("lang", "")
            if asked in languages():
                response.set_cookie(_LANGUAGE, asked, max_age=_YEAR_S, samesite="lax", httponly=True)
            return response

        return answer

    def _answer(self, make: Callable[[Visit], Response], request: Request) -> Response:
        kind = request.query_params.get("format", "")
        project = request.path_params.get("project")
        try:
            with self.engine.connect() as connection:
                only = self.access.require_reader(connection, request)
                visit = Visit(self, request, connection, only, kind if kind in FORMATS else "")
                readable = project is None or (PROJECT.fullmatch(project) and only in {None, project})
                return make(visit) if readable else self.missing(request)
        except Denied:
            return self._ask_for_token(request, back=_here(request))
        except NotThere:
            return self.missing(request)
        except Unreadable as error:
            return self.show(request, "message.html", status=400, project="", text=str(error))

    def unanswered(self, request: Request) -> Response:
        text = "The database does not answer; try again."
        return self.show(request, "message.html", status=503, project="", text=text)

    def missing(self, request: Request) -> Response:
        return self.show(request, "message.html", status=404, project="", text="There is no such page.")

    def show(self, request: Request, template: str, *, status: int = 200, **values: Any) -> Response:
        chosen = chosen_language(
            request.query_params.get("lang", ""),
            request.cookies.get(_LANGUAGE, ""),
            request.headers.get("accept-language", ""),
        )
        html = self._templates.get_template(template).render(
            t=language(chosen).page,
            html_lang=language(chosen).catalogue.html_lang,
            other_languages={code: language(code).catalogue.name for code in languages() if code != chosen},
            here=partial(_here, request),
            reader=bool(request.cookies.get(COOKIE)),
            **values,
        )
        return HTMLResponse(html, status)

    def form(self, take: Callable[[Request, Mapping[str, str]], Response]) -> Callable[[Request], Awaitable[Response]]:
        """The handler of a form: it arrives in time and from our own page, then `take` gets its fields."""

        async def answer(request: Request) -> Response:
            if not self.access.same_site(request):
                return self._other_site(request)
            try:
                body = await asyncio.wait_for(_read_form(request), _FORM_S)
            except (asyncio.TimeoutError, ClientDisconnect):
                text = "The form did not arrive in time; try again."
                late = self.show(request, "message.html", status=408, project="", text=text)
                late.headers["Connection"] = "close"
                return late
            fields = {name: values[0] for name, values in parse_qs(body.decode(errors="replace")).items()}
            return await run_in_threadpool(take, request, fields)

        return answer

    def login(self, request: Request, fields: Mapping[str, str]) -> Response:
        """Open a session for the token. The browser keeps it for a day, in a cookie that no script can read."""
        with self.engine.connect() as connection:
            holder = find_token(connection, fields.get("token", "").strip())
        if holder is None or holder.revoked or not holder.kind.reads_pages:
            return self._ask_for_token(request, wrong=True, back=fields.get("next", ""))
        with writing(self.engine).begin() as connection:
            session = open_session(connection, holder, time.time())
        answer = RedirectResponse(_on_this_server(fields.get("next", "")), 303)
        secure = request.url.scheme == "https" or request.headers.get("x-forwarded-proto") == "https"
        answer.set_cookie(COOKIE, session, max_age=SESSION_S, httponly=True, samesite="strict", secure=secure)
        return answer

    async def enter(self, request: Request) -> Response:
        """The page to sign in on, for a reader of an open server who wants to sign."""
        return self._ask_for_token(request, status=200, back=request.query_params.get("next", ""))

    def _ask_for_token(self, request: Request, *, status: int = 401, wrong: bool = False, back: str = "") -> Response:
        back = _on_this_server(back)
        return self.show(request, "login.html", status=status, project="", wrong=wrong, back=back)

    def _other_site(self, request: Request) -> Response:
        text = "A page of another site sent this form."
        return self.show(request, "message.html", status=403, project="", text=text)

    def sign(self, request: Request, fields: Mapping[str, str]) -> Response:
        """Store a signature, and lead back to the page of the run."""
        project, testid, name = (request.path_params[part] for part in ("project", "testid", "run"))
        address = request.client.host if request.client else ""
        try:
            with writing(self.engine).begin() as connection:
                # First: whether the run exists is for readers of the project to know.
                signer = self.access.require_signer(connection, request, project)
                run = queries.run(connection, project, testid, name)
                if run is None:
                    return self.missing(request)
                form = signatures.Form.parse(fields)
                number = signatures.sign(connection, run, form, signer, address=address, now=time.time())
        except (Denied, signatures.Unsigned) as error:
            return self.show(request, "message.html", status=error.status, project="", text=str(error))
        return RedirectResponse(f"{run_path(project, testid, name)}#signature-{number}", 303)

    async def logout(self, request: Request) -> Response:
        """End the session, also for a copy of the cookie."""
        if not self.access.same_site(request):
            return self._other_site(request)
        await run_in_threadpool(self._end_session, request.cookies.get(COOKIE, ""))
        answer = RedirectResponse("/", 303)
        answer.delete_cookie(COOKIE, httponly=True, samesite="strict")
        return answer

    def _end_session(self, session: str) -> None:
        if session:
            with writing(self.engine).begin() as connection:
                close_session(connection, session)


async def _read_form(request: Request) -> bytes:
    """A form; nothing of one that is too large."""
    body = b""
    async for part in request.stream():
        body += part
        if len(body) > _FORM:
            return b""
    return body


def chosen_language(asked: str, kept: str, accepted: str) -> str:
    """The language of the address, of the cookie, or the first that the browser accepts and we have; else English."""
    for code in (asked, kept):
        if code in languages():
            return code
    ranked = sorted(_preferences(accepted), key=lambda preference: -preference[1])
    return next((tag for tag, quality in ranked if tag in languages() and quality > 0), SOURCE)


def _preferences(accepted: str) -> list[tuple[str, float]]:
    preferences = []
    for part in accepted[:400].split(","):
        tag, _, quality = part.partition(";q=")
        try:
            preferences.append((tag.strip().lower()[:2], float(quality or 1)))
        except ValueError:
            continue
    return preferences


def _printable(value: Any) -> Any:
    """Text of an upload becomes one printable line; what a template made stays as it is."""
    return plain(value) if type(value) is str and not value.isprintable() else value


def _on_this_server(address: str) -> str:
    """An address to go back to; the first page if it could lead to another server."""
    is_ours = address.startswith("/") and address.isprintable() and not address.startswith(("//", "/\\"))
    return address if is_ours else "/"


def _here(request: Request, **changed: str) -> str:
    """This page's address with some of its query changed; an empty value drops its name."""
    where = "/" + request.scope["raw_path"].decode("ascii", "replace").lstrip("/")  # // would name another host
    asked = {**dict(request.query_params), **changed}
    query = urlencode({name: value for name, value in asked.items() if value})
    return f"{where}?{query}" if query else where


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
            f"{project}/signatures": self.signatures,
        }
        return [Route(where, self._frame.page(page)) for where, page in pages.items()]

    def projects(self, visit: Visit) -> Response:
        projects = queries.projects(visit.connection, visit.only)
        if len(projects) == 1:
            return RedirectResponse(path("p", projects[0].name), 303)
        return visit.show("projects.html", projects=projects)

    def runs(self, visit: Visit) -> Response:
        filters: dict[str, Any] = {
            "platform": visit.asked("platform"),
            "only_bad": visit.asked("bad") == "1",
            "period": visit.period,
        }
        if visit.format:
            export = _all_rows(lambda c, mark: queries.runs(c, visit.project, **filters, before=mark, limit=1000))
            return visit.export("runs", _RUN_COLUMNS, export)
        rows = queries.runs(visit.connection, visit.project, **filters, before=visit.mark, limit=PAGE + 1)
        return visit.show(
            "runs.html",
            runs=rows[:PAGE],
            signed=signatures.last_signatures(visit.connection, visit.project, rows[:PAGE]),
            asked=visit.period_asked,
            older=_mark_of_next(rows, PAGE),
            platforms=queries.platforms(visit.connection, visit.project),
            **filters,
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
            signatures=signatures.signatures_of(visit.connection, run),
            digest=signatures.digest_of(visit.connection, run),
            signer=visit.signer,
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
        series = queries.one_series(visit.connection, visit.project, result.platform, result.name)
        assert series is not None
        recent = list(reversed(queries.case_trend(visit.connection, series.id, limit=_ON_A_CHART // 2)))
        body = json.loads(parcel.body)
        values = sorted(body["measured"].items())
        return visit.show(
            "result.html",
            run=run,
            result=result,
            body=body,
            measured=[(name, each) for name, each in values if each.get("value") is not None],
            unmeasured=[(name, each) for name, each in values if each.get("value") is None],
            attempts=attempts,
            sender=queries.sender(visit.connection, parcel),
            chart=charts.trend(recent),
        )

    def cases(self, visit: Visit) -> Response:
        filters = {"platform": visit.asked("platform"), "after": visit.asked("after")}
        rows = queries.series(visit.connection, visit.project, **filters, limit=PAGE + 1)
        return visit.show(
            "cases.html",
            cases=[(row, charts.sparkline(queries.spark(visit.connection, row.id))) for row in rows[:PAGE]],
            more=f"{rows[PAGE - 1].name} {rows[PAGE - 1].platform}" if len(rows) > PAGE else "",
            platforms=queries.platforms(visit.connection, visit.project),
            **filters,
        )

    def case(self, visit: Visit) -> Response:
        series = queries.one_series(visit.connection, visit.project, visit.path("platform"), visit.path("name"))
        if series is None:
            raise NotThere
        if visit.format:
            period = visit.period
            export = _all_rows(lambda c, mark: queries.case_trend(c, series.id, mark, 1000, period))
            return visit.export(f"case-{series.name}", _RESULT_COLUMNS, export)
        rows = queries.case_trend(visit.connection, series.id, visit.mark, _ON_A_CHART + 1, visit.period)
        newest = rows[:_ON_A_CHART]
        return visit.show(
            "case.html",
            series=series,
            results=newest,
            chart=charts.trend(newest[::-1]),
            accuracy=charts.accuracy(newest[::-1]),
            asked=visit.period_asked,
            older=_mark_of_next(rows, _ON_A_CHART),
        )

    def scaling(self, visit: Visit) -> Response:
        workloads = queries.workloads(visit.connection, visit.project)
        asked = tuple(visit.asked(name) for name in ("workload", "platform", "mode"))
        keys = [(each.workload, each.platform, each.mode) for each in workloads]
        largest = max(workloads, key=lambda each: each.shapes, default=None)
        usual = (largest.workload, largest.platform, largest.mode) if largest else None
        key = asked if asked in keys else usual
        rows = queries.shapes(visit.connection, visit.project, key[1], key[0], key[2]) if key else []
        points = charts.scaled(rows)
        if visit.format:
            table = [{**as_dict(point.row), "cards": point.cards, "efficiency": point.efficiency} for point in points]
            columns = ("name", "nodes", "devices", "cards", "throughput", "unit", "efficiency", "testid", "run_name")
            return visit.export("scaling", columns, lambda _: table)
        return visit.show("scaling.html", workloads=workloads, key=key, points=points, chart=charts.efficiency(points))

    def stragglers(self, visit: Visit) -> Response:
        platforms = queries.platforms(visit.connection, visit.project)
        platform = visit.asked("platform") or (platforms[0] if platforms else "")
        if visit.format:
            slow = queries.stragglers(visit.connection, visit.project, platform, limit=100_000)
            return visit.export("stragglers", _SLOW_COLUMNS, lambda _: dicts(slow))
        rows = queries.sightings(visit.connection, visit.project, platform)
        return visit.show(
            "stragglers.html",
            platform=platform,
            platforms=platforms,
            strips=charts.strips(rows),
            oldest=rows[-1].ended if rows else None,
            newest=rows[0].ended if rows else None,
            recent=queries.stragglers(visit.connection, visit.project, platform),
        )

    def compare(self, visit: Visit) -> Response:
        a, b = (self._named(visit, visit.asked(side)) for side in "ab")
        if a is None or b is None:
            return visit.show("compare.html", a=a, b=b, pairs=[])
        pairs = compare_results(
            queries.results_of(visit.connection, a.id),
            queries.results_of(visit.connection, b.id),
            partial(queries.past_values, visit.connection),
        )
        if visit.format:
            rows = comparison_rows(pairs)
            return visit.export("comparison", tuple(rows[0]) if rows else ("case",), lambda _: rows)
        return visit.show("compare.html", a=a, b=b, pairs=pairs)

    def search(self, visit: Visit) -> Response:
        words = visit.asked("q").strip()[:200]
        hits = queries.search(visit.connection, visit.project, words) if words else queries.Hits((), (), ())
        return visit.show("search.html", words=words, hits=hits)

    def audit(self, visit: Visit) -> Response:
        if visit.format:
            return visit.export("audit", COLUMNS, lambda c: every_action(c, visit.project))
        before = visit.asked("before")
        mark = int(before) if before.isdecimal() and len(before) < 19 else None
        rows = newest_actions(visit.connection, visit.project, mark, PAGE + 1)
        return visit.show("audit.html", rows=rows[:PAGE], older=str(rows[PAGE - 1]["id"]) if len(rows) > PAGE else "")

    def results(self, visit: Visit) -> Response:
        """All results, for other programs."""
        filters = visit.asked("platform"), visit.asked("case")
        visit = visit.exporting()
        return visit.export("results", _RESULT_COLUMNS, lambda c: dicts(queries.export(c, visit.project, *filters)))

    def signatures(self, visit: Visit) -> Response:
        """All signatures, for other programs."""
        rows = partial(signatures.every_signature, project=visit.project)
        return visit.exporting().export("signatures", signatures.COLUMNS, rows)

    def _run(self, visit: Visit, testid: str, name: str) -> Any:
        run = queries.run(visit.connection, visit.project, testid, name)
        if run is None:
            raise NotThere
        return run

    def _named(self, visit: Visit, text: str) -> Any:
        """The run that `testid/run` names; None for an empty text."""
        testid, _, name = text.partition("/")
        return self._run(visit, testid, name) if text else None


def _all_rows(page: Callable[[Connection, Mark | None], Any]) -> Callable[[Connection], Iterable[Mapping[str, Any]]]:
    """The rows of all pages of a list."""

    def rows(connection: Connection) -> Iterable[Mapping[str, Any]]:
        mark: Mark | None = None
        while rows_of_page := page(connection, mark):
            yield from dicts(rows_of_page)
            mark = Mark.of(rows_of_page[-1])

    return rows


def _mark_of_next(rows: Sequence[Any], size: int) -> str:
    """Where the next page begins; empty if the rows fit on this one."""
    return str(Mark.of(rows[size - 1])) if len(rows) > size else ""
