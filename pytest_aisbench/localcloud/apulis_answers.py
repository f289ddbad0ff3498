"""Jobs in the words of Apulis. Its times are the server's own, though they are stamped as if they were UTC."""

from __future__ import annotations

import base64
import json
import time
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from collections.abc import Iterable

    from pytest_aisbench.localcloud.apulis_jobs import Entry

_DAYS = ("Mon", "Tue", "Wed", "Thu", "Fri", "Sat", "Sun")
_MONTHS = ("Jan", "Feb", "Mar", "Apr", "May", "Jun", "Jul", "Aug", "Sep", "Oct", "Nov", "Dec")
QUEUED = {"unapproved", "queued", "scheduling", "pausing", "paused", "killing"}


def http_date(moment: float) -> str:
    at = time.localtime(moment)
    return f"{_DAYS[at.tm_wday]}, {at.tm_mday:02d} {_MONTHS[at.tm_mon - 1]} {time.strftime('%Y %H:%M:%S', at)} GMT"


def stamp(moment: float) -> str:
    fraction = int(moment * 1_000_000) % 1_000_000
    return f"{time.strftime('%Y-%m-%dT%H:%M:%S', time.localtime(moment))}.{fraction:06d}+00:00"


def status_json(entry: Entry) -> dict[str, Any]:
    return {"jobStatus": entry.status, "jobTime": http_date(entry.submitted), "errorMsg": entry.message}


def detail_json(entry: Entry) -> dict[str, Any]:
    """As GetJobDetailV2 has it."""
    params = entry.params
    return {
        "jobId": entry.id,
        "jobName": params["jobName"],
        "userName": params["userName"],
        "vcName": params["vcName"],
        "jobStatus": entry.status,
        "jobStatusDetail": _status_detail(entry),
        "jobType": params["jobType"],
        "jobTime": http_date(entry.submitted),
        "jobParams": params,
    }


def row_json(entry: Entry) -> dict[str, Any]:
    """As the lists of version 2 and 3 have it."""
    return detail_json(entry) | {
        "errorMsg": entry.message,
        "priority": entry.priority,
        "duration": entry.duration,
    }


def encoded_row_json(entry: Entry) -> dict[str, Any]:
    """As the first list has it: what is structured comes as the database keeps it."""
    row = detail_json(entry) | {"errorMsg": entry.message}
    for name in ("jobParams", "jobStatusDetail"):
        row[name] = base64.b64encode(json.dumps(row[name]).encode()).decode()
    return row


def sorted_out(rows: Iterable[dict[str, Any]]) -> dict[str, Any]:
    rows = list(rows)
    trained = [row for row in rows if row["jobType"] != "visualization"]
    lists = {
        "queuedJobs": [row for row in trained if row["jobStatus"] in QUEUED],
        "runningJobs": [row for row in trained if row["jobStatus"] == "running"],
        "finishedJobs": [row for row in trained if row["jobStatus"] not in QUEUED | {"running"}],
        "visualizationJobs": [row for row in rows if row["jobType"] == "visualization"],
    }
    return lists | {"meta": {name: len(found) for name, found in lists.items()}}


def page_json(rows: list[dict[str, Any]], page: list[dict[str, Any]]) -> dict[str, Any]:
    """The third list: `allJobs` is right; of the others, what is not running counts as finished."""
    lists: dict[str, Any] = {
        "queuedJobs": [],
        "runningJobs": [],
        "finishedJobs": [row for row in page if row["jobStatus"] != "running"],
        "visualizationJobs": [],
    }
    meta = {name: len(found) for name, found in lists.items()} | {"totalJobs": len(rows)}
    return lists | {"allJobs": page, "meta": meta}


def _status_detail(entry: Entry) -> list[dict[str, Any]]:
    detail: dict[str, Any] = {}
    if entry.started:
        detail["startedAt"] = stamp(entry.started)
    if entry.ended:
        detail["finishedAt"] = stamp(entry.ended)
    if detail or entry.message:
        return [detail | {"message": entry.message or entry.status}]
    return []
