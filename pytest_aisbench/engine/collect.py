"""Collects what an ended job left behind: results, logs, training curve, usage and power.

`collect` is the trial's step HARVEST. It reads the result files strictly: a missing, implausible or unexpected one
becomes a `MissingResult` with its reason, never a guess. What is read from the log instead: `logged_metrics.py`.
"""

from __future__ import annotations

import codecs
import itertools
import math
import re
import unicodedata
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import replace
from pathlib import Path, PurePosixPath
from statistics import fmean

from pytest_aisbench.config.options import FRAMEWORKS, PYTHON
from pytest_aisbench.engine.failure_log import LONGEST_LINE
from pytest_aisbench.engine.logged_metrics import read_logged
from pytest_aisbench.engine.staging import PIECE
from pytest_aisbench.errors import AisbenchError
from pytest_aisbench.judge.standards import MARGIN_S, power_in_window
from pytest_aisbench.logs import get_logger, ignored, log_ignored
from pytest_aisbench.model.case import WORKLOAD_FILE, Case, Update, Workload
from pytest_aisbench.model.job import LogPart, Phase, Power, StoreUrl, TrainedWith
from pytest_aisbench.model.messages import Message, message, plain
from pytest_aisbench.model.metric import (
    ACCURACY,
    SOFTWARE_UPDATE,
    THROUGHPUT,
    Curve,
    Measurement,
    Metric,
    MissingResult,
)
from pytest_aisbench.model.ports import Head, Platform, PowerSource, Store, download_listed, read_many
from pytest_aisbench.model.trial import Trial
from pytest_aisbench.traininglog.activity import miniature_software, software_versions
from pytest_aisbench.traininglog.curve import Progress, extend_curve
from pytest_aisbench.traininglog.failure import expected_versions, failed_updates, other_versions

_LOG = get_logger("fleet")
RANK_SIZE = "ranksize.json"
_BY_LOG = "log"
_NUMBER = re.compile(r"[+-]?(\d+(\.\d*)?|\.\d+)([eE][+-]?\d+)?\Z", re.ASCII)
_NUMBERED = re.compile(r"(?:.*/)?([^/]+?)_([+-]?\d+)\.json\Z", re.ASCII | re.DOTALL)
_LARGEST_RESULT = 256  # bytes: a number is shorter, and a checkpoint must not be read by mistake
MOST_BYTES = 8 * PIECE  # read from either end: a log may have a gigabyte, and a curve has two hundred points
_DIGITS = re.compile(r"(\d+)", re.ASCII)
_V1_LOG = re.compile(r"job\w+-job-.+-(\d+)\.log\Z", re.ASCII)
_V2_LOG = re.compile(r"modelarts-job-[0-9a-f]{8}(?:-[0-9a-f]{4}){3}-[0-9a-f]{12}-(.+)\Z", re.ASCII)
_HEAD_CHARS = 1 << 17  # of a log: scripts print versions first
_UPDATE_CHARS = 1 << 20  # the same, for updates: an installer may print a line for every file
_LOGS_WITH_VERSIONS = 16  # that we search for versions
_MOST_UPDATE_ERRORS = 20  # of all nodes, that a report names
_MOST_NODES = 32  # whose usage we ask for: others are as busy as these, and each costs a request


def collect(trial: Trial, store: Store, folder: Path) -> Trial:
    """The trial with its logs, downloaded below `folder`, and, if its job succeeded, with its measurements."""
    assert trial.stage is not None
    assert trial.job_id is not None
    stage, logs = trial.stage, log_folder(trial)
    succeeded = trial.job is not None and trial.job.phase is Phase.SUCCEEDED and not trial.fault
    heads: list[Head] = []
    try:
        heads = list(store.objects(stage.root))  # logs and results by one listing
        names = download_logs(store, stage.logs, heads, folder / logs, trial.job_id)
    except AisbenchError as error:
        if succeeded:
            raise
        names = downloaded_logs(folder / logs)
        trial = trial.noted(message("no logs", why=str(error)))  # why the job ended matters more
    trial = replace(trial, logs=tuple(f"{logs}/{name}" for name in names))
    text = beginning_of_logs(trial, folder)
    versions = software_versions(text)
    trial = replace(
        trial,
        curve=curve_of(trial, folder),
        traits={**trial.traits, **versions},
        trained_with=trained_with(trial.case.workload, text, versions),
    )
    if succeeded:
        measurements, missing, notes = read_results(store, stage.outputs, trial.case, heads)
        from_logs, not_in_logs = _logged_results(trial, folder)
        measurements += from_logs
        missing += [*not_in_logs, *update_errors(trial, folder)]
        trial = replace(trial, measurements=tuple(measurements), missing_results=tuple(missing))
        for note in notes:
            trial = trial.noted(note)
    return trial


