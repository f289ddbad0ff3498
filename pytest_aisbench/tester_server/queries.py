"""All that pages ask of the database. Each query is bounded, and answered by an index however much is stored."""

from __future__ import annotations

import json
from collections.abc import Iterator
from typing import Any, NamedTuple

from sqlalchemy import Connection, Select, and_, case, func, or_, select

from pytest_aisbench.model import results
from pytest_aisbench.model.results import ATTACHMENTS
from pytest_aisbench.model.verdict import Ruling
from pytest_aisbench.tester_server.schema import (
    AUDIT,
    CHUNK,
    PAGE,
    PARCELS,
    RESULTS,
    RUNS,
    SERIES,
    STRAGGLERS,
    TOKENS,
    Mark,
    Rows,
    behind,
    result_rows,
)


class Period(NamedTuple):
    """Which runs a reader wants to see: those that ended in a span of time, or come from a commit."""

    since: float | None = None
    until: float | None = None  # the first moment that does not belong to it
    commit: str = ""  # the beginning of it


ALL_TIME = Period()


def _within(query: Select[Any], table: Any, period: Period) -> Select[Any]:
    """`query` has RUNS among its tables; `table` is the one whose time counts."""
    if period.since is not None:
        query = query.where(table.c.ended >= period.since)
    if period.until is not None:
        query = query.where(table.c.ended < period.until)
    if period.commit:
        query = query.where(RUNS.c.commit_id.startswith(period.commit, autoescape=True))
    return query


# Projects, runs and results

_SEARCHED = 10_000  # the newest results, whose reasons are searched


def projects(connection: Connection, only: str | None) -> Rows:
    """Projects by name, with the time of their last run; a project exists once it has a token."""
    last = select(func.max(RUNS.c.ended)).where(RUNS.c.project == TOKENS.c.project).scalar_subquery()
    query = select(TOKENS.c.project.label("name"), last.label("ended")).distinct().order_by(TOKENS.c.project)
    return connection.execute(query if only is None else query.where(TOKENS.c.project == only)).all()


def runs(
    connection: Connection, project: str, *, platform: str = "", only_bad: bool = False, period: Period = ALL_TIME,
    before: Mark | None = None, limit: int = PAGE,
) -> Rows:  # fmt: skip
    """The newest first."""
    query = _within(select(RUNS).where(RUNS.c.project == project), RUNS, period)
    if platform:
        query = query.where(RUNS.c.platform == platform)
    if only_bad:
        ended_badly = and_(RUNS.c.told > 0, func.coalesce(RUNS.c.exit_code, -1) != 0)
        query = query.where(or_(RUNS.c.passed < RUNS.c.cases, ended_badly))
    return connection.execute(behind(query, RUNS, before).limit(limit)).all()


def run(connection: Connection, project: str, testid: str, name: str) -> Any:
    where = RUNS.c.project == project, RUNS.c.testid == testid, RUNS.c.name == name
    return connection.execute(select(RUNS).where(*where)).one_or_none()


def run_before(connection: Connection, of: Any) -> Any:
    """The run before it on the same platform, for comparison."""
    query = select(RUNS).where(RUNS.c.project == of.project, RUNS.c.platform == of.platform)
    return connection.execute(behind(query, RUNS, Mark.of(of)).limit(1)).one_or_none()


def end_of(connection: Connection, of: Any) -> dict[str, Any]:
    """The upload about how a run ended; empty if there is none."""
    where = {"project": of.project, "testid": of.testid, "kind": results.RUNS, "run_id": of.name, "attempt": of.told}
    query = select(PARCELS.c.body).where(*(PARCELS.c[name] == value for name, value in where.items()))
    body = connection.execute(query.order_by(PARCELS.c.id).limit(1)).scalar_one_or_none()
    return dict(json.loads(body)) if body else {"unjudged": {}, "missing": []}


def results_of(connection: Connection, run_id: int, limit: int | None = None) -> Rows:
    """The results of a run: failures first, passes last."""
    bad = case(
        {Ruling.FAILED.value: 0, Ruling.BROKEN.value: 1, Ruling.PASSED.value: 3}, value=RESULTS.c.verdict, else_=2
    )
    query = result_rows().where(RESULTS.c.run == run_id).order_by(bad, RESULTS.c.name).limit(limit)
    return connection.execute(query).all()


def result(connection: Connection, run_id: int, name: str) -> Any:
    return connection.execute(result_rows().where(RESULTS.c.run == run_id, RESULTS.c.name == name)).one_or_none()


