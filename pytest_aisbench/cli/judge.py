"""`aisbench judge` judges result files of MLPerf by our thresholds; `aisbench mllog` writes our results as its log."""

from __future__ import annotations

import argparse
import gzip
import json
import zlib
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any, TextIO

from pytest_aisbench import registry
from pytest_aisbench.cli import add_command, at_least, write_text
from pytest_aisbench.config.options import LOCAL
from pytest_aisbench.engine import suites as suites_module
from pytest_aisbench.engine.collect import first_worker_log, read_curve
from pytest_aisbench.engine.suites import suite_folders
from pytest_aisbench.errors import UsageFault
from pytest_aisbench.judge.evaluate import Evidence, Rules, evaluate
from pytest_aisbench.judge.exit_code import Tally
from pytest_aisbench.judge.values import CaseValues, logged_training, values_from_log, without_impossible_values
from pytest_aisbench.model.case import Case, Shape
from pytest_aisbench.model.clock import SystemClock, day
from pytest_aisbench.model.messages import plain
from pytest_aisbench.model.metric import THROUGHPUT, AccuracyPoint, Curve, MissingResult
from pytest_aisbench.model.verdict import Outcome, Ruling, Verdict
from pytest_aisbench.report.results import finding_document
from pytest_aisbench.traininglog.mlperf import (
    BENCHMARKS,
    RUNS_OF_A_SET,
    Result,
    benchmark_name,
    mlperf_log,
    parse_result,
)
from pytest_aisbench.traininglog.mlperf_set import (
    PACKED,
    LeftOut,
    Spread,
    differences,
    is_result_name,
    left_out,
    may_be_result,
    missing_runs,
    spread,
    without_copies,
)
from pytest_aisbench.traininglog.readers import MLLOG

_MLPERF = "mlperf"
_OF_ONE_FILE = Rules(assume_noise=False)
_LONGEST_LINE = 1 << 20  # characters; a longer one is read in pieces
_LARGEST_UNPACKED = 1 << 29  # characters; a log that is packed has far fewer, and one that never ends must end here


def register(commands: Any) -> None:
    verdict = add_command(
        commands,
        "judge",
        "judge results of MLPerf's that exist already, and run nothing",
        "aisbench judge results/ --workload resnet50 --runs mlperf",
    )
    verdict.add_argument("folder", type=Path, metavar="FOLDER", help="where they are, or one of them")
    verdict.add_argument("--workload", required=True, metavar="NAME", help="whose thresholds hold")
    verdict.add_argument("--suites", type=Path, default=Path("suites"), metavar="DIR", help="default: suites/")
    # Never `local`: the floors of a miniature would let everything pass.
    verdict.add_argument("--platform", default="modelarts", metavar="NAME", help="whose claims (default: modelarts)")
    verdict.add_argument("--shape", metavar="2x8", help="what trained (default: one node with the workload's cards)")
    verdict.add_argument(
        "--runs", type=_runs, metavar="N", help=f"how many runs a set needs, or {_MLPERF}: as many as MLPerf asks for"
    )
    verdict.add_argument("--json", action="store_true", help="for programs")
    verdict.set_defaults(act=_judge)
    mllog = add_command(
        commands,
        "mllog",
        "write a case of results.json as a log of MLPerf's",
        "aisbench mllog resnet50-2x8 --output result.txt",
    )
    mllog.add_argument("case", metavar="CASE", help="such as resnet50-2x8")
    mllog.add_argument(
        "--results", type=Path, default=Path("reports/latest/results.json"), metavar="FILE", help="of which run"
    )
    mllog.add_argument("--org", default="pytest-aisbench", metavar="NAME", help="who submits it")
    mllog.add_argument("--output", type=Path, metavar="FILE", help="where it is written (default: printed)")
    mllog.set_defaults(act=_mllog)


