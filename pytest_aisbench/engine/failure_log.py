"""What the downloaded logs of a job tell of its failure: why it failed, which rank failed first, and its last lines."""

from __future__ import annotations

import os
import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

from pytest_aisbench.judge.stragglers import find_stragglers
from pytest_aisbench.judge.values import throughput_by_rank
from pytest_aisbench.logs import get_logger, log_ignored
from pytest_aisbench.model.job import LogExcerpt, Phase
from pytest_aisbench.model.messages import plain
from pytest_aisbench.model.metric import ACCURACY
from pytest_aisbench.model.trial import Trial
from pytest_aisbench.model.verdict import Outcome
from pytest_aisbench.traininglog.failure import LogErrors, LoggedError, Weight, first_error, read_errors
from pytest_aisbench.traininglog.readers import plain_line, rank_and_rest, read_line

_LOG = get_logger("fleet")
_TAIL_BYTES = 65536  # read from the end of a log, which may have a gigabyte
_ERROR_BYTES = 1 << 20  # the same, for errors: every rank of a node may print a traceback after the first
LONGEST_LINE = 300  # characters that we quote of a line
_MOST_SEARCHED = 32  # of nodes that we search for an error
_MOST_COMPARED = 256  # logs of ranks or nodes that we compare to find the one that is behind
_QUOTED = 3  # lines that matter
_NODE_OF_LOG = re.compile(r"worker-(\d+)", re.ASCII)
_RANK_OF_LOG = re.compile(r"proc-rank-(\d+)-device-", re.ASCII)
_NO_NEWS = re.compile(r"\s*(?:Traceback \(most recent call last\):|[\s^~]+)$")  # Python marks the place in a line by ^


def last_lines(trial: Trial, folder: Path, count: int) -> tuple[str, list[str]]:
    """The name of a log and its last lines: of the node that the platform blames, without the service's own lines."""
    for name in _blamed_first(trial):
        if spoken := _spoken(_tail(folder / name, _TAIL_BYTES)):
            return name, [plain(line[:LONGEST_LINE]) for line in spoken[-count:]]
    return "", []


def why_it_failed(trial: Trial, folder: Path) -> tuple[str, str]:
    """The name of a log and the first error of the rank that failed first; its last line where no line is an error."""
    first, suspicion = _first_error(trial, folder)
    if first:
        name, line = first[0], plain(str(first[1]))
    else:
        name, lines = last_lines(trial, folder, 1)
        line = "".join(lines).strip()
    return name, f"{line}; {plain(suspicion)}" if suspicion else line


def excerpt(trial: Trial, folder: Path) -> LogExcerpt | None:
    """The lines that say most of why the trial did not pass, of the rank that failed first; None if no log says more
    than the verdict: a speed that noise or the network lowers leaves no line."""
    if not any("worker" in log or _RANK_OF_LOG.search(log) for log in trial.logs):
        return None
    if trial.fault:
        failed = trial.job is not None and trial.job.phase is Phase.FAILED
        return _before_error(trial, folder) if failed else _of_rank_behind(trial, folder)
    rank = _rank_to_blame(trial)
    return None if rank is None else _end_of_rank(trial, folder, rank)


def _rank_to_blame(trial: Trial) -> int | None:
    """The first rank without a result, else the costliest slow one; the first of all for a model that did not learn."""
    by_rank, shape = throughput_by_rank(trial), trial.case.shape
    if None in by_rank:
        return by_rank.index(None)
    if slow := find_stragglers(by_rank, shape):
        return slow[0].node * shape.devices if slow[0].rank is None else slow[0].rank
    missed = (each for each in trial.verdict.findings if each.outcome in {Outcome.MISSED, Outcome.UNMEASURED})
    return 0 if any(each.metric == ACCURACY for each in missed) else None


def _first_error(trial: Trial, folder: Path) -> tuple[tuple[str, LoggedError] | None, str]:
    """The log and the error of the rank that failed first; and what our own script on a node suspects."""
    logs: list[tuple[str, LogErrors]] = []
    for name in [log for log in _blamed_first(trial) if "worker" in log][:_MOST_SEARCHED]:
        errors = read_errors(_tail(folder / name, _ERROR_BYTES))
        logs.append((name, errors))
        if own := _rank_log(trial, errors.failed_rank):
            logs[-1:-1] = [(own, _of_one_rank(_tail(folder / own, _ERROR_BYTES), errors))]
        if any(error.weight <= Weight.CAUSE for _, each in logs[-2:] for error in each.errors):
            break
    return first_error(logs), next((errors.suspicion for _, errors in logs if errors.suspicion), "")


def _before_error(trial: Trial, folder: Path) -> LogExcerpt | None:
    """What the rank that failed first printed before its error, which the verdict quotes."""
    first, _ = _first_error(trial, folder)
    if first is None:
        return _of_rank_behind(trial, folder)
    name, error = first
    rank = error.rank.rpartition(",")[2]  # mpirun writes its job before the rank
    lines = [
        rest
        for named, rest in _without_rank_names(_tail(folder / name, _ERROR_BYTES))
        if not rank or named in {"", rank}
    ]
    at = next((number for number, line in enumerate(lines) if error.text[:100] in line), len(lines))
    return _excerpt(name, lines[:at], int(rank) if rank.isdecimal() else None)


