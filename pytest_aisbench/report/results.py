"""`results.json`, a run for programs, and `fields.json`, the figures that standards ask for.

The tables below list every key of `results.json` and where its value comes from. Programs read these keys: a field of a
dataclass may be renamed, a key may not. A new key is added here, in `docs/results.schema.json` and in the reference.
"""

from __future__ import annotations

import json
import threading
from collections.abc import Callable, Iterable, Iterator, Mapping
from pathlib import Path
from typing import Any, TypeVar

import pytest

from pytest_aisbench.errors import LedgerError
from pytest_aisbench.i18n import ENGLISH
from pytest_aisbench.judge.standards import TIME, Field, standard_fields
from pytest_aisbench.model.clock import stamp
from pytest_aisbench.model.codec import dump
from pytest_aisbench.model.job import TrainedWith
from pytest_aisbench.model.results import CaseEntry, Executor, RunEntry, Straggler, TrialEntry, Value
from pytest_aisbench.model.verdict import Finding
from pytest_aisbench.report.columns import trained_with_text
from pytest_aisbench.report.text import write_bytes
from pytest_aisbench.stash import SETTINGS

NAME = "results.json"
_PAUSE_S = 1.5  # between two writings while cases end: readers are promised that the file is at most 2 s old
T = TypeVar("T")
Table = Mapping[str, Callable[[T], Any]]  # key of the document: how its value is taken from the entry
_RUN: Table[RunEntry] = {
    "schema": lambda run: run.schema,
    "run": lambda run: run.run,
    "started": lambda run: run.started,
    "finished": lambda run: run.finished,
    "exit_code": lambda run: run.exit_code,
    "settings": lambda run: run.settings,
    "cases": lambda run: [case_document(case) for case in run.cases],
    "uploads": lambda run: run.uploads,
    "origin": lambda run: origin_document(run.executor),
}
_ORIGIN: Table[Executor] = {
    "server": lambda origin: origin.name or None,
    "build": lambda origin: origin.build or None,
    "number": lambda origin: origin.number,
    "url": lambda origin: origin.url or None,
    "commit": lambda origin: origin.commit or None,
    "branch": lambda origin: origin.branch or None,
    "modified": lambda origin: origin.modified,
}
_CASE: Table[CaseEntry] = {
    "id": lambda case: case.id,
    "workload": lambda case: case.workload,
    "nodes": lambda case: case.nodes,
    "devices_per_node": lambda case: case.devices_per_node,
    "mode": lambda case: case.mode,
    "verdict": lambda case: case.verdict,
    "reason": lambda case: case.reason,
    "card_hours": lambda case: case.card_hours,
    "metrics": lambda case: {
        name: _row(_LOGGED_METRIC if value.source else _METRIC, value) for name, value in case.metrics.items()
    },
    "findings": lambda case: [finding_document(finding) for finding in case.findings],
    "trials": lambda case: [_row(_TRIAL, trial) for trial in case.trials],
    "parameters": lambda case: dict(case.parameters),
    "trained_with": lambda case: trained_with_document(case.trained_with),
}
_TRAINED_WITH: Table[TrainedWith] = {
    "text": lambda software: trained_with_text(software, ENGLISH),
    "name": lambda software: software.name or None,
    "version": lambda software: software.version or None,
    "source": lambda software: software.source or None,
    "miniature": lambda software: software.miniature,
    "instead_of": lambda software: software.instead_of or None,
    "real": lambda software: software.real or None,
}
_METRIC: Table[Value] = {"value": lambda metric: metric.value, "unit": lambda metric: metric.unit}
_LOGGED_METRIC: Table[Value] = {**_METRIC, "source": lambda metric: metric.source}
_FINDING: Table[Finding] = {
    "metric": lambda finding: finding.metric,
    "outcome": lambda finding: finding.outcome,
    "measured": lambda finding: finding.measured,
    "wanted": lambda finding: finding.wanted,
    "text": lambda finding: finding.text,
}
_TRIAL: Table[TrialEntry] = {
    "trial": lambda trial: trial.trial,
    "job_id": lambda trial: trial.job_id,
    "platform_phase": lambda trial: trial.platform_phase,
    "phase": lambda trial: trial.phase,
    "queued_s": lambda trial: trial.queued_s,
    "ran_s": lambda trial: trial.ran_s,
    "throughput_by_rank": lambda trial: trial.throughput_by_rank,
    "throughput_by_server": lambda trial: trial.throughput_by_server,
    "accuracy_by_server": lambda trial: trial.accuracy_by_server,
    "stragglers": lambda trial: [_row(_STRAGGLER, straggler) for straggler in trial.stragglers],
    "logs": lambda trial: trial.logs,
    "stage": lambda trial: trial.stage,
    "endpoints": lambda trial: {name: address or None for name, address in trial.endpoints.items()},
    "usage": lambda trial: trial.usage,
    "hosts": lambda trial: trial.hosts,
}
_STRAGGLER: Table[Straggler] = {
    "node": lambda straggler: straggler.node,
    "card": lambda straggler: straggler.card,
    "rank": lambda straggler: straggler.rank,
    "ratio": lambda straggler: straggler.ratio,
    "cost": lambda straggler: straggler.cost,
    "host": lambda straggler: straggler.host or None,
}


def results_document(entry: RunEntry) -> Any:
    """The run as `results.json` has it."""
    return _row(_RUN, entry)


def case_document(case: CaseEntry) -> Any:
    return _row(_CASE, case)


def origin_document(origin: Executor) -> Any:
    """Who started a run, and from which commit."""
    return _row(_ORIGIN, origin)


def trained_with_document(software: TrainedWith | None) -> Any:
    return _row(_TRAINED_WITH, software) if software else None