@dataclass(frozen=True)
class _Set:
    """What a folder holds: the runs with their verdicts, what is not read, and what speaks against the whole."""

    files: list[tuple[Result, Verdict]]
    unread: list[LeftOut]
    objections: list[str]
    needed: int | None

    @property
    def spread(self) -> Spread | None:
        speeds = {each.name: each.measured.get(THROUGHPUT, 0.0) for each, _ in self.files}
        return spread({name: speed for name, speed in speeds.items() if speed > 0})


def _judge(options: argparse.Namespace) -> int:
    case, today = _case(options), day(SystemClock().now())
    needed = _needed_runs(options.runs, case)
    results, unread = read_folder(options.folder, benchmark_name(case.workload.name))
    objections = [] if options.folder.is_file() else missing_runs([each.name for each in results], unread)
    objections += differences(results)
    if needed is not None and len(results) < needed:
        objections.append(f"the set needs {needed} runs, and has {len(results)}")
    files = [(each, judge_file(case, each, today)) for each in results]
    judged = _Set(files, unread, objections, needed)
    whole = judge_set(case, files, today, objections) if files else None
    code = Tally(expected={case.id}).code(0, {case.id: whole.ruling} if whole else {})
    if options.json:
        about = {
            "schema": "aisbench-judge/1",
            "workload": options.workload,
            "platform": options.platform,
            "shape": str(case.shape),
        }
        print(json.dumps({**about, **_document(judged, whole, code)}, indent=2, ensure_ascii=False))
    else:
        _show(options.folder, judged, whole)
    return code


def _runs(text: str) -> int | str:
    return text if text == _MLPERF else at_least(1, f"a number of runs, or {_MLPERF}")(text)


def _needed_runs(runs: int | str | None, case: Case) -> int | None:
    if runs != _MLPERF:
        return int(runs) if runs is not None else None
    name = benchmark_name(case.workload.name)
    if name not in RUNS_OF_A_SET:
        names = ", ".join(RUNS_OF_A_SET)
        raise UsageFault(f"MLPerf has no benchmark {name!r}", advice=f"give --runs a number; MLPerf has {names}")
    return RUNS_OF_A_SET[name]


def judge_file(case: Case, result: Result, today: str = "") -> Verdict:
    """Judge one file as a trial of the case without a history; one that contradicts itself is INCONCLUSIVE.

    No noise is assumed here: the set allows for it.
    """
    missing = (*result.missing, *_other_benchmark(case, result))
    contradicting = tuple(MissingResult(THROUGHPUT, f"not judged: {text}") for text in result.contradictions)
    measured = without_impossible_values(CaseValues(case, _values(case, result), (*missing, *contradicting)))
    verdict = evaluate(measured, rules=_OF_ONE_FILE, today=today).verdict
    missed = any(finding.outcome is Outcome.MISSED for finding in verdict.findings)
    if contradicting and measured.missing == contradicting and not missed:
        return replace(verdict, ruling=Ruling.INCONCLUSIVE)
    return verdict


def judge_set(
    case: Case, files: Sequence[tuple[Result, Verdict]], today: str = "", objections: Sequence[str] = ()
) -> Verdict:
    """Judge all files together: every file must pass, and so must the mean over them; an objection leaves it open."""
    values = [_values(case, each) for each, _ in files]
    common = set(values[0]).intersection(*values)
    trials = [
        CaseValues(case, {metric: each[metric] for metric in each if metric in common}, number=number)
        for number, each in enumerate(values, start=1)
    ]
    rules = Rules(max_trials=len(trials))
    whole = evaluate(trials[-1], Evidence(earlier=tuple(trials[:-1])), rules, today).verdict
    others = [(each.name, verdict.ruling) for each, verdict in files if not verdict.passed]
    if others:
        undecided = all(ruling is Ruling.INCONCLUSIVE for _, ruling in others)
        named = ", ".join(name for name, _ in others[:5]) + (" …" if len(others) > 5 else "")
        reason = f"{len(others)} of {len(files)} did not pass: {named}"
        return Verdict(Ruling.INCONCLUSIVE if undecided else Ruling.FAILED, reason, whole.findings)
    if whole.passed and objections:
        return Verdict(Ruling.INCONCLUSIVE, "; ".join(objections), whole.findings)
    return whole