def read_results(
    store: Store, outputs: StoreUrl, case: Case, heads: Iterable[Head]
) -> tuple[list[Measurement], list[MissingResult], list[str]]:
    """Every measurement that can be trusted, one `MissingResult` for each that cannot, and notes about other results.

    `heads` are what the Store listed of the outputs, or of a folder above them.
    """
    below = (head for head in heads if head.url.key.startswith(outputs.key))
    present = {head.url.key.removeprefix(outputs.key): head for head in below}
    wanted = {
        each.source: each for each in (_single_server_files(case) if case.single_server else _cluster_files(case))
    }
    beside = {metric: [name for name in names if name in present] for metric, names in _files_beside(case).items()}
    texts = _texts(store, {name: present.get(name) for name in (*wanted, *beside.get(ACCURACY, ()), RANK_SIZE)})
    measurements: list[Measurement] = []
    unexpected = present.keys() - wanted.keys() - set(itertools.chain.from_iterable(beside.values()))
    missing: list[MissingResult] = list(_unexpected_results(unexpected, case))
    for name, each in wanted.items():
        try:
            value = _number(texts[name])
            _check_plausible(each.metric, each.unit, value)
        except _Unreadable as why:
            missing.append(
                MissingResult(each.metric, why.text(name if each.rank is None else _of_rank(name, case, each.rank)))
            )
        else:
            measurements.append(replace(each, value=value))
    owed = not case.single_server and not case.workload.metrics[THROUGHPUT].log
    if owed or RANK_SIZE in present:
        missing += _rank_size_errors(texts[RANK_SIZE], case)
    notes: list[str] = []
    for metric, files in beside.items():
        judged = next((each for each in measurements if each.metric == metric), None)
        other = _contradiction(judged, files, texts, case) if judged and metric == ACCURACY else None
        if isinstance(other, MissingResult):
            missing.append(other)
        elif other:
            notes.append(other)
        elif files:
            names = f"{files[0]} … {files[-1]}" if len(files) > 1 else files[0]
            notes.append(message("beside", files=names, file=f"{metric}.json"))
    return measurements, missing, notes


def _logged_results(trial: Trial, folder: Path) -> tuple[list[Measurement], list[MissingResult]]:
    """The same of the metrics that the log gives."""
    logged, missing = read_logged(trial, folder)
    measurements: list[Measurement] = []
    for each in logged:
        try:
            _check_plausible(each.metric, each.unit, each.value)
        except _Unreadable as why:
            missing.append(MissingResult(each.metric, why.text(each.source)))
        else:
            measurements.append(each)
    return measurements, missing


class _Unreadable(Exception):
    """Why a result file has no usable number."""

    def __init__(self, key: str, **facts: str) -> None:
        super().__init__(key)
        self.key, self._facts = key, facts

    def text(self, what: str) -> str:
        return message(self.key, what=what, **self._facts)


def _cluster_files(case: Case) -> Iterable[Measurement]:
    """The expected result files, as measurements without a value."""
    metrics = _written(case)
    for rank in range(case.shape.world) if THROUGHPUT in metrics else ():
        yield Measurement(THROUGHPUT, math.nan, metrics[THROUGHPUT].unit, f"throughput_{rank}.json", rank)
    for name, metric in metrics.items():
        if name != THROUGHPUT:
            yield Measurement(name, math.nan, metric.unit, f"{name}.json")


def _single_server_files(case: Case) -> Iterable[Measurement]:
    """The same where every node trains alone: each node's ranks write to a folder of their own."""
    metrics = _written(case)
    for rank in range(case.shape.world) if THROUGHPUT in metrics else ():
        node, card = divmod(rank, case.shape.devices)
        yield Measurement(THROUGHPUT, math.nan, metrics[THROUGHPUT].unit, f"{node}/throughput_{card}.json", rank, node)
    for name, metric in metrics.items():
        for node in range(case.shape.nodes) if name != THROUGHPUT else ():
            yield Measurement(name, math.nan, metric.unit, f"{name}_{node}.json", server=node)


def _files_beside(case: Case) -> dict[str, list[str]]:
    """By metric the results of single nodes, which scripts of ais-bench-stubs write beside the one of all nodes."""
    if case.single_server:
        return {}
    return {
        name: [f"{name}_{node}.json" for node in range(case.shape.nodes)]
        for name in _written(case)
        if name != THROUGHPUT
    }


