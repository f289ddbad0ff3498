"""`aisbench judge` judges result files of MLPerf by our thresholds; `aisbench mllog` writes our results as its log."""

from __future__ import annotations

import argparse
import gzip
import hashlib
import json
import zlib
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any, TextIO

from pytest_aisbench import registry
from pytest_aisbench.cli.options import write_text
from pytest_aisbench.config.options import LOCAL
from pytest_aisbench.engine import suites as suites_module
from pytest_aisbench.engine.collect import first_worker_log, read_curve
from pytest_aisbench.engine.suites import suite_folders
from pytest_aisbench.errors import UsageFault
from pytest_aisbench.judge.evaluate import evaluate
from pytest_aisbench.judge.exit_code import Tally
from pytest_aisbench.judge.values import CaseValues, logged_training, mean, values_from_log, without_impossible_values
from pytest_aisbench.model.case import Case, Shape
from pytest_aisbench.model.clock import SystemClock, day
from pytest_aisbench.model.messages import plain
from pytest_aisbench.model.metric import THROUGHPUT, AccuracyPoint, Curve, MissingResult
from pytest_aisbench.model.verdict import Ruling, Verdict
from pytest_aisbench.report.results import finding_document
from pytest_aisbench.traininglog.mlperf import BENCHMARKS, Result, benchmark_name, mlperf_log, parse_result
from pytest_aisbench.traininglog.readers import MLLOG

_SUFFIXES = frozenset({".txt", ".log", ".out"})  # checkpoints and data may lie beside the results, and are large
_PACKED = ".gz"
_RESULT = "result"  # MLPerf calls the file of a run `result_0.txt`


def register(commands: Any) -> None:
    verdict = commands.add_parser("judge", help="judge results of MLPerf's that exist already, and run nothing")
    verdict.add_argument("folder", type=Path, metavar="FOLDER", help="where they are, or one of them")
    verdict.add_argument("--workload", required=True, metavar="NAME", help="whose thresholds hold")
    verdict.add_argument("--suites", type=Path, default=Path("suites"), metavar="DIR", help="default: suites/")
    # Never `local`: the floors of a miniature would let everything pass.
    verdict.add_argument("--platform", default="modelarts", metavar="NAME", help="whose claims (default: modelarts)")
    verdict.add_argument("--shape", metavar="2x8", help="what trained (default: one node with the workload's cards)")
    verdict.add_argument("--json", action="store_true", help="for programs")
    verdict.set_defaults(act=_judge)
    mllog = commands.add_parser("mllog", help="write a case of results.json as a log of MLPerf's")
    mllog.add_argument("case", metavar="CASE", help="such as resnet50-2x8")
    mllog.add_argument(
        "--results", type=Path, default=Path("reports/latest/results.json"), metavar="FILE", help="of which run"
    )
    mllog.add_argument("--org", default="pytest-aisbench", metavar="NAME", help="who submits it")
    mllog.add_argument("--output", type=Path, metavar="FILE", help="where it is written (default: printed)")
    mllog.set_defaults(act=_mllog)


def _judge(options: argparse.Namespace) -> int:
    case, today = _case(options), day(SystemClock().now())
    results = read_results(options.folder)
    files = [(each, judge_file(case, each, today)) for each in results]
    whole = judge_set(case, files, today) if files else None
    code = Tally(expected={case.id}).code(0, {case.id: whole.ruling} if whole else {})
    if options.json:
        about = {
            "schema": "aisbench-judge/1",
            "workload": options.workload,
            "platform": options.platform,
            "shape": str(case.shape),
        }
        print(json.dumps({**about, **_document(files, whole, code)}, indent=2, ensure_ascii=False))
    else:
        _show(options.folder, files, whole)
    return code


def judge_file(case: Case, result: Result, today: str = "") -> Verdict:
    """Judge one file as a trial of the case without a history."""
    missing = (*result.missing, *_other_benchmark(case, result))
    measured = without_impossible_values(CaseValues(case, _values(case, result), missing))
    return evaluate(measured, today=today).verdict


def judge_set(case: Case, files: Sequence[tuple[Result, Verdict]], today: str = "") -> Verdict:
    """Judge all files together: every file must pass, and so must the mean over them."""
    values = [_values(case, each) for each, _ in files]
    means = {
        metric: mean([each[metric] for each in values])
        for metric in values[0]
        if all(metric in each for each in values)
    }
    whole = evaluate(CaseValues(case, means), today=today).verdict
    failed = [each.name for each, verdict in files if not verdict.passed]
    if not failed:
        return whole
    named = ", ".join(failed[:5]) + (" …" if len(failed) > 5 else "")
    return Verdict(Ruling.FAILED, f"{len(failed)} of {len(files)} did not pass: {named}", whole.findings)


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


def _show(folder: Path, files: Sequence[tuple[Result, Verdict]], whole: Verdict | None) -> None:
    if whole is None:
        print(f"{folder}: there is no result of MLPerf's, and nothing was judged")
        return
    for each, verdict in files:
        print(f"{verdict.ruling.value} {plain(each.name)}: {plain(verdict.reason)}")
    for source in sorted({each.throughput_from for each, _ in files} - {""}):
        print(f"  throughput is {source}")
    print(f"{whole.ruling.value} the set of {len(files)}: {plain(whole.reason)}")


def _document(files: Sequence[tuple[Result, Verdict]], whole: Verdict | None, code: int) -> dict[str, Any]:
    return {
        "exit_code": code,
        "set": _verdict(whole) if whole else None,
        "files": [
            {
                "file": each.name,
                **_verdict(verdict),
                "status": each.status or None,
                "seconds": each.seconds,
                "metrics": dict(each.measured),
                "throughput_from": each.throughput_from or None,
            }
            for each, verdict in files
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
    if not place.exists():
        raise UsageFault(f"{place}: there is no such folder")
    files = [place] if place.is_file() else sorted(path for path in place.rglob("*") if _may_be_result(path))
    results: list[Result] = []
    runs: dict[bytes, str] = {}
    for file in files:
        name = file.name if file == place else file.relative_to(place).as_posix()
        lines = _lines(file)
        if file == place or file.name.startswith(_RESULT) or any(lines):
            run = hashlib.sha256("".join(lines).encode("utf-8", "replace")).digest()
            same = runs.setdefault(run, name) if any(lines) else name
            results.append(_without_copy(parse_result(name, lines), same))
    return results


def _may_be_result(path: Path) -> bool:
    name = path.name.lower().removesuffix(_PACKED)
    suffix = Path(name).suffix
    return (suffix in _SUFFIXES or (not suffix and name.startswith(_RESULT))) and path.is_file()


def _without_copy(result: Result, same: str) -> Result:
    """The result, without its throughput if the file is a copy of `same`: a copy is not a second run."""
    if same == result.name:
        return result
    return replace(result, missing=(*result.missing, MissingResult(THROUGHPUT, f"it is the same run as {same}")))


def _lines(file: Path) -> list[str]:
    """The lines of a file, each empty unless it may hold an event."""
    opened: Callable[..., TextIO] = gzip.open if file.name.lower().endswith(_PACKED) else open
    try:
        with opened(file, "rt", encoding="utf-8", errors="replace") as log:
            return [line if MLLOG in line else "" for line in log]
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