def parcel(connection: Connection, number: int) -> Any:
    return connection.execute(select(PARCELS).where(PARCELS.c.id == number)).one()


def attempts(connection: Connection, project: str, testid: str, run_id: str) -> Rows:
    """All uploads about a case in a run, with their senders."""
    columns = PARCELS.c.id, PARCELS.c.attempt, PARCELS.c.key, PARCELS.c.received, TOKENS.c.label, PARCELS.c.token
    where = PARCELS.c.project == project, PARCELS.c.testid == testid, PARCELS.c.run_id == run_id
    query = (
        select(*columns).join(TOKENS, TOKENS.c.id == PARCELS.c.token).where(*where, PARCELS.c.kind == results.RESULTS)
    )
    return connection.execute(query.order_by(PARCELS.c.attempt, PARCELS.c.id).limit(100)).all()


def attachments(connection: Connection, of: Any) -> Rows:
    """What the tests of a run uploaded beside its results."""
    mine = PARCELS.c.run_id.startswith(f"{of.name}.", autoescape=True)
    where = PARCELS.c.project == of.project, PARCELS.c.testid == of.testid, PARCELS.c.kind == ATTACHMENTS
    return connection.execute(select(PARCELS).where(*where, mine).order_by(PARCELS.c.id).limit(200)).all()


class Hits(NamedTuple):
    runs: Rows
    series: Rows
    results: Rows


def search(connection: Connection, project: str, words: str, limit: int = PAGE) -> Hits:
    """Runs and cases by a part of their names, jobs and keys by the whole, and the newest results by their reasons."""
    by_run = or_(*(RUNS.c[name].icontains(words, autoescape=True) for name in ("name", "testid", "platform")))
    run_query = behind(select(RUNS).where(RUNS.c.project == project, by_run), RUNS, None).limit(limit)
    by_case = or_(*(SERIES.c[name].icontains(words, autoescape=True) for name in ("name", "workload")))
    series_query = select(SERIES).where(SERIES.c.project == project, by_case).order_by(SERIES.c.name).limit(limit)
    job = result_rows().where(RESULTS.c.project == project, RESULTS.c.job_id == words).limit(limit)
    key = result_rows().join(PARCELS, PARCELS.c.id == RESULTS.c.parcel)
    key = key.where(PARCELS.c.project == project, PARCELS.c.key == words).limit(limit)
    newest = select(RESULTS.c.id).where(RESULTS.c.project == project).order_by(RESULTS.c.id.desc())
    recent = RESULTS.c.id >= func.coalesce(newest.offset(_SEARCHED - 1).limit(1).scalar_subquery(), 0)
    by_reason = result_rows().where(
        RESULTS.c.project == project, recent, RESULTS.c.reason.icontains(words, autoescape=True)
    )
    by_reason = by_reason.order_by(RESULTS.c.id.desc()).limit(limit)
    hits = {row.id: row for each in (job, key, by_reason) for row in connection.execute(each)}
    return Hits(
        connection.execute(run_query).all(), connection.execute(series_query).all(), list(hits.values())[:limit]
    )


def sender(connection: Connection, of: Any) -> Any:
    """The line of the audit about the upload `of`."""
    where = AUDIT.c.project == of.project, AUDIT.c.testid == of.testid, AUDIT.c.run_id == of.run_id
    query = select(AUDIT).where(*where, AUDIT.c.key == of.key, AUDIT.c.status == 201)
    return connection.execute(query.limit(1)).one_or_none()


def export(connection: Connection, project: str, platform: str = "", name: str = "") -> Iterator[Any]:
    """Every result, oldest first, a chunk at a time."""
    last = 0
    query = result_rows().where(RESULTS.c.project == project).order_by(RESULTS.c.id).limit(CHUNK)
    if platform:
        query = query.where(SERIES.c.platform == platform)
    if name:
        query = query.where(RESULTS.c.name == name)
    while rows := connection.execute(query.where(RESULTS.c.id > last)).all():
        yield from rows
        last = rows[-1].id


# Trends: cases across runs, their shapes and their slow cards

_SIGHTING = [STRAGGLERS.c[name] for name in ("ended", "node", "card", "ratio", "cost")]


def platforms(connection: Connection, project: str) -> list[str]:
    query = select(SERIES.c.platform).where(SERIES.c.project == project).distinct().order_by(SERIES.c.platform)
    return list(connection.execute(query).scalars())