def _contradiction(
    judged: Measurement, files: Iterable[str], texts: Mapping[str, str | _Unreadable], case: Case
) -> MissingResult | Message | None:
    """What is wrong with the accuracies of single nodes, or just strange; None if they agree with that of all.

    Nodes that train together have one model. The accuracy of all is judged, as ais-bench-stubs does, although every
    node overwrites it and the last one wins. If it meets a threshold that the accuracy of a node misses, we cannot know
    which is right.
    """
    values = {file: _value_beside(texts[file]) for file in files}
    others = {file: value for file, value in values.items() if value is not None and value != judged.value}
    if not others:
        return None
    bands = [each.band(case.judged_shape) for each in case.thresholds if each.metric == judged.metric]
    met = [(low, high) for low, high in bands if low <= judged.value <= high]
    missed = {file for file, value in others.items() if not all(low <= value <= high for low, high in met)}
    file = max(missed or others, key=lambda each: (math.isnan(others[each]), abs(others[each] - judged.value)))
    facts = {"what": file, "text": f"{others[file]:g}", "file": judged.source, "value": f"{judged.value:g}"}
    if missed:
        return MissingResult(judged.metric, message("beside, missed", **facts))
    return message("beside, other", **facts)


def _value_beside(text: str | _Unreadable) -> float | None:
    """NaN if it is not finite, and None if the file holds something else than a number: it may be no result."""
    try:
        return _number(text)
    except _Unreadable as why:
        return math.nan if why.key == "not finite" else None


def _written(case: Case) -> dict[str, Metric]:
    """The metrics that the script writes to files: all but those that are read from the log."""
    return {name: metric for name, metric in case.workload.metrics.items() if metric.log is None}


def _texts(store: Store, heads: Mapping[str, Head | None]) -> dict[str, str | _Unreadable]:
    """What each result file says, or why it says nothing."""
    readable = {name: head.url for name, head in heads.items() if head and head.size <= _LARGEST_RESULT}
    contents = dict(zip(readable, read_many(store, list(readable.values())), strict=True))
    return {name: _text(head, contents.get(name)) for name, head in heads.items()}


def _text(head: Head | None, content: bytes | None) -> str | _Unreadable:
    if head and head.size > _LARGEST_RESULT:
        return _Unreadable("too long", size=str(head.size))
    return _Unreadable("missing") if content is None else content.decode("utf-8", "replace").strip()


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


def _check_plausible(metric: str, unit: str, value: float) -> None:
    if metric == THROUGHPUT and value <= 0:
        raise _Unreadable("not above 0", text=f"{value:g}")
    # A percentage would meet every threshold that is a ratio.
    if metric == ACCURACY and not unit and not 0 <= value <= 1:
        raise _Unreadable("no ratio", text=f"{value:g}")


def _rank_size_errors(text: str | _Unreadable, case: Case) -> list[MissingResult]:
    try:
        size = _number(text)
    except _Unreadable as why:
        return [MissingResult(THROUGHPUT, why.text(RANK_SIZE))]
    # A node that trains alone may count its own ranks, or all ranks.
    if size in {case.shape.world, case.judged_shape.world}:
        return []
    shape = {"shape": str(case.shape), "ranks": str(case.shape.world)}
    return [MissingResult(THROUGHPUT, message("other ranks", what=RANK_SIZE, text=f"{size:g}", **shape))]


def _unexpected_results(unwanted: Iterable[str], case: Case) -> Iterable[MissingResult]:
    """Results that no rank or node of the case owes: a sum or mean over the expected ones would be wrong.

    Also in another folder, in other letters, or with the digits of another script: a rank wrote them, and the script
    that reads them will not be sure either which of two is right.
    """
    metrics = {name.casefold(): name for name in _written(case)}
    for file in sorted(unwanted):
        numbered = _NUMBERED.match(unicodedata.normalize("NFKC", file).casefold())
        metric = metrics.get(numbered[1]) if numbered else None
        if metric is None:
            continue
        facts = {"what": plain(file), "shape": str(case.shape)}
        if metric == THROUGHPUT:
            yield MissingResult(metric, message("strange rank", **facts))
        else:
            yield MissingResult(metric, message("strange node" if case.single_server else "one for all", **facts))


def _of_rank(file: str, case: Case, rank: int) -> str:
    node, card = divmod(rank, case.shape.devices)
    return message("of rank", file=file, rank=str(rank), node=str(node), card=str(card))


# Logs, in the run's folder.


def log_folder(trial: Trial) -> str:
    """The folder of a trial's logs, relative to the run's folder."""
    return f"logs/{trial.case.id}/{trial.number}"


