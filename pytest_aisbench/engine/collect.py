"""Reading a trial's result objects, and objecting to whatever is not exactly as it should be."""

from __future__ import annotations

import codecs
import math
import os
import re
import socket
from collections.abc import Iterable, Iterator, Mapping
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from pathlib import Path
from statistics import fmean

from pytest_aisbench.engine.takeover import Fingerprints
from pytest_aisbench.errors import AisbenchError
from pytest_aisbench.judge.comparison import traits_of
from pytest_aisbench.judge.standards import MARGIN_S, power_in_window
from pytest_aisbench.logs import get_logger, ignored, log_ignored
from pytest_aisbench.model.case import Case
from pytest_aisbench.model.curve import Curve
from pytest_aisbench.model.job import LogPart, Phase, Power, StoreUrl
from pytest_aisbench.model.messages import message, plain
from pytest_aisbench.model.metric import ACCURACY, THROUGHPUT, Measurement, MissingResult
from pytest_aisbench.model.ports import Head, Platform, PowerSource, Store
from pytest_aisbench.model.trial import Trial
from pytest_aisbench.traininglog.activity import software_versions
from pytest_aisbench.traininglog.curve import extend_curve
from pytest_aisbench.traininglog.readers import Progress

# -- The logs of a job in the run's folder: as far as it has come while it runs, and whole when it has ended.

_LOG = get_logger("fleet")
_TAIL = 65536  # bytes of a log, which may have a gigabyte
_LONGEST = 300  # characters of a line that is quoted
_DIGITS = re.compile(r"(\d+)", re.ASCII)
_V1 = re.compile(r"job\w+-job-.+-(\d+)\.log\Z", re.ASCII)
_V2 = re.compile(r"modelarts-job-[0-9a-f]{8}(?:-[0-9a-f]{4}){3}-[0-9a-f]{12}-(.+)\Z", re.ASCII)


def log_folder(trial: Trial) -> str:
    """The folder of a trial's logs, relative to the run's."""
    return f"logs/{trial.case.id}/{trial.number}"


def append_log(folder: Path, trial: Trial, node: int, part: LogPart) -> None:
    """Add what a node said since it was last asked."""
    if part.text:
        file = folder / log_folder(trial) / f"worker-{node}.log"
        file.parent.mkdir(parents=True, exist_ok=True)
        with file.open("a", encoding="utf-8", errors="replace", newline="") as log:
            log.write(part.text)


def download_logs(store: Store, logs: StoreUrl, folder: Path, job_id: str) -> list[str]:
    """The job's logs in `folder`, whole, under names that do not repeat the job's: `worker-0.log`."""
    names = store.download(logs, str(folder))
    shorts = {name: _short_name(name, job_id) for name in names}
    if len(set(shorts.values())) < len(names) or {short for name, short in shorts.items() if short != name} & set(
        names
    ):
        return sorted(names, key=_log_order)
    for name, short in shorts.items():
        (folder / name).replace(folder / short)
    return sorted(shorts.values(), key=_log_order)


def downloaded_logs(folder: Path) -> list[str]:
    """What came home while the job ran: of use where the whole did not."""
    return sorted((path.name for path in folder.glob("worker-*.log")), key=_log_order)


def last_lines(trial: Trial, folder: Path, count: int) -> tuple[str, list[str]]:
    """What the script itself wrote last, on the node that the platform blames; and the name of that log."""
    reason = trial.job.reason if trial.job else ""
    for name in sorted(trial.logs, key=lambda log: (Path(log).stem not in reason, "worker" not in log)):
        try:
            with (folder / name).open("rb") as log:
                log.seek(max(0, log.seek(0, os.SEEK_END) - _TAIL))
                lines = log.read().decode("utf-8", "replace").splitlines()
        except OSError as error:
            log_ignored(_LOG, error, "the last lines of %s", name)
            continue
        spoken = [line.rstrip() for line in lines if line.strip() and "service log]" not in line.lower()]
        if spoken:
            return name, [plain(line[:_LONGEST]) for line in spoken[-count:]]
    return "", []


def _log_order(name: str) -> tuple[bool, list[str | int]]:
    """What a node said before what each of its ranks did, and the second before the tenth."""
    parts = _DIGITS.split(name)  # words and digits take turns, so that like is compared to like
    return "worker" not in name, [int(part) if at % 2 else part for at, part in enumerate(parts)]


