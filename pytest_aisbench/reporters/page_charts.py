"""Which pictures a case has, the most telling first."""

from __future__ import annotations

from collections.abc import Iterator

from pytest_aisbench.domain.case import Mode
from pytest_aisbench.domain.entry import CaseEntry, TrialEntry
from pytest_aisbench.domain.metric import THROUGHPUT
from pytest_aisbench.i18n import Language
from pytest_aisbench.reporters.svg import rank_chart
from pytest_aisbench.reporters.svg_curve import Claim, loss_chart, speed_chart
from pytest_aisbench.reporters.svg_heat import heat_map
from pytest_aisbench.reporters.svg_past import history_chart, scaling_chart
from pytest_aisbench.reporters.svg_timeline import timeline

_MAPPED = 4  # nodes from which on a map is clearer than bars
_COUNTED = frozenset({"images/s", "samples/s", "examples/s", "sequences/s", "sentences/s"})  # what logs call samples


def charts(case: CaseEntry, say: Language) -> Iterator[tuple[str, str, int]]:
    """Name, picture, and its place among what is left out where there is no room: the highest first."""

    def named(key: str) -> str:
        return say(key, case=case.id)

    if not case.trials:
        return
    last, shape = case.trials[-1], f"{case.nodes}x{case.devices_per_node}"
    speed = case.metrics.get(THROUGHPUT)
    unit, now = (speed.unit, speed.value) if speed else ("", None)
    yield named("lifecycle"), timeline(case.trials, title=named("lifecycle"), say=say), 7
    drawn = heat_map if case.nodes >= _MAPPED and case.devices_per_node > 1 else rank_chart
    key = "heat map" if drawn is heat_map else "rank chart"
    ranks = drawn(last.throughput_by_rank, case.devices_per_node, title=named(key), unit=unit, say=say)
    yield named(key), ranks, 5
    if last.curve:
        claim = _claim(case, last, unit)
        yield named("speed curve"), speed_chart(last.curve, title=named("speed curve"), claim=claim, say=say), 8
    if case.background:
        past = history_chart(case.background, now, title=named("history"), unit=unit, say=say)
        yield named("history"), past, 6
        scaling = scaling_chart(case.background.scaling, shape, title=named("scaling"), unit=unit, say=say)
        yield named("scaling"), scaling, 9
    if last.curve:
        yield named("loss curve"), loss_chart(last.curve, title=named("loss curve"), say=say), 10


def _claim(case: CaseEntry, trial: TrialEntry, unit: str) -> Claim | None:
    """The claim on the throughput of the case, for the speed that its log tells: a rank's share, if it is of one.

    None where the log counts something else, such as steps of a size that it does not say.
    """
    told, known = trial.curve, case.background
    if told is None or known is None or unit not in _COUNTED:
        return None
    if told.unit != "samples/s" and not (told.unit == "steps/s" and told.batch):
        return None
    whole = Claim(known.reference, known.low, known.high)
    if told.of == "job":
        return whole
    nodes = 1 if case.mode == Mode.SINGLE_SERVER.value else case.nodes
    return whole.per(nodes * case.devices_per_node)
