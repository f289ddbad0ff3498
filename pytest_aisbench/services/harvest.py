"""Reading a trial's result objects, and objecting to whatever is not exactly as it should be."""

from __future__ import annotations

import math
import re
from collections.abc import Iterable
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from pathlib import Path

from pytest_aisbench.domain.case import Case
from pytest_aisbench.domain.job import Phase
from pytest_aisbench.domain.messages import message
from pytest_aisbench.domain.metric import ACCURACY, THROUGHPUT, Measurement, MissingResult
from pytest_aisbench.domain.ports import Head, Store
from pytest_aisbench.domain.stage import StoreUrl
from pytest_aisbench.domain.trial import Trial
from pytest_aisbench.errors import AisbenchError
from pytest_aisbench.services import logs, pacing
from pytest_aisbench.services.traits import told

RANK_SIZE = "ranksize.json"
_NUMBER = re.compile(r"[+-]?(\d+(\.\d*)?|\.\d+)([eE][+-]?\d+)?\Z", re.ASCII)
_RANK_FILE = re.compile(r"(?:\d+/)?throughput_\d+\.json\Z", re.ASCII)
_NODE_FILE = re.compile(r"_\d+\.json\Z", re.ASCII)
_LARGEST = 256  # bytes; a bare number is shorter, and nobody should load a checkpoint by mistake
_READERS = 16


class _Unreadable(Exception):
    """Why a result is none, for whatever it turns out to be of."""

    def __init__(self, key: str, **facts: str) -> None:
        super().__init__(key)
        self._key, self._facts = key, facts

    def of(self, what: str) -> str:
        return message(self._key, what=what, **self._facts)


def gather(trial: Trial, store: Store, folder: Path) -> Trial:
    """The trial with its logs, in `folder`, and with what its ranks measured, if its job succeeded."""
    assert trial.stage is not None
    assert trial.job_id is not None
    stage, home = trial.stage, logs.home(trial)
    well = trial.job is not None and trial.job.phase is Phase.SUCCEEDED and not trial.fault
    try:
        names = logs.bring(store, stage.logs, folder / home, trial.job_id)
    except AisbenchError as error:
        if well:
            raise
        names = logs.found(folder / home)
        trial = trial.noted(message("no logs", why=str(error)))  # why the job ended matters more
    trial = replace(trial, logs=tuple(f"{home}/{name}" for name in names))
    trial = replace(trial, curve=pacing.curve_of(trial, folder), traits={**trial.traits, **told(trial, folder)})
    if well:
        measurements, missing = harvest(store, stage.outputs, trial.case)
        trial = replace(trial, measurements=tuple(measurements), missing_results=tuple(missing))
    return trial


def harvest(store: Store, outputs: StoreUrl, case: Case) -> tuple[list[Measurement], list[MissingResult]]:
    """Every measurement that can be trusted, and why each other one is missing."""
    present = {head.url.key.removeprefix(outputs.key): head for head in store.objects(outputs)}
    wanted = {
        each.source: each for each in (_single_server_files(case) if case.single_server else _cluster_files(case))
    }
    with ThreadPoolExecutor(_READERS, thread_name_prefix="aisbench-harvest") as pool:
        texts = dict(zip(wanted, pool.map(lambda name: _text(store, present.get(name)), wanted), strict=True))
    measurements: list[Measurement] = []
    missing: list[MissingResult] = list(_strangers(present.keys() - wanted.keys(), case))
    for name, each in wanted.items():
        try:
            value = _number(texts[name])
            _plausible(each.metric, each.unit, value)
        except _Unreadable as why:
            missing.append(
                MissingResult(each.metric, why.of(name if each.rank is None else _of_rank(name, case, each.rank)))
            )
        else:
            measurements.append(replace(each, value=value))
    if not case.single_server or RANK_SIZE in present:
        missing += _rank_size(_text(store, present.get(RANK_SIZE)), case)
    return measurements, missing


def _cluster_files(case: Case) -> Iterable[Measurement]:
    """What there should be; the values are not known yet."""
    metrics = case.workload.metrics
    for rank in range(case.shape.world):
        yield Measurement(THROUGHPUT, math.nan, metrics[THROUGHPUT].unit, f"throughput_{rank}.json", rank)
    for name, metric in metrics.items():
        if name != THROUGHPUT:
            yield Measurement(name, math.nan, metric.unit, f"{name}.json")


def _single_server_files(case: Case) -> Iterable[Measurement]:
    """Every node has its cards' results in a folder of its own."""
    metrics = case.workload.metrics
    for rank in range(case.shape.world):
        node, card = divmod(rank, case.shape.devices)
        yield Measurement(THROUGHPUT, math.nan, metrics[THROUGHPUT].unit, f"{node}/throughput_{card}.json", rank, node)
    for name, metric in metrics.items():
        for node in range(case.shape.nodes) if name != THROUGHPUT else ():
            yield Measurement(name, math.nan, metric.unit, f"{name}_{node}.json", server=node)


def _text(store: Store, head: Head | None) -> str | _Unreadable:
    if head is None:
        return _Unreadable("missing")
    if head.size > _LARGEST:
        return _Unreadable("too long", size=str(head.size))
    data = store.read(head.url)
    if data is None:
        return _Unreadable("missing")
    return data.decode("utf-8", "replace").strip()


def _number(text: str | _Unreadable) -> float:
    if isinstance(text, _Unreadable):
        raise text
    if not text:
        raise _Unreadable("empty")
    if text.lower().lstrip("+-") in {"nan", "inf", "infinity"}:
        raise _Unreadable("not finite", text=text)
    if not _NUMBER.match(text):
        raise _Unreadable("no number", text=repr(text[:40]))
    value = float(text)
    if not math.isfinite(value):
        raise _Unreadable("not finite", text=text[:40])
    return value


def _plausible(metric: str, unit: str, value: float) -> None:
    if metric == THROUGHPUT and value <= 0:
        raise _Unreadable("not above 0", text=f"{value:g}")
    # A percentage would meet every threshold that is written as a ratio.
    if metric == ACCURACY and not unit and not 0 <= value <= 1:
        raise _Unreadable("no ratio", text=f"{value:g}")


def _rank_size(text: str | _Unreadable, case: Case) -> list[MissingResult]:
    try:
        size = _number(text)
    except _Unreadable as why:
        return [MissingResult(THROUGHPUT, why.of(RANK_SIZE))]
    # A node that trains alone may count itself, or everybody who was started.
    right = {case.shape.world, case.judged_shape.world}
    if size not in right:
        shape = {"shape": str(case.shape), "ranks": str(case.shape.world)}
        told = message("other ranks", what=RANK_SIZE, text=f"{size:g}", **shape)
        return [MissingResult(THROUGHPUT, told)]
    return []


def _strangers(unwanted: Iterable[str], case: Case) -> Iterable[MissingResult]:
    """A result of a rank or a node that cannot be: somebody counted differently, so the sum would not be the case's."""
    for name in sorted(unwanted):
        metric = name.rpartition("_")[0]
        if _RANK_FILE.match(name):
            yield MissingResult(THROUGHPUT, message("strange rank", what=name, shape=str(case.shape)))
        elif case.single_server and metric in case.workload.metrics and _NODE_FILE.match(name.removeprefix(metric)):
            yield MissingResult(metric, message("strange node", what=name, shape=str(case.shape)))


def _of_rank(file: str, case: Case, rank: int) -> str:
    node, card = divmod(rank, case.shape.devices)
    return message("of rank", file=file, rank=str(rank), node=str(node), card=str(card))