def _short_name(name: str, job_id: str) -> str:
    """V2 puts the job's id before the task; V1 its names of resource and job before the number of the node."""
    if numbered := _V1.match(name):
        return f"worker-{numbered[1]}.log"
    known = _V2.match(name)
    return known[1] if known else name.rpartition(f"{job_id}-")[2]


# -- The curve of a trial, read from its first worker's log once that came home.
_PIECE = 1 << 20
MOST_BYTES = 8 * _PIECE  # of either end: a log may have a gigabyte, and a curve has two hundred points


def curve_of(trial: Trial, folder: Path) -> Curve | None:
    """None where the log tells nothing. A log decides nothing, so nothing that is wrong with one may matter."""
    name = first_worker_log(trial.logs)
    return read_curve(folder / name, trial.case.shape.devices) if name else None


def first_worker_log(logs: Iterable[str]) -> str | None:
    """Whose log tells of the training."""
    return next((log for log in sorted(logs) if "worker" in Path(log).name), None)


def read_curve(log: Path, ranks: int) -> Curve | None:
    """Of one log, to which so many ranks write."""
    curve, progress = Curve(), Progress(ranks=ranks)
    with ignored(_LOG, Exception, "what %s tells of loss and speed", log.name):
        for text in _pieces(log):
            curve, progress = extend_curve(curve, progress, text)
    return None if curve == Curve() else curve


def _pieces(file: Path) -> Iterator[str]:
    """The log, or its beginning and its end, where it tells what it came to."""
    decoder = codecs.getincrementaldecoder("utf-8")("replace")
    with file.open("rb") as log:
        size = log.seek(0, 2)
        log.seek(0)
        while piece := log.read(_PIECE):
            yield decoder.decode(piece)
            if log.tell() == MOST_BYTES < size - MOST_BYTES:
                log.seek(size - MOST_BYTES)
                log.readline(_PIECE)  # the rest of a line
                decoder.reset()
                yield "\n"
    yield "\n"


# -- Where a trial runs and what it runs, by name: what history must share to be compared.
_HOST = re.compile(r"https?://(?:[^/\s@]*@)?([^/\s]+)")
_HERE = re.compile(r"(?:127\.[\d.]+|localhost|\[::1\])(?::\d+)?\Z")
_HEAD = 1 << 17  # characters of a log: whoever tells versions tells them first
_LOGS = 16  # of so many nodes


class Traits:
    """Of the cases of one platform."""

    def __init__(self, platform: str, platform_id: str, fingerprints: Fingerprints) -> None:
        self._platform = platform
        self._where = address_of(platform_id)
        self._fingerprints = fingerprints

    def of(self, case: Case) -> Mapping[str, str]:
        code, data = self._fingerprints.digests(case.workload)
        return traits_of(case, platform=self._platform, place=self._where, code=code, data=data)


def address_of(platform_id: str) -> str:
    """The address of a platform; of one on this machine, whose ports and buckets mean nothing, the machine."""
    found = _HOST.search(platform_id)
    address = found[1] if found else platform_id
    return address if address and not _HERE.match(address) else f"{socket.gethostname()}, {os.cpu_count()} cores"


def logged_versions(trial: Trial, folder: Path) -> Mapping[str, str]:
    """What its logs, once they are home, tell of the software that trained; a log that cannot be read tells nothing."""
    heads = []
    for name in [log for log in sorted(trial.logs) if "worker" in log][:_LOGS]:
        try:
            with (folder / name).open(encoding="utf-8", errors="replace") as log:
                heads.append(log.read(_HEAD))
        except OSError as error:
            log_ignored(_LOG, error, "the versions that %s tells", name)
    return software_versions("\n".join(heads))


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


def collect(trial: Trial, store: Store, folder: Path) -> Trial:
    """The trial with its logs, in `folder`, and with what its ranks measured, if its job succeeded."""
    assert trial.stage is not None
    assert trial.job_id is not None
    stage, home = trial.stage, log_folder(trial)
    well = trial.job is not None and trial.job.phase is Phase.SUCCEEDED and not trial.fault
    try:
        names = download_logs(store, stage.logs, folder / home, trial.job_id)
    except AisbenchError as error:
        if well:
            raise
        names = downloaded_logs(folder / home)
        trial = trial.noted(message("no logs", why=str(error)))  # why the job ended matters more
    trial = replace(trial, logs=tuple(f"{home}/{name}" for name in names))
    trial = replace(trial, curve=curve_of(trial, folder), traits={**trial.traits, **logged_versions(trial, folder)})
    if well:
        measurements, missing = read_results(store, stage.outputs, trial.case)
        trial = replace(trial, measurements=tuple(measurements), missing_results=tuple(missing))
    return trial


