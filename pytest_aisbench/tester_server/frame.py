"""What all pages share: who reads, in which language, how values look, and what a browser may do with them."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from typing import Any
from urllib.parse import parse_qs, urlencode

from jinja2 import Environment, PackageLoader, StrictUndefined
from sqlalchemy import Connection, Engine
from starlette.concurrency import run_in_threadpool
from starlette.requests import Request
from starlette.responses import HTMLResponse, RedirectResponse, Response

from pytest_aisbench.domain.messages import plain
from pytest_aisbench.i18n import ENGLISH, SOURCE, language, languages
from pytest_aisbench.services.clock import stamp
from pytest_aisbench.tester_server import exports, shown
from pytest_aisbench.tester_server.door import COOKIE, Denied, Door
from pytest_aisbench.tester_server.rows import Mark
from pytest_aisbench.tester_server.tokens import PROJECT, Kind, find

_LANGUAGE = "aisbench_language"
_FORM = 4096  # bytes
_DAY_S = 86_400
_YEAR_S = 365 * _DAY_S


class NotThere(Exception):
    """404."""


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

    def path(self, name: str) -> str:
        return str(self.request.path_params[name])

    def asked(self, name: str) -> str:
        return self.request.query_params.get(name, "")

    def show(self, template: str, **values: Any) -> Response:
        return self.frame.show(self.request, template, project=self.request.path_params.get("project", ""), **values)

    def exporting(self) -> Visit:
        return self if self.format else replace(self, format="json")

    def export(
        self, name: str, columns: Sequence[str], rows: Callable[[Connection], Iterable[Mapping[str, Any]]]
    ) -> Response:
        """Written while it is read, by a connection of its own: this one is gone when the writing begins."""

        def read() -> Iterable[Mapping[str, Any]]:
            with self.frame.engine.connect() as connection:
                yield from rows(connection)

        safe = "".join(char if (char.isalnum() and char.isascii()) or char in "-_." else "_" for char in name)
        return exports.answer(self.format, safe, columns, read())


class Frame:
    def __init__(self, engine: Engine, door: Door) -> None:
        self.engine = engine
        self.door = door
        self._templates = Environment(
            loader=PackageLoader("pytest_aisbench.tester_server"),
            autoescape=True,
            undefined=StrictUndefined,
            finalize=_shown,
            trim_blocks=True,
            lstrip_blocks=True,
        )
        self._templates.filters.update(
            number=shown.number, share=shown.share, signed=shown.signed, clock=shown.clock, iso=stamp
        )
        self._templates.globals.update(
            path=shown.path,
            run_path=shown.run_path,
            result_path=shown.result_path,
            series_path=shown.series_path,
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
        told = request.query_params.get("format", "")
        project = request.path_params.get("project")
        try:
            with self.engine.connect() as connection:
                only = self.door.reader(connection, request)
                visit = Visit(self, request, connection, only, told if told in exports.FORMATS else "")
                readable = project is None or (PROJECT.fullmatch(project) and only in {None, project})
                return make(visit) if readable else self.missing(request)
        except Denied:
            return self.show(request, "login.html", status=401, project="", wrong=False)
        except NotThere:
            return self.missing(request)

    def unanswered(self, request: Request) -> Response:
        told = "The database does not answer; try again."
        return self.show(request, "message.html", status=503, project="", text=told)

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

    async def login(self, request: Request) -> Response:
        """The read token is kept by the browser for a day, where no script can read it."""
        body = b""
        async for part in request.stream():
            body += part
            if len(body) > _FORM:
                return self.show(request, "login.html", status=401, project="", wrong=True)
        token = parse_qs(body.decode(errors="replace")).get("token", [""])[0].strip()
        return await run_in_threadpool(self._login, request, token)

    def _login(self, request: Request, token: str) -> Response:
        with self.engine.connect() as connection:
            holder = find(connection, token)
        if holder is None or holder.revoked or holder.kind is not Kind.READ:
            return self.show(request, "login.html", status=401, project="", wrong=True)
        answer = RedirectResponse("/", 303)
        secure = request.url.scheme == "https" or request.headers.get("x-forwarded-proto") == "https"
        answer.set_cookie(COOKIE, token, max_age=_DAY_S, httponly=True, samesite="strict", secure=secure)
        return answer

    async def logout(self, request: Request) -> Response:
        answer = RedirectResponse("/", 303)
        answer.delete_cookie(COOKIE, httponly=True, samesite="strict")
        return answer


def chosen_language(asked: str, kept: str, accepted: str) -> str:
    """By the address, by the cookie, or the one that the browser ranks first; English if we have none of them."""
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


def _shown(value: Any) -> Any:
    """What somebody sent is one printable line, whatever it was; what a template made is left as it is."""
    return plain(value) if type(value) is str and not value.isprintable() else value


def _here(request: Request, **changed: str) -> str:
    """This page's address, with some of its questions asked otherwise; an empty one is not asked."""
    where = "/" + request.scope["raw_path"].decode("ascii", "replace").lstrip("/")  # never another host's
    asked = {**dict(request.query_params), **changed}
    query = urlencode({name: value for name, value in asked.items() if value})
    return f"{where}?{query}" if query else where