def finding_document(finding: Finding) -> Any:
    return _row(_FINDING, finding)


def _row(table: Table[T], entry: T) -> dict[str, Any]:
    """Values of the entry as JSON data; a number that is not finite is an error."""
    return {key: dump(take(entry)) for key, take in table.items()}


def write_results(entry: RunEntry, folder: Path) -> Path:
    return Results(folder).write(entry)


class Results:
    """The file of one run, replaced whole each time. What did not change of a case or an upload is serialized once."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self._cases: dict[str, tuple[CaseEntry, bytes]] = {}
        self._uploads: dict[tuple[str, ...], bytes] = {}
        self._lock = threading.Lock()

    def write(self, entry: RunEntry) -> Path:
        """Write strict JSON: no NaN, and a lone surrogate of a mangled log becomes `?`."""
        path = self._folder / NAME
        with self._lock:
            write_bytes(path, self._parts(entry))
        return path

    def _parts(self, entry: RunEntry) -> Iterator[bytes]:
        comma = b"{\n "
        for key, take in _RUN.items():
            yield comma + _text(key) + b": "
            if key == "cases" and entry.cases:
                yield from self._case_parts(entry.cases)
            elif key == "uploads" and entry.uploads:
                yield b"[" + b", ".join(map(self._upload, entry.uploads)) + b"]"
            else:
                yield _text(dump(take(entry)))
            comma = b",\n "
        yield b"\n}\n"

    def _upload(self, upload: Mapping[str, str]) -> bytes:
        facts = tuple(upload.values())
        return self._uploads.get(facts) or self._uploads.setdefault(facts, _text(dump(upload)))

    def _case_parts(self, cases: Iterable[CaseEntry]) -> Iterator[bytes]:
        comma = b"[\n  "
        for case in cases:
            written, text = self._cases.get(case.id, (None, b""))
            if written is not case:
                text = _text(case_document(case))
                self._cases[case.id] = (case, text)
            yield comma
            yield text
            comma = b",\n  "
        yield b"\n ]"


class ResultsWriter:
    """Keeps `results.json` no older than 2 s while cases end, in a thread of its own.

    The file holds all cases, so writing it after each would cost the more the more cases there are.
    """

    def __init__(self, folder: Path, entry: Callable[[], RunEntry]) -> None:
        """`entry` is the run as it is at the moment of writing."""
        self._folder, self._inode = folder, folder.stat().st_ino if folder.exists() else 0
        self._results = Results(folder)
        self._entry = entry
        self._writing = threading.Lock()  # from before the entry is made: an older one must not replace a newer one
        self._changed = threading.Event()
        self._closing = threading.Event()
        self._error: Exception | None = None
        self._thread = threading.Thread(target=self._work, name="aisbench-results", daemon=True)
        self._thread.start()

    def write(self) -> None:
        """Write the file now; raises if the folder is another one: then reports that were in it are lost."""
        with self._writing:
            if not self._folder.exists() or self._folder.stat().st_ino != self._inode:
                raise OSError(f"{self._folder} was removed while this run used it; verdicts are in the ledger")
            self._results.write(self._entry())

    def write_soon(self) -> None:
        """Write the file within 2 s; raises what kept the last such writing from succeeding."""
        error, self._error = self._error, None
        if error:
            raise error
        self._changed.set()

    def close(self) -> None:
        """Write no more by itself; `write` still does."""
        self._closing.set()
        self._changed.set()
        self._thread.join()

    def _work(self) -> None:
        while True:
            self._changed.wait()
            if self._closing.is_set():
                return
            self._changed.clear()
            try:
                self.write()
            except (LedgerError, OSError) as error:  # the next `write_soon` raises it
                self._error = error
            self._closing.wait(_PAUSE_S)


def _text(value: Any) -> bytes:
    """JSON on one line, since only that is encoded in C: each case is one line of the file."""
    return json.dumps(value, allow_nan=False, ensure_ascii=False).encode("utf-8", "replace")


# `fields.json`

FIELDS_NAME = "fields.json"
SCHEMA = "aisbench-fields/1"
ABOUT = "Named after IEEE 2937 and T/CESA 1169 as ais-bench reports them; no conformity to a standard is claimed."


class Fields:
    """Reporter: `fields.json`, the figures that IEEE 2937 and T/CESA 1169 ask for, case by case."""

    order = 60

    def __init__(self, config: pytest.Config, folder: Path) -> None:
        self._folder = folder
        self._config = config.stash[SETTINGS].tester_access.config

    def case(self, entry: CaseEntry) -> None:
        """The file is written at the end of the run."""

    def run(self, entry: RunEntry) -> None:
        write_bytes(self._folder / FIELDS_NAME, self._parts(entry))

    def _parts(self, entry: RunEntry) -> Iterator[bytes]:
        """Case by case: those of a thousand have megabytes."""
        head = _text({"schema": SCHEMA, "about": ABOUT, "run": entry.run})
        yield head.removesuffix(b"}") + b',\n "cases": {'
        comma = b"\n  "
        for case in entry.cases:
            yield comma + _text(case.id) + b": " + _text(fields_as_json(standard_fields(case, self._config)))
            comma = b",\n  "
        yield b"\n }}\n"


def fields_as_json(fields: Mapping[str, Field]) -> dict[str, dict[str, Any]]:
    """The fields as JSON data: a time is a date in UTC."""
    return {name: _field_as_json(field) for name, field in fields.items()}


def _field_as_json(field: Field) -> dict[str, Any]:
    value, unit = field.value, field.unit
    if unit == TIME:
        unit = "UTC"
        if value is not None:
            value = stamp(value)
    return {"value": value, "unit": unit, "source": field.source, "null_reason": field.null_reason}
