"""How far a training is, read from what it prints."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, replace

from pytest_aisbench.domain.log_readers import pending, tell
from pytest_aisbench.domain.told import Told

_NEWEST = ("ms_per_step", "throughput", "total", "accuracy")  # of these the last that was told counts


@dataclass(frozen=True)
class Progress:
    """What a log told so far; None until it was told. A loss that is no finite number is None again.

    Give `ranks` at the start: how many write to this log. Each prints the same epochs, and only with their number can
    a rank that lags be told from a training that began again, as `Model.train(1)` in a loop does.
    """

    epoch: int = 0  # counted from 1, over all restarts
    step: int = 0  # as it was printed: of the epoch, or of the whole training
    loss: float | None = None
    ms_per_step: float | None = None
    lines: int = 0
    throughput: float | None = None  # of the rank that told it last
    accuracy: float | None = None
    ranks: int = 1
    total: float | None = None  # throughput of the whole job, where the log tells that instead
    # Where the reader stands.
    rest: str = ""  # of a line that is not complete yet
    rank: str = ""  # the one that is followed, where lines say whose they are
    restarted: int = 0  # epochs before the last restart
    arrived: int = 0  # ranks that printed the newest epoch and step


def read(progress: Progress, text: str) -> Progress:
    """The progress after more of the log, which may end in the middle of a line."""
    for after, _ in follow(progress, text):
        progress = after
    return progress


def follow(progress: Progress, text: str) -> Iterator[tuple[Progress, Told | None]]:
    """The progress after each line that says something of the rank that is followed, and what; at last, after all."""
    *whole, rest = text.split("\n")
    if not whole:
        yield replace(progress, rest=pending(progress.rest + rest)), None
        return
    whole[0] = progress.rest + whole[0]
    lines = progress.lines + len(whole)
    for line in whole:
        rank, told = tell(line) or ("", None)
        if told is None:
            continue
        # What is said once at the end may be said by any rank; all else by the one that is followed.
        if progress.rank and rank != progress.rank and not told.final:
            if told.accuracy is None:
                continue
            told = Told(accuracy=told.accuracy)
        progress = _told(progress, rank, told)
        yield progress, told
    yield replace(progress, lines=lines, rest=pending(rest)), None


def _told(progress: Progress, rank: str, told: Told) -> Progress:
    if told.epoch is not None and told.step is None:  # the epoch goes on, or is the next
        reached = max(progress.epoch, progress.restarted + told.epoch)
        progress = replace(progress, epoch=reached, loss=told.loss if told.has_loss else progress.loss, rank=rank)
    elif told.epoch is not None:
        progress = _trained(progress, rank, told, told.epoch)
    elif told.step is not None and told.step >= progress.step:  # an evaluation counts its own steps, from 1 again
        progress = replace(progress, step=told.step, loss=told.loss if told.has_loss else progress.loss, rank=rank)
    elif told.step is not None and told.total is None and told.throughput is None:
        return progress if told.accuracy is None else replace(progress, accuracy=told.accuracy)
    elif told.has_loss:
        progress = replace(progress, loss=told.loss)
    news = {name: value for name in _NEWEST if (value := getattr(told, name)) is not None}
    return replace(progress, **news) if news else progress


def _trained(progress: Progress, rank: str, told: Told, epoch: int) -> Progress:
    step = told.step or 0
    now, last = (epoch, step), (progress.epoch - progress.restarted, progress.step)
    ranks = 1 if rank else progress.ranks
    arrived, restarted = progress.arrived + 1, progress.restarted
    if now > last:
        arrived = 1
    elif progress.arrived >= ranks:  # everybody was there: going back is a beginning
        arrived, restarted = 1, progress.epoch
    elif now < last:
        return progress  # a rank that lags
    return replace(
        progress,
        epoch=restarted + epoch,
        step=step,
        loss=told.loss if told.has_loss else progress.loss,
        rank=rank,
        restarted=restarted,
        arrived=arrived,
    )
