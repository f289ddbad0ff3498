"""The curve of a trial, read from its first worker's log once that came home."""

from __future__ import annotations

import codecs
from collections.abc import Iterable, Iterator
from pathlib import Path

from pytest_aisbench.domain.curve import Curve, extended
from pytest_aisbench.domain.progress import Progress
from pytest_aisbench.domain.trial import Trial
from pytest_aisbench.logs import get_logger, ignored

_LOG = get_logger("monitor")
_PIECE = 1 << 20
MOST = 8 * _PIECE  # of either end: a log may have a gigabyte, and a curve has two hundred points


def curve_of(trial: Trial, folder: Path) -> Curve | None:
    """None where the log tells nothing. A log decides nothing, so nothing that is wrong with one may matter."""
    name = first_worker(trial.logs)
    return read(folder / name, trial.case.shape.devices) if name else None


def first_worker(logs: Iterable[str]) -> str | None:
    """Whose log tells of the training."""
    return next((log for log in sorted(logs) if "worker" in Path(log).name), None)


def read(log: Path, ranks: int) -> Curve | None:
    """Of one log, to which so many ranks write."""
    curve, progress = Curve(), Progress(ranks=ranks)
    with ignored(_LOG, Exception, "what %s tells of loss and speed", log.name):
        for text in _pieces(log):
            curve, progress = extended(curve, progress, text)
    return None if curve == Curve() else curve


def _pieces(file: Path) -> Iterator[str]:
    """The log, or its beginning and its end, where it tells what it came to."""
    decoder = codecs.getincrementaldecoder("utf-8")("replace")
    with file.open("rb") as log:
        size = log.seek(0, 2)
        log.seek(0)
        while piece := log.read(_PIECE):
            yield decoder.decode(piece)
            if log.tell() == MOST < size - MOST:
                log.seek(size - MOST)
                log.readline(_PIECE)  # the rest of a line
                decoder.reset()
                yield "\n"
    yield "\n"