def append_log(folder: Path, trial: Trial, node: int, part: LogPart) -> None:
    """Append a new part of a node's log to its file in the run's folder, while the job runs."""
    if part.text:
        file = folder / log_folder(trial) / f"worker-{node}.log"
        file.parent.mkdir(parents=True, exist_ok=True)
        with file.open("a", encoding="utf-8", errors="replace", newline="") as log:
            log.write(part.text)


def download_logs(store: Store, logs: StoreUrl, heads: Iterable[Head], folder: Path, job_id: str) -> list[str]:
    """Download the whole logs of a job to `folder`; return their names without the job's id: `worker-0.log`.

    `heads` are what the Store listed of the logs, or of a folder above them.
    """
    names = download_listed(store, logs, heads, str(folder))
    shorts = {name: _short_name(name, job_id) for name in names}
    renamed = {short for name, short in shorts.items() if short != name}
    if len(set(shorts.values())) < len(names) or renamed & set(names):  # two logs would get one name
        return sorted(names, key=_log_order)
    for name, short in shorts.items():
        (folder / name).replace(folder / short)
    return sorted(shorts.values(), key=_log_order)


def downloaded_logs(folder: Path) -> list[str]:
    """The logs that `append_log` wrote while the job ran, for a job whose whole logs cannot be downloaded."""
    return sorted((path.name for path in folder.glob("worker-*.log")), key=_log_order)


def _log_order(name: str) -> tuple[bool, list[str | int]]:
    """Sorts a node's log before those of its ranks, and the second before the tenth."""
    parts = _DIGITS.split(name)  # words and digits alternate, so that numbers are compared with numbers
    return "worker" not in name, [int(part) if at % 2 else part for at, part in enumerate(parts)]


def _short_name(name: str, job_id: str) -> str:
    """V2 writes the job's id before the task; V1 writes the resource and the job before the node's number."""
    if v1 := _V1_LOG.match(name):
        return f"worker-{v1[1]}.log"
    v2 = _V2_LOG.match(name)
    return v2[1] if v2 else name.rpartition(f"{job_id}-")[2]


def beginning_of_logs(trial: Trial, folder: Path) -> str:
    """The part of the trial's downloaded logs that names software versions; unreadable logs are skipped."""
    texts = itertools.islice(_beginnings(trial, folder), _LOGS_WITH_VERSIONS)
    return "\n".join(text[:_HEAD_CHARS] for _, text in texts)


def trained_with(workload: Workload, text: str, versions: Mapping[str, str]) -> TrainedWith:
    """What the log says, else what workload.toml says of a miniature. The framework that a job asks for proves nothing:
    its script may never import it."""
    framework = workload.miniature_of
    option = f"--aisbench-frameworks {framework}=PYTHON" if workload.has_real_section else ""
    if software := miniature_software(text):
        return TrainedWith(*software, source=_BY_LOG, miniature=True, instead_of=framework, real=option)
    # Horovod's scripts print the version of TensorFlow too.
    if name := next((name for name in (workload.framework, *FRAMEWORKS) if name in versions), ""):
        return TrainedWith(name, versions[name], source=_BY_LOG)
    if framework:
        return TrainedWith(PYTHON, source=WORKLOAD_FILE, miniature=True, instead_of=framework, real=option)
    return TrainedWith()


# Software updates: a node whose update failed trained with other software than it should.


def update_errors(trial: Trial, folder: Path) -> list[MissingResult]:
    """Steps of an update that failed, and versions that are not those of the files to install, by every node's log."""
    expected = expected_versions(_files_to_install(trial.case.workload))
    errors = []
    for log, text in _beginnings(trial, folder):
        errors += [message("update failed", log=log, line=plain(line[:LONGEST_LINE])) for line in failed_updates(text)]
        errors += [
            message("not updated", log=log, software=software, version=version, file=file)
            for software, version, file in other_versions(text, expected)
        ]
    return [MissingResult(SOFTWARE_UPDATE, text) for text in errors[:_MOST_UPDATE_ERRORS]]


def _files_to_install(workload: Workload) -> list[str]:
    """The names of the files in `run/`: those of the update, and those that lie in the code already."""
    beside = [Path(workload.folder, part, workload.entry).parent / "run" for part in workload.code]
    in_code = [file.name for folder in beside if folder.is_dir() for file in folder.iterdir()]
    return [*sorted(in_code), *(PurePosixPath(file).name for file in (workload.update or Update()).files)]