def _other_benchmark(case: Case, result: Result) -> Iterable[MissingResult]:
    """The speed and accuracy of another model must not be compared with these thresholds."""
    ours, theirs = benchmark_name(case.workload.name), result.benchmark
    if theirs and ours in BENCHMARKS and not theirs.startswith(ours):
        text = f"submission_benchmark is {theirs!r}, and {case.workload.name} is {ours!r} in MLPerf's words"
        yield MissingResult(THROUGHPUT, text)


def _values(case: Case, result: Result) -> dict[str, float]:
    """What the file measured; a metric with a missing result has no value."""
    points = enumerate(result.evaluations, start=1)
    curve = Curve(evaluations=tuple(AccuracyPoint(number, accuracy, at) for number, (at, accuracy) in points))
    derived = values_from_log(logged_training(case, curve))
    return {**result.measured, **{name: value for name, value in derived.items() if isinstance(value, float)}}


def _case(options: argparse.Namespace) -> Case:
    folder = suite_of(options.workload, options.suites)
    offered = registry.of_commands()
    own_keys = offered.kind(options.platform).options
    loaded = suites_module.load_suite(folder, options.platform, own_keys, offered.platforms, trains=False)
    shape = Shape.parse(options.shape) if options.shape else Shape(1, loaded.workload.devices)
    case = loaded.case(shape)
    loaded.require_claims(case)
    return case


def _show(folder: Path, judged: _Set, whole: Verdict | None) -> None:
    for each, verdict in judged.files:
        print(f"{verdict.ruling.value} {plain(each.name)}: {plain(verdict.reason)}")
    for source in sorted({each.throughput_from for each, _ in judged.files} - {""}):
        print(f"  throughput is {source}")
    if judged.spread:
        print(f"  throughput: {plain(str(judged.spread))}")
    for line in (*map(str, judged.unread), *judged.objections):
        print(f"  {plain(line)}")
    if whole is None:
        print(f"{folder}: there is no result of MLPerf's, and nothing was judged")
    else:
        print(f"{whole.ruling.value} the set of {len(judged.files)}: {plain(whole.reason)}")


def _document(judged: _Set, whole: Verdict | None, code: int) -> dict[str, Any]:
    return {
        "exit_code": code,
        "set": _verdict(whole) if whole else None,
        "objections": judged.objections,
        "left_out": [{"file": each.name, "why": each.why} for each in judged.unread],
        "runs_needed": judged.needed,
        "spread": asdict(judged.spread) if judged.spread else None,
        "files": [
            {
                "file": each.name,
                **_verdict(verdict),
                "status": each.status or None,
                "seconds": each.seconds,
                "metrics": dict(each.measured),
                "throughput_from": each.throughput_from or None,
                "epoch_num": each.epoch_num,
                "samples": each.samples,
                "contradictions": list(each.contradictions),
            }
            for each, verdict in judged.files
        ],
    }


def _verdict(verdict: Verdict) -> dict[str, Any]:
    return {
        "verdict": verdict.ruling.value,
        "reason": verdict.reason,
        "findings": [finding_document(finding) for finding in verdict.findings],
    }


