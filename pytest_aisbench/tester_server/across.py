"""What pages ask of cases across runs: their series, their shapes, their slow cards. Bounded, and by an index too."""

from __future__ import annotations

from typing import Any

from sqlalchemy import Connection, Select, func, select

from pytest_aisbench.tester_server.rows import PAGE, Found, Mark, behind, results
from pytest_aisbench.tester_server.tables import RESULTS, RUNS, SERIES, STRAGGLERS

_SIGHTING = [STRAGGLERS.c[name] for name in ("ended", "node", "card", "ratio", "cost")]


def platforms(connection: Connection, project: str) -> list[str]:
    found = select(SERIES.c.platform).where(SERIES.c.project == project).distinct().order_by(SERIES.c.platform)
    return list(connection.execute(found).scalars())


def series(connection: Connection, project: str, *, platform: str = "", after: str = "", limit: int = PAGE) -> Found:
    """By name, with the last result of each."""
    last = ("verdict", "status", "throughput", "accuracy", "reference")
    columns = [RESULTS.c[name].label(f"last_{name}") for name in last]
    found = select(SERIES, *columns).join(RESULTS, RESULTS.c.id == SERIES.c.last).where(SERIES.c.project == project)
    place = SERIES.c.name + " " + SERIES.c.platform
    if platform:
        found = found.where(SERIES.c.platform == platform)
    if after:
        found = found.where(place > after)
    return connection.execute(found.order_by(place).limit(limit)).all()


def one_series(connection: Connection, project: str, platform: str, name: str) -> Any:
    where = SERIES.c.project == project, SERIES.c.platform == platform, SERIES.c.name == name
    return connection.execute(select(SERIES).where(*where)).one_or_none()


def trend(connection: Connection, series_id: int, before: Mark | None = None, limit: int = 100) -> Found:
    """The newest first."""
    found = results().where(RESULTS.c.series == series_id)
    return connection.execute(behind(found, RESULTS, before).limit(limit)).all()


def spark(connection: Connection, series_id: int, limit: int = 24) -> list[float]:
    """The last throughputs, oldest first."""
    found = select(RESULTS.c.throughput).where(RESULTS.c.series == series_id)
    values = connection.execute(behind(found, RESULTS, None).limit(limit)).scalars().all()
    return [value for value in reversed(values) if value is not None]


def workloads(connection: Connection, project: str) -> Found:
    """What has been measured in more than one shape, and where."""
    key = SERIES.c.workload, SERIES.c.platform, SERIES.c.mode
    found = select(*key, func.count().label("shapes")).where(SERIES.c.project == project).group_by(*key)
    return connection.execute(found.order_by(*key)).all()


def shapes(connection: Connection, project: str, platform: str, workload: str, mode: str) -> Found:
    """The last result of every shape, from few cards to many."""
    key = {"project": project, "platform": platform, "workload": workload, "mode": mode}
    last = [RESULTS.c[name] for name in ("throughput", "verdict", "status", "ended", "run")]
    columns = SERIES.c.name, SERIES.c.nodes, SERIES.c.devices, SERIES.c.mode, SERIES.c.unit, *last, RUNS.c.testid
    found = select(*columns, RUNS.c.name.label("run_name")).join(RESULTS, RESULTS.c.id == SERIES.c.last)
    found = found.join(RUNS, RUNS.c.id == RESULTS.c.run).where(
        *(SERIES.c[name] == value for name, value in key.items())
    )
    rows = connection.execute(found.limit(500)).all()
    return sorted(rows, key=lambda row: ((row.nodes or 0) * (row.devices or 0), row.nodes or 0))


def sightings(connection: Connection, project: str, platform: str, limit: int = 2000) -> Found:
    """Slow cards and nodes, the newest first."""
    return connection.execute(_seen(select(*_SIGHTING), project, platform).limit(limit)).all()


def stragglers(connection: Connection, project: str, platform: str, limit: int = PAGE) -> Found:
    """The same, and where each was seen."""
    found = select(*_SIGHTING, RESULTS.c.name, RUNS.c.testid, RUNS.c.name.label("run_name"))
    found = found.join(RESULTS, RESULTS.c.id == STRAGGLERS.c.result).join(RUNS, RUNS.c.id == RESULTS.c.run)
    return connection.execute(_seen(found, project, platform).limit(limit)).all()


def _seen(found: Select[Any], project: str, platform: str) -> Select[Any]:
    where = STRAGGLERS.c.project == project, STRAGGLERS.c.platform == platform
    return found.where(*where).order_by(STRAGGLERS.c.ended.desc())
