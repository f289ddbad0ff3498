"""What is shown of a result, made of what was sent; the same body makes the same rows."""

from __future__ import annotations

from collections.abc import Mapping
from datetime import datetime
from typing import Any

from sqlalchemy import Connection, case, delete, func, insert, select, update
from sqlalchemy.dialects import postgresql, sqlite

from pytest_aisbench.domain.text import plain
from pytest_aisbench.domain.verdict import Ruling
from pytest_aisbench.tester_server.contract import number
from pytest_aisbench.tester_server.database import is_sqlite
from pytest_aisbench.tester_server.tables import RESULTS, RUNS, SERIES, STRAGGLERS

_MOST = 256  # slow cards of one result


def derive(connection: Connection, parcel: int, project: str, body: Mapping[str, Any], received: float) -> None:
    """One row for a case in a run, that of its last attempt. The run's row is locked first: its counts are exact."""
    told = _told(body, received)
    run = _upsert(
        connection,
        RUNS,
        ("project", "testid", "name"),
        {
            "project": project,
            "testid": body["testid"],
            "name": told["run"],
            "platform": told["platform"],
            "started": told["started"],
            "ended": told["ended"],
            **dict.fromkeys(("card_hours", "cases", "passed", "failed", "broken", "inconclusive"), 0),
        },
        changed="platform",
    )
    place = RESULTS.c.run == run, RESULTS.c.name == told["name"]
    known = connection.execute(select(RESULTS.c.id, RESULTS.c.attempt).where(*place)).one_or_none()
    if known and known.attempt >= body["attempt"]:
        return
    series = _series(connection, project, told, new=known is None)
    row = {name: told[name] for name in RESULTS.c.keys() if name in told and name != "run"}  # noqa: SIM118 - columns
    row |= {"run": run, "series": series, "parcel": parcel, "attempt": body["attempt"], "project": project}
    if known:
        connection.execute(delete(STRAGGLERS).where(STRAGGLERS.c.result == known.id))
        connection.execute(update(RESULTS).where(RESULTS.c.id == known.id).values(row))
        result = known.id
    else:
        result = connection.execute(insert(RESULTS).values(row).returning(RESULTS.c.id)).scalar_one()
    newest = SERIES.c.last_ended.is_(None) | (SERIES.c.last_ended <= told["ended"])
    connection.execute(
        update(SERIES).where(SERIES.c.id == series, newest).values(last=result, last_ended=told["ended"])
    )
    common = {"result": result, "series": series, "project": project, "platform": told["platform"]}
    slow = [{**common, "ended": told["ended"], **each} for each in told["stragglers"]]
    if slow:
        connection.execute(insert(STRAGGLERS), slow)
    _recount(connection, run)


def _series(connection: Connection, project: str, told: Mapping[str, Any], *, new: bool) -> int:
    values = {name: told[name] for name in ("platform", "name", "workload", "mode", "unit", "nodes", "devices")}
    row = {"project": project, **values, "results": 0}
    series = _upsert(connection, SERIES, ("project", "platform", "name"), row, changed="unit")
    if new:
        more = update(SERIES).where(SERIES.c.id == series).values(results=SERIES.c.results + 1)
        connection.execute(more)
    return series


def _upsert(connection: Connection, table: Any, unique: tuple[str, ...], row: dict[str, Any], *, changed: str) -> int:
    """The id of the row, which is locked from now on."""
    made: Any = sqlite.insert(table) if is_sqlite(connection) else postgresql.insert(table)
    made = made.values(row)
    made = made.on_conflict_do_update(index_elements=list(unique), set_={changed: made.excluded[changed]})
    return int(connection.execute(made.returning(table.c.id)).scalar_one())


def _recount(connection: Connection, run: int) -> None:
    counts = {
        ruling.value.lower(): func.coalesce(func.sum(case((RESULTS.c.verdict == ruling.value, 1), else_=0)), 0)
        for ruling in Ruling
    }
    columns = {
        **counts,
        "cases": func.count(),
        "card_hours": func.sum(RESULTS.c.card_hours),
        "started": func.min(RESULTS.c.started),
        "ended": func.max(RESULTS.c.ended),
    }
    found = select(*(column.label(name) for name, column in columns.items())).where(RESULTS.c.run == run)
    connection.execute(update(RUNS).where(RUNS.c.id == run).values(dict(connection.execute(found).one()._mapping)))  # noqa: SLF001 - the documented name


def _told(body: Mapping[str, Any], received: float) -> dict[str, Any]:
    case_, config, job = _object(body.get("case")), _object(body.get("config")), _object(body.get("job"))
    measured, band = _object(body.get("measured")), _object(case_.get("band"))
    name = str(case_.get("id") or plain(str(config.get("Model") or "stub").replace("/", "_"), 80))
    run_id = str(body["run_id"])
    suffix = f".{name}"
    ended = min(_moment(measured, "total_end_time") or received, received)  # a clock may be wrong, ours is one
    throughput = _object(measured.get("throughput_ratio"))
    return {
        "run": run_id.removesuffix(suffix) or run_id,
        "name": name,
        "platform": _text(job.get("platform"), 80).replace("/", "_") or "unknown",
        "workload": str(case_.get("workload") or name),
        "mode": str(case_.get("mode") or ""),
        "nodes": case_.get("nodes"),
        "devices": case_.get("devices_per_node"),
        "verdict": case_.get("verdict"),
        "status": body["status"],
        "reason": _text(case_.get("reason"), 1000),
        "job_id": _text(job.get("job_id"), 200) or None,
        "throughput": number(throughput.get("value")),
        "unit": _text(throughput.get("unit"), 40),
        "accuracy": number(_object(measured.get("accuracy")).get("value")),
        **{edge: number(band.get(edge)) for edge in ("reference", "low", "high")},
        "card_hours": number(case_.get("card_hours")) or 0.0,
        "started": min(_moment(measured, "total_start_time") or ended, ended),
        "ended": ended,
        "stragglers": _stragglers(case_.get("stragglers")),
    }


def _stragglers(told: Any) -> list[dict[str, Any]]:
    found = []
    for each in told[:_MOST] if isinstance(told, list) else ():
        node, card = _object(each).get("node"), _object(each).get("card")
        ratio, cost = number(_object(each).get("ratio")), number(_object(each).get("cost"))
        if _counted(node) and (card is None or _counted(card)) and ratio is not None and cost is not None:
            found.append({"node": node, "card": card, "ratio": ratio, "cost": cost})
    return found


def _counted(value: Any) -> bool:
    return isinstance(value, int) and not isinstance(value, bool) and 0 <= value < 2**31


def _moment(measured: Mapping[str, Any], key: str) -> float | None:
    """Seconds since the epoch; a time without a zone is the sender's own, and nobody knows which."""
    value = _object(measured.get(key)).get("value")
    if not isinstance(value, str) or not value.endswith("Z"):
        return None
    try:
        moment = datetime.fromisoformat(value[:-1] + "+00:00").timestamp()
    except (ValueError, OverflowError):
        return None
    return moment if moment >= 0 else None


def _object(value: Any) -> Mapping[str, Any]:
    return value if isinstance(value, dict) else {}


def _text(value: Any, limit: int) -> str:
    return plain(str(value), limit) if value is not None else ""
