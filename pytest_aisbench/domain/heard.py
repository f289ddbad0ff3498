"""What a running job shows of itself: its log, how busy its nodes are, and when either last moved."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace

from pytest_aisbench.domain.curve import Curve, extended
from pytest_aisbench.domain.job import LogPart
from pytest_aisbench.domain.progress import Progress

_AT_WORK = ("cpu", "npu", "gpu")  # memory is held by a job that hangs, too
_IDLE = 1.0  # percent: what an operating system needs for itself
_UNCHANGED = 0.1  # percent: what rounding may differ by

Newest = tuple[int, float, float]  # how many samples there are, and the last two


@dataclass(frozen=True)
class Heard:
    """A value: each reading returns the next one."""

    moved: float  # when there was last a sign of life, or when we began to listen
    progress: Progress = field(default_factory=Progress)
    curve: Curve = field(default_factory=Curve)
    advanced: float = 0.0  # when its epoch last changed
    said: str = ""  # the last line of node 0
    stalled: bool = False
    sizes: Mapping[int, int] = field(default_factory=dict)  # of the log, by node
    busy: Mapping[int, Mapping[str, Newest]] = field(default_factory=dict)  # by node


def with_log(heard: Heard, node: int, part: LogPart, now: float) -> Heard:
    """After a node's log was read from where it ended before."""
    first = node not in heard.sizes  # it had time to grow while nobody looked
    grown = part.next > heard.sizes.get(node, 0) and not (first and node)
    heard = replace(heard, sizes={**heard.sizes, node: part.next}, moved=now if grown else heard.moved)
    if node or not part.text:
        return heard
    lines = [line for line in part.text.splitlines() if line.strip()]
    curve, progress = extended(heard.curve, heard.progress, part.text)
    advanced = now if progress.epoch != heard.progress.epoch else heard.advanced
    said = lines[-1] if lines else heard.said
    return replace(heard, progress=progress, curve=curve, advanced=advanced, said=said)


def with_usage(heard: Heard, node: int, usage: Mapping[str, Sequence[float]], now: float) -> Heard:
    """After a node's samples were read. New ones are a sign of life if it works, and not always the same."""
    newest = {name: _newest(usage[name]) for name in _AT_WORK if usage.get(name)}
    before = heard.busy.get(node, {})
    alive = any(
        sample != before.get(name) and sample[2] > _IDLE and abs(sample[2] - sample[1]) > _UNCHANGED
        for name, sample in newest.items()
    )
    return replace(heard, busy={**heard.busy, node: newest}, moved=now if alive else heard.moved)


def judged(heard: Heard, now: float, stall_s: float) -> Heard:
    """Whether a job that shows no sign of life has done so for too long."""
    return replace(heard, stalled=now - heard.moved >= stall_s)


def _newest(samples: Sequence[float]) -> Newest:
    return len(samples), samples[-2] if len(samples) > 1 else 0.0, samples[-1]