def read_results(store: Store, outputs: StoreUrl, case: Case) -> tuple[list[Measurement], list[MissingResult]]:
    """Every measurement that can be trusted, and why each other one is missing."""
    present = {head.url.key.removeprefix(outputs.key): head for head in store.objects(outputs)}
    wanted = {
        each.source: each for each in (_single_server_files(case) if case.single_server else _cluster_files(case))
    }
    with ThreadPoolExecutor(_READERS, thread_name_prefix="aisbench-harvest") as pool:
        texts = dict(zip(wanted, pool.map(lambda name: _text(store, present.get(name)), wanted), strict=True))
    measurements: list[Measurement] = []
    missing: list[MissingResult] = list(_unexpected_results(present.keys() - wanted.keys(), case))
    for name, each in wanted.items():
        try:
            value = _number(texts[name])
            _check_plausible(each.metric, each.unit, value)
        except _Unreadable as why:
            missing.append(
                MissingResult(each.metric, why.of(name if each.rank is None else _of_rank(name, case, each.rank)))
            )
        else:
            measurements.append(replace(each, value=value))
    if not case.single_server or RANK_SIZE in present:
        missing += _rank_size_errors(_text(store, present.get(RANK_SIZE)), case)
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


def _check_plausible(metric: str, unit: str, value: float) -> None:
    if metric == THROUGHPUT and value <= 0:
        raise _Unreadable("not above 0", text=f"{value:g}")
    # A percentage would meet every threshold that is written as a ratio.
    if metric == ACCURACY and not unit and not 0 <= value <= 1:
        raise _Unreadable("no ratio", text=f"{value:g}")


def _rank_size_errors(text: str | _Unreadable, case: Case) -> list[MissingResult]:
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


def _unexpected_results(unwanted: Iterable[str], case: Case) -> Iterable[MissingResult]:
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


# -- How busy the nodes of a job were, and what they drew, asked for once it has ended.
_MOST_NODES = 32  # that the platform is asked about: more are as busy as these, and each costs a request


class PowerMeter:
    """Asks the sources of power about a job, one after the other: the first that knows of it counts."""

    def __init__(self, sources: Mapping[str, PowerSource]) -> None:
        self._sources = dict(sources)

    def of(self, trial: Trial) -> Power | None:
        """None where there is no source at all."""
        if not self._sources:
            return None
        window = power_window(trial)
        if window is None:
            return Power(why="nobody saw the job run, and its log does not tell when it trained")
        start, end, which = window
        reasons: list[str] = []
        for name, source in self._sources.items():
            try:
                found = list(source.samples(trial.job_id or "", start - MARGIN_S, end + MARGIN_S))
            except Exception as error:  # noqa: BLE001 - of whoever wrote it: a verdict does not hang on it
                reasons.append(f"{name}: {plain(str(error) or type(error).__name__, 200)}")
                log_ignored(_LOG, error, "%s: the power that source %s has", trial.name, name)
                continue
            if found:
                return power_in_window(found, start, end, trial.case.shape.nodes, f"{name}, over {which}")
            reasons.append(f"{name}: it has no sample of the job")
        return Power(why="; ".join(reasons))

    def close(self) -> None:
        sources, self._sources = self._sources, {}
        for source in sources.values():
            with ignored(_LOG, Exception, "closing a power source"):  # whoever wrote it: the run has ended
                source.close()


def with_usage_and_power(trial: Trial, platform: Platform, meter: PowerMeter) -> Trial:
    """The trial with both; what nobody knows is left out. Nothing of this decides anything."""
    power = meter.of(trial)
    trial = replace(trial, usage=_usage(trial, platform), power=power)
    return trial.noted(message("unpowered", why=power.why)) if power and power.why else trial


def power_window(trial: Trial) -> tuple[float, float, str] | None:
    """When it drew power for what it is judged by: while it trained, or else while its job was seen to run."""
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
    except Exception as error:  # noqa: BLE001 - of any platform: half of the nodes are not all of them
        log_ignored(_LOG, error, "%s: how its nodes were used", trial.name)
        return {}
    means = {kind: fmean(nodes) for kind, nodes in by_kind.items()}
    return {kind: mean for kind, mean in means.items() if math.isfinite(mean)}
