"""The curve of a trial, read from its first worker's log once that came home."""

from __future__ import annotations

import codecs
import contextlib
from collections.abc import Iterator
from pathlib import Path

from pytest_aisbench.domain.curve import Curve, extended
from pytest_aisbench.domain.progress import Progress
from pytest_aisbench.domain.trial import Trial

_PIECE = 1 << 20
MOST = 8 * _PIECE  # of either end: a log may have a gigabyte, and a curve has two hundred points


def curve_of(trial: Trial, folder: Path) -> Curve | None:
    """None where the log tells nothing. A log decides nothing, so nothing that is wrong with one may matter."""
    name = next((log for log in sorted(trial.logs) if "worker" in Path(log).name), None)
    if name is None:
        return None
    curve, progress = Curve(), Progress(ranks=trial.case.shape.devices)
    with contextlib.suppress(Exception):
        for text in _pieces(folder / name):
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