def _beginnings(trial: Trial, folder: Path) -> Iterator[tuple[str, str]]:
    """The names of the workers' logs, and how each begins."""
    for name in (log for log in sorted(trial.logs) if "worker" in log):
        try:
            with (folder / name).open(encoding="utf-8", errors="replace") as log:
                text = log.read(_UPDATE_CHARS)
        except OSError as error:
            log_ignored(_LOG, error, "the beginning of %s", name)
        else:
            yield Path(name).name, text


def curve_of(trial: Trial, folder: Path) -> Curve | None:
    """Loss and speed through the training, from the first worker's log; None if the log does not show them."""
    name = first_worker_log(trial.logs)
    return read_curve(folder / name, trial.case.shape.devices) if name else None


def first_worker_log(logs: Iterable[str]) -> str | None:
    """The log that shows the training."""
    return next((log for log in sorted(logs) if "worker" in Path(log).name), None)


def read_curve(log: Path, ranks: int) -> Curve | None:
    """The curve in one log that so many ranks write to. An unreadable log has none: it changes no verdict."""
    curve, progress = Curve(), Progress(ranks=ranks)
    with ignored(_LOG, Exception, "what %s tells of loss and speed", log.name):
        for text in _pieces(log):
            curve, progress = extend_curve(curve, progress, text)
    return None if curve == Curve() else curve


def _pieces(file: Path) -> Iterator[str]:
    """The text of a log; of a huge one, its beginning and its end."""
    decoder = codecs.getincrementaldecoder("utf-8")("replace")
    with file.open("rb") as log:
        size = log.seek(0, 2)
        log.seek(0)
        while piece := log.read(PIECE):
            yield decoder.decode(piece)
            if log.tell() == MOST_BYTES < size - MOST_BYTES:
                log.seek(size - MOST_BYTES)
                log.readline(PIECE)  # skip the rest of a line
                decoder.reset()
                yield "\n"
    yield "\n"


# Usage and power, asked for once the job has ended.


def with_usage_and_power(trial: Trial, platform: Platform, meter: PowerMeter) -> Trial:
    """The trial with how busy its nodes were and what they drew, as far as known. Neither changes the verdict."""
    power = meter.power_of(trial)
    trial = replace(trial, usage=_usage(trial, platform), power=power)
    return trial.noted(message("unpowered", why=power.why)) if power and power.why else trial


class PowerMeter:
    """Asks one power source after the other about a job; the first that has samples counts."""

    def __init__(self, sources: Mapping[str, PowerSource]) -> None:
        self._sources = dict(sources)

    def power_of(self, trial: Trial) -> Power | None:
        """What the trial's nodes drew, or why that is unknown; None without a power source."""
        if not self._sources:
            return None
        window = power_window(trial)
        if window is None:
            return Power(why="the job was never seen running, and its log does not show when it trained")
        start, end, which = window
        reasons: list[str] = []
        for name, source in self._sources.items():
            try:
                samples = list(source.samples(trial.job_id or "", start - MARGIN_S, end + MARGIN_S))
            except Exception as error:  # noqa: BLE001 - a third party's source must not break a verdict
                reasons.append(f"{name}: {plain(str(error) or type(error).__name__, 200)}")
                log_ignored(_LOG, error, "%s: the power that source %s has", trial.name, name)
                continue
            if samples:
                return power_in_window(samples, start, end, trial.case.shape.nodes, f"{name}, over {which}")
            reasons.append(f"{name}: it has no sample of the job")
        return Power(why="; ".join(reasons))

    def close(self) -> None:
        sources, self._sources = self._sources, {}
        for source in sources.values():
            with ignored(_LOG, Exception, "closing a power source"):
                source.close()


def power_window(trial: Trial) -> tuple[float, float, str] | None:
    """Start, end and name of the time that power counts for: the training, or else the whole job."""
    if trial.curve and trial.curve.window:
        start, end = trial.curve.window
        return start, end, "the training"
    start, end = trial.times.get("running", math.nan), trial.times.get("harvest", math.nan)
    return (start, end, "the job") if start < end else None


def _usage(trial: Trial, platform: Platform) -> dict[str, float]:
    by_kind: dict[str, list[float]] = {}
    try:
        for node in range(min(trial.case.shape.nodes, _MOST_NODES)):
            for kind, samples in platform.usage(trial.job_id or "", node).items():
                if samples:
                    by_kind.setdefault(kind, []).append(fmean(samples))
    except Exception as error:  # noqa: BLE001 - any error: the mean over some of the nodes would be wrong
        log_ignored(_LOG, error, "%s: how its nodes were used", trial.name)
        return {}
    means = {kind: fmean(nodes) for kind, nodes in by_kind.items()}
    return {kind: mean for kind, mean in means.items() if math.isfinite(mean)}