def series(connection: Connection, project: str, *, platform: str = "", after: str = "", limit: int = PAGE) -> Rows:
    """Cases on a platform across runs, by name, with the last result of each."""
    last = ("verdict", "status", "throughput", "accuracy", "reference")
    columns = [RESULTS.c[name].label(f"last_{name}") for name in last]
    query = select(SERIES, *columns).join(RESULTS, RESULTS.c.id == SERIES.c.last).where(SERIES.c.project == project)
    place = SERIES.c.name + " " + SERIES.c.platform
    if platform:
        query = query.where(SERIES.c.platform == platform)
    if after:
        query = query.where(place > after)
    return connection.execute(query.order_by(place).limit(limit)).all()


def one_series(connection: Connection, project: str, platform: str, name: str) -> Any:
    where = SERIES.c.project == project, SERIES.c.platform == platform, SERIES.c.name == name
    return connection.execute(select(SERIES).where(*where)).one_or_none()


def case_trend(
    connection: Connection, series_id: int, before: Mark | None = None, limit: int = 100, period: Period = ALL_TIME
) -> Rows:
    """The results of one case across runs, the newest first."""
    query = _within(result_rows().where(RESULTS.c.series == series_id), RESULTS, period)
    return connection.execute(behind(query, RESULTS, before).limit(limit)).all()


def spark(connection: Connection, series_id: int, limit: int = 24) -> list[float]:
    """The last throughputs, oldest first."""
    query = select(RESULTS.c.throughput).where(RESULTS.c.series == series_id)
    values = connection.execute(behind(query, RESULTS, None).limit(limit)).scalars().all()
    return [value for value in reversed(values) if value is not None]


def past_values(connection: Connection, of: Any, limit: int = 40) -> Rows:
    """Throughput and accuracy of the results of a case up to `of`, oldest first."""
    series = one_series(connection, of.project, of.platform, of.name)
    query = select(RESULTS.c.id, RESULTS.c.ended, RESULTS.c.throughput, RESULTS.c.accuracy)
    query = query.where(RESULTS.c.series == series.id, RESULTS.c.ended <= of.ended)
    return connection.execute(behind(query, RESULTS, None).limit(limit)).all()[::-1]


def workloads(connection: Connection, project: str) -> Rows:
    """Each workload on each platform, and in how many shapes it was measured."""
    key = SERIES.c.workload, SERIES.c.platform, SERIES.c.mode
    query = select(*key, func.count().label("shapes")).where(SERIES.c.project == project).group_by(*key)
    return connection.execute(query.order_by(*key)).all()


def shapes(connection: Connection, project: str, platform: str, workload: str, mode: str) -> Rows:
    """The last result of every shape, from few cards to many."""
    key = {"project": project, "platform": platform, "workload": workload, "mode": mode}
    last = [RESULTS.c[name] for name in ("throughput", "verdict", "status", "ended", "run")]
    columns = SERIES.c.name, SERIES.c.nodes, SERIES.c.devices, SERIES.c.mode, SERIES.c.unit, *last, RUNS.c.testid
    query = select(*columns, RUNS.c.name.label("run_name")).join(RESULTS, RESULTS.c.id == SERIES.c.last)
    query = query.join(RUNS, RUNS.c.id == RESULTS.c.run).where(
        *(SERIES.c[name] == value for name, value in key.items())
    )
    rows = connection.execute(query.limit(500)).all()
    return sorted(rows, key=lambda row: ((row.nodes or 0) * (row.devices or 0), row.nodes or 0))


def sightings(connection: Connection, project: str, platform: str, limit: int = 2000) -> Rows:
    """Slow cards and nodes, the newest first."""
    return connection.execute(_seen(select(*_SIGHTING), project, platform).limit(limit)).all()


def stragglers(connection: Connection, project: str, platform: str, limit: int = PAGE) -> Rows:
    """Slow cards and nodes, the newest first, with the run and case of each."""
    query = select(*_SIGHTING, RESULTS.c.name, RUNS.c.testid, RUNS.c.name.label("run_name"))
    query = query.join(RESULTS, RESULTS.c.id == STRAGGLERS.c.result).join(RUNS, RUNS.c.id == RESULTS.c.run)
    return connection.execute(_seen(query, project, platform).limit(limit)).all()


def _seen(query: Select[Any], project: str, platform: str) -> Select[Any]:
    where = STRAGGLERS.c.project == project, STRAGGLERS.c.platform == platform
    return query.where(*where).order_by(STRAGGLERS.c.ended.desc())