@dataclass(frozen=True)
class _Printed:
    """The end of what a rank, or a node, printed."""

    log: str
    rank: int | None
    lines: Sequence[str]
    size: int

    @property
    def position(self) -> tuple[int, int, int]:
        for line in reversed(self.lines):
            if (found := read_line(line)) and (found[1].epoch or found[1].step):
                return found[1].epoch or 0, found[1].step or 0, self.size
        return 0, 0, self.size


def _of_rank_behind(trial: Trial, folder: Path) -> LogExcerpt | None:
    """The last lines of the rank that came least far; of the first one if all came equally far."""
    behind = min(_ranks(trial, folder), key=lambda each: each.position, default=None)
    return _excerpt(behind.log, behind.lines, behind.rank) if behind else None


def _end_of_rank(trial: Trial, folder: Path, rank: int) -> LogExcerpt | None:
    """The last lines of a rank; those of its node if no log is of one rank and no line names its rank."""
    node = rank // trial.case.shape.devices
    by_rank = {each.rank: each for each in _ranks(trial, folder, rank)}
    printed = by_rank.get(rank) or next((each for each in by_rank.values() if f"worker-{node}" in each.log), None)
    return _excerpt(printed.log, printed.lines, printed.rank) if printed else None


def _ranks(trial: Trial, folder: Path, wanted: int | None = None) -> Iterator[_Printed]:
    """What each rank printed, by logs of single ranks or by ranks that lines name; else what each node printed."""
    own = [(int(match[1]), log) for log in trial.logs if (match := _RANK_OF_LOG.search(log))]
    if own:
        for rank, log in sorted(each for each in own if wanted in {None, each[0]})[:_MOST_COMPARED]:
            yield _Printed(log, rank, _spoken(_tail(folder / log, _TAIL_BYTES)), _size(folder / log))
        return
    for log in [log for log in trial.logs if "worker" in log][:_MOST_COMPARED]:
        by_rank: dict[int | None, list[str]] = {}
        for named, rest in _without_rank_names(_tail(folder / log, _TAIL_BYTES)):
            number = named.rpartition(",")[2]
            by_rank.setdefault(int(number) if number.isdecimal() else None, []).append(rest)
        named_ranks = {rank: lines for rank, lines in by_rank.items() if rank is not None}
        for some_rank, lines in (named_ranks or by_rank or {None: []}).items():
            yield _Printed(log, some_rank, lines, sum(map(len, lines)))


def _excerpt(log: str, lines: Sequence[str], rank: int | None) -> LogExcerpt:
    """The last of the lines that say something."""
    if rank is None and (match := _RANK_OF_LOG.search(log)):
        rank = int(match[1])
    node = _NODE_OF_LOG.search(log)
    telling = [plain(plain_line(line)[:LONGEST_LINE].rstrip()) for line in lines if not _NO_NEWS.match(line)]
    return LogExcerpt(log, rank, int(node[1]) if node else None, tuple(telling[-_QUOTED:]))


def _without_rank_names(lines: Sequence[str]) -> Iterator[tuple[str, str]]:
    """The rank that each line names, or an empty string, and the line without it."""
    for line in _spoken(lines):
        named, rest = rank_and_rest(line)
        yield named, rest.removeprefix(" ") if named else rest


def _rank_log(trial: Trial, rank: str) -> str:
    """The log of the one rank, if ModelArts wrote one."""
    return next((log for log in trial.logs if rank and f"proc-rank-{rank}-device-" in log), "")


def _of_one_rank(lines: list[str], errors: LogErrors) -> LogErrors:
    """The errors of the rank that failed. What it said last is one, if no line looks like an error: `sys.exit("…")`."""
    own = read_errors(lines, rank=errors.failed_rank)
    if not own.errors and (spoken := _spoken(lines)):
        own.errors.append(LoggedError(spoken[-1].strip(), Weight.HINT, errors.failed_rank))
    return own


def _blamed_first(trial: Trial) -> list[str]:
    """The logs of the trial, from that of the node that the platform blames to those of single ranks."""
    reason = trial.job.reason if trial.job else ""
    return sorted(trial.logs, key=lambda log: (Path(log).stem not in reason, "worker" not in log))


def _spoken(lines: Sequence[str]) -> list[str]:
    """The lines that the job printed, without those of the service."""
    return [line.rstrip() for line in lines if line.strip() and "service log]" not in line.lower()]


def _tail(file: Path, size: int) -> list[str]:
    """The last lines of a log; none if it cannot be read."""
    try:
        with file.open("rb") as log:
            log.seek(max(0, log.seek(0, os.SEEK_END) - size))
            return log.read().decode("utf-8", "replace").splitlines()
    except OSError as error:
        log_ignored(_LOG, error, "the last lines of %s", file.name)
        return []


def _size(file: Path) -> int:
    return file.stat().st_size if file.is_file() else 0
