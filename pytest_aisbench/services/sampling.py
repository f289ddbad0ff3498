"""How busy the nodes of a job were, and what they drew, asked for once it has ended."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import replace
from statistics import fmean

from pytest_aisbench.domain.job import Power
from pytest_aisbench.domain.messages import message, plain
from pytest_aisbench.domain.ports import Platform, PowerSource
from pytest_aisbench.domain.trial import Trial
from pytest_aisbench.judge.standards import MARGIN_S, power_in_window
from pytest_aisbench.logs import get_logger, ignored, log_ignored

_LOG = get_logger("fleet")
_MOST_NODES = 32  # that the platform is asked about: more are as busy as these, and each costs a request


class Meter:
    """Asks the sources of power about a job, one after the other: the first that knows of it counts."""

    def __init__(self, sources: Mapping[str, PowerSource]) -> None:
        self._sources = dict(sources)

    def of(self, trial: Trial) -> Power | None:
        """None where there is no source at all."""
        if not self._sources:
            return None
        window = span(trial)
        if window is None:
            return Power(why="nobody saw the job run, and its log does not tell when it trained")
        start, end, which = window
        reasons: list[str] = []
        for name, source in self._sources.items():
            try:
                found = list(source.samples(trial.job_id or "", start - MARGIN_S, end + MARGIN_S))
            except Exception as error:  # noqa: BLE001 - of whoever wrote it: a verdict does not hang on it
                reasons.append(f"{name}: {plain(str(error) or type(error).__name__, 200)}")
                log_ignored(_LOG, error, "%s: the power that source %s has", trial.name, name)
                continue
            if found:
                return power_in_window(found, start, end, trial.case.shape.nodes, f"{name}, over {which}")
            reasons.append(f"{name}: it has no sample of the job")
        return Power(why="; ".join(reasons))

    def close(self) -> None:
        sources, self._sources = self._sources, {}
        for source in sources.values():
            with ignored(_LOG, Exception, "closing a power source"):  # whoever wrote it: the run has ended
                source.close()


def sampled(trial: Trial, platform: Platform, meter: Meter) -> Trial:
    """The trial with both; what nobody knows is left out. Nothing of this decides anything."""
    power = meter.of(trial)
    trial = replace(trial, usage=_usage(trial, platform), power=power)
    return trial.noted(message("unpowered", why=power.why)) if power and power.why else trial


def span(trial: Trial) -> tuple[float, float, str] | None:
    """When it drew power for what it is judged by: while it trained, or else while its job was seen to run."""
    if trial.curve and trial.curve.window:
        start, end = trial.curve.window
        return start, end, "the training"
    start, end = trial.times.get("running", math.nan), trial.times.get("harvest", math.nan)
    return (start, end, "the job") if start < end else None


def _usage(trial: Trial, platform: Platform) -> dict[str, float]:
    by_kind: dict[str, list[float]] = {}
    try:
        for node in range(min(trial.case.shape.nodes, _MOST_NODES)):
            for kind, samples in platform.usage(trial.job_id or "", node).items():
                if samples:
                    by_kind.setdefault(kind, []).append(fmean(samples))
    except Exception as error:  # noqa: BLE001 - of any platform: half of the nodes are not all of them
        log_ignored(_LOG, error, "%s: how its nodes were used", trial.name)
        return {}
    means = {kind: fmean(nodes) for kind, nodes in by_kind.items()}
    return {kind: mean for kind, mean in means.items() if math.isfinite(mean)}
