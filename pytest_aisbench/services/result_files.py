"""`aisbench judge`: find MLPerf results in a folder, and judge them by the thresholds of a suite."""

from __future__ import annotations

import gzip
import hashlib
import zlib
from collections.abc import Callable, Iterable, Sequence
from dataclasses import replace
from pathlib import Path
from typing import TextIO

from pytest_aisbench.domain.case import Case
from pytest_aisbench.domain.log_readers import MLLOG
from pytest_aisbench.domain.metric import ACCURACY, THROUGHPUT, TIME_TO_ACCURACY, MissingResult
from pytest_aisbench.domain.mlperf import BENCHMARKS, Result, benchmark, parse_result
from pytest_aisbench.domain.verdict import Ruling, Verdict
from pytest_aisbench.errors import UsageFault
from pytest_aisbench.judge.evaluate import evaluate
from pytest_aisbench.judge.values import CaseValues, mean, target_accuracy
from pytest_aisbench.services.suite import folders

_SUFFIXES = frozenset({".txt", ".log", ".out"})  # checkpoints and data may stand beside them, and are large
_PACKED = ".gz"
_NAMED = "result"  # MLPerf's own name of a run is `result_0.txt`


def read(place: Path) -> list[Result]:
    """Every file that is a result, or is named as one: an empty `result_3.txt` is a run that failed."""
    if not place.exists():
        raise UsageFault(f"{place}: there is no such folder")
    files = [place] if place.is_file() else sorted(path for path in place.rglob("*") if _may_be_one(path))
    results: list[Result] = []
    runs: dict[bytes, str] = {}
    for file in files:
        name = file.name if file == place else file.relative_to(place).as_posix()
        found = _lines(file)
        if file == place or file.name.startswith(_NAMED) or any(found):
            run = hashlib.sha256("".join(found).encode("utf-8", "replace")).digest()
            same = runs.setdefault(run, name) if any(found) else name
            results.append(_not_a_copy(parse_result(name, found), same))
    return results


def _may_be_one(path: Path) -> bool:
    name = path.name.lower().removesuffix(_PACKED)
    suffix = Path(name).suffix
    return (suffix in _SUFFIXES or (not suffix and name.startswith(_NAMED))) and path.is_file()


def _not_a_copy(result: Result, same: str) -> Result:
    """A copy of another file is not a second run: its throughput does not count."""
    if same == result.name:
        return result
    return replace(result, missing=(*result.missing, MissingResult(THROUGHPUT, f"it is the same run as {same}")))


def _lines(file: Path) -> list[str]:
    """Only what may be an event, in its line."""
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
    names = folders(suites)
    if workload not in names:
        known = ", ".join(sorted(filter(None, names))) or "none"
        raise UsageFault(f"no suite in {suites} holds a workload {workload!r}", advice=f"known: {known}")
    return names[workload]


def judge_file(case: Case, result: Result, today: str = "") -> Verdict:
    """Judge one file as a trial of the case without a history."""
    missing = (*result.missing, *_other_benchmark(case, result))
    return evaluate(CaseValues(case, _values(case, result), missing), today=today).verdict


def judge_set(case: Case, files: Sequence[tuple[Result, Verdict]], today: str = "") -> Verdict:
    """Judge all files together: every file must pass, and so must the mean over them."""
    values = [_values(case, each) for each, _ in files]
    means = {
        metric: mean([each[metric] for each in values])
        for metric in (THROUGHPUT, ACCURACY, TIME_TO_ACCURACY)
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
    ours, theirs = benchmark(case.workload.name), result.benchmark
    if theirs and ours in BENCHMARKS and not theirs.startswith(ours):
        text = f"submission_benchmark is {theirs!r}, and {case.workload.name} is {ours!r} in MLPerf's words"
        yield MissingResult(THROUGHPUT, text)


def _values(case: Case, result: Result) -> dict[str, float]:
    """What the file measured; a metric with a missing result has no value."""
    target = target_accuracy(case)
    times = [seconds for seconds, accuracy in result.evaluations if target is not None and accuracy >= target]
    return {**result.measured, **({TIME_TO_ACCURACY: times[0]} if times else {})}
