"""The curve of a trial, read from its first worker's log once that came home."""

from __future__ import annotations

import contextlib
from pathlib import Path

from pytest_aisbench.domain.curve import Curve, extended
from pytest_aisbench.domain.progress import Progress
from pytest_aisbench.domain.trial import Trial

_PIECE = 1 << 20
_PIECES = 8  # a log may have a gigabyte, and a curve has two hundred points


def curve_of(trial: Trial, folder: Path) -> Curve | None:
    """None where the log tells nothing. A log decides nothing, so nothing that is wrong with one may matter."""
    name = next((log for log in sorted(trial.logs) if "worker" in log), None)
    if name is None:
        return None
    curve, progress = Curve(), Progress(ranks=trial.case.shape.devices)
    with contextlib.suppress(Exception), (folder / name).open(encoding="utf-8", errors="replace", newline="") as log:
        for _ in range(_PIECES):
            text = log.read(_PIECE)
            curve, progress = extended(curve, progress, text or "\n")
            if not text:
                break
    return None if curve == Curve() else curve
