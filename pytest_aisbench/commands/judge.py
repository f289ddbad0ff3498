"""`aisbench judge` and `aisbench mllog`: results of MLPerf's judged by our claims, and ours told in its words."""

from __future__ import annotations

import argparse
import json
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from pytest_aisbench import registry
from pytest_aisbench.commands import means
from pytest_aisbench.errors import UsageFault

if TYPE_CHECKING:
    from pytest_aisbench.domain.case import Case
    from pytest_aisbench.domain.mlperf import Result
    from pytest_aisbench.domain.verdict import Verdict


def register(acts: Any) -> None:
    verdict = acts.add_parser("judge", help="judge results of MLPerf's that exist already, and run nothing")
    verdict.add_argument("folder", type=Path, metavar="FOLDER", help="where they are, or one of them")
    verdict.add_argument("--workload", required=True, metavar="NAME", help="whose thresholds hold")
    verdict.add_argument("--suites", type=Path, default=Path("suites"), metavar="DIR", help="default: suites/")
    # Never `local`: the floors of a miniature would let everything pass.
    verdict.add_argument("--platform", default="modelarts", metavar="NAME", help="whose claims (default: modelarts)")
    verdict.add_argument("--shape", metavar="2x8", help="what trained (default: one node with the workload's cards)")
    verdict.add_argument("--json", action="store_true", help="for programs")
    verdict.set_defaults(act=_judge)
    mllog = acts.add_parser("mllog", help="write a case of results.json as a log of MLPerf's")
    mllog.add_argument("case", metavar="CASE", help="such as resnet50-2x8")
    mllog.add_argument(
        "--results", type=Path, default=Path("reports/latest/results.json"), metavar="FILE", help="of which run"
    )
    mllog.add_argument("--org", default="pytest-aisbench", metavar="NAME", help="who submits it")
    mllog.add_argument("--output", type=Path, metavar="FILE", help="where it is written (default: printed)")
    mllog.set_defaults(act=_mllog)


def _judge(options: argparse.Namespace) -> int:
    from pytest_aisbench.judge.exit_code import Tally
    from pytest_aisbench.services import result_files
    from pytest_aisbench.services.clock import SystemClock, day
    from pytest_aisbench.services.result_files import judge_file, judge_set

    case, today = _case(options), day(SystemClock().now())
    results = result_files.read(options.folder)
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


def _case(options: argparse.Namespace) -> Case:
    from pytest_aisbench.domain.case import Shape
    from pytest_aisbench.services import result_files, suite

    folder = result_files.suite_of(options.workload, options.suites)
    offered = registry.of_commands()
    own_keys = offered.kind(options.platform).options
    loaded = suite.load(folder, options.platform, own_keys, offered.platforms, trains=False)
    shape = Shape.parse(options.shape) if options.shape else Shape(1, loaded.workload.devices)
    case = loaded.case(shape)
    loaded.require_claims(case)
    return case


def _show(folder: Path, files: Sequence[tuple[Result, Verdict]], whole: Verdict | None) -> None:
    from pytest_aisbench.domain.messages import plain

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
    from pytest_aisbench.reporters.results import finding_document

    return {
        "verdict": verdict.ruling.value,
        "reason": verdict.reason,
        "findings": [finding_document(finding) for finding in verdict.findings],
    }


def _mllog(options: argparse.Namespace) -> None:
    from pytest_aisbench.reporters import mllog

    try:
        results = json.loads(options.results.read_bytes())
        found = {case["id"]: case for case in results["cases"] if case["trials"]}
        case = found.get(options.case)
        text = (
            mllog.text(results, case, options.org, _epochs(options.results.parent, case), _is_emulation) if case else ""
        )
    except OSError as error:
        raise UsageFault(f"{options.results}: {error.strerror}", advice="name it with --results") from None
    except (ValueError, LookupError, TypeError, AttributeError) as error:
        raise UsageFault(f"{options.results} is not a results.json: {error}") from None
    if not text:
        known = ", ".join(sorted(found)) or "none"
        raise UsageFault(f"{options.results}: no trial of {options.case!r}", advice=f"known: {known}")
    if options.output is None:
        print(text, end="")
    else:
        means.write(options.output, text)


def _is_emulation(platform: str) -> bool:
    kind = registry.of_commands().find_kind(platform)
    return kind is not None and kind.emulation


def _epochs(run: Path, case: Mapping[str, Any]) -> int:
    """How many its log tells of, where that still lies beside the results; at least one."""
    from pytest_aisbench.services.pacing import first_worker, read

    name = first_worker(case["trials"][-1].get("logs", ()))
    curve = read(run / name, case["devices_per_node"]) if name else None
    points = (*curve.loss.points, *curve.speed.points) if curve else ()
    return max((1, *(point.epoch for point in points)))