def _mllog(options: argparse.Namespace) -> None:
    try:
        results = json.loads(options.results.read_bytes())
        cases = {case["id"]: case for case in results["cases"] if case["trials"]}
        case = cases.get(options.case)
        platform = str(results["settings"].get("platform", LOCAL))
        status = "research" if _is_emulation(platform) else "cloud"
        submission = {"org": options.org, "platform": platform, "status": status}
        text = mlperf_log(results["started"], case, _epochs(options.results.parent, case), submission) if case else ""
    except OSError as error:
        raise UsageFault(f"{options.results}: {error.strerror}", advice="name it with --results") from None
    except (ValueError, LookupError, TypeError, AttributeError) as error:
        raise UsageFault(f"{options.results} is not a results.json: {error}") from None
    if not text:
        names = ", ".join(sorted(cases)) or "none"
        raise UsageFault(f"{options.results}: no trial of {options.case!r}", advice=f"known: {names}")
    if options.output is None:
        print(text, end="")
    else:
        write_text(options.output, text)


def _is_emulation(platform: str) -> bool:
    kind = registry.of_commands().find_kind(platform)
    return kind is not None and kind.emulation


def _epochs(run: Path, case: Mapping[str, Any]) -> int:
    """How many epochs the log beside the results shows; 1 if it shows none, or is gone."""
    name = first_worker_log(case["trials"][-1].get("logs", ()))
    curve = read_curve(run / name, case["devices_per_node"]) if name else None
    points = (*curve.loss.points, *curve.speed.points) if curve else ()
    return max((1, *(point.epoch for point in points)))


def read_results(place: Path) -> list[Result]:
    """Every file with events of MLPerf, and every file named as a result: an empty `result_3.txt` is a failed run."""
    return read_folder(place)[0]


def read_folder(place: Path, benchmark: str = "") -> tuple[list[Result], list[LeftOut]]:
    """The results of a folder, or of one file, and what is named like a result there and is none.

    `benchmark` is MLPerf's name of what we expect, for a file that does not name it.
    """
    if not place.exists():
        raise UsageFault(f"{place}: there is no such folder")
    if place.is_file():
        return [parse_result(place.name, _lines(place), benchmark)], []
    names = {path.relative_to(place).as_posix(): path for path in sorted(place.rglob("*"))}
    folders = [name for name, path in names.items() if path.is_dir()]
    files = [name for name in names if name not in set(folders)]
    readable = [name for name in files if may_be_result(name) and names[name].is_file()]
    results = [parse_result(name, _lines(names[name]), benchmark) for name in readable]
    results = [each for each in results if each.events or is_result_name(each.name)]
    return without_copies(results), left_out(files, folders, [each.name for each in results])


def _lines(file: Path) -> Iterator[str]:
    """The lines of a file, each in pieces of a bounded length, so that memory does not depend on what is in it."""
    packed = file.name.lower().endswith(PACKED)
    opened: Callable[..., TextIO] = gzip.open if packed else open
    overlap, size = "", 0
    try:
        with opened(file, "rt", encoding="utf-8", errors="replace") as log:
            while piece := log.readline(_LONGEST_LINE):
                size += len(piece)
                if packed and size > _LARGEST_UNPACKED:
                    most = f"{_LARGEST_UNPACKED >> 20} MiB"
                    raise UsageFault(
                        f"{file} unpacks to more than {most}", advice="unpack it, and keep the lines of MLPerf"
                    )
                yield overlap + piece
                overlap = "" if piece.endswith("\n") else piece[-len(MLLOG) + 1 :]  # which two pieces may share
    except (gzip.BadGzipFile, zlib.error, EOFError):
        raise UsageFault(f"{file} cannot be unpacked: it is not gzip, or not whole", advice="copy it again") from None
    except OSError as error:
        raise UsageFault(f"{file}: {error.strerror}") from None


def suite_of(workload: str, suites: Path) -> Path:
    """The folder of the suite that holds this workload."""
    if not suites.is_dir():
        raise UsageFault(f"there is no folder {suites}", advice="name it with --suites DIR")
    folders = suite_folders(suites)
    if workload not in folders:
        names = ", ".join(sorted(filter(None, folders))) or "none"
        raise UsageFault(f"no suite in {suites} holds a workload {workload!r}", advice=f"known: {names}")
    return folders[workload]
