"""The other pictures of a case: well-formed, small, told in words, and right about what they show."""

from __future__ import annotations

import base64
import re
import struct
import zlib
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from xml.etree import ElementTree as ET

import pytest
import showcase

from pytest_aisbench.i18n import ENGLISH, Language, language
from pytest_aisbench.model.case import Shape
from pytest_aisbench.model.metric import Curve, Point, Series
from pytest_aisbench.model.results import CaseEntry
from pytest_aisbench.model.verdict import Background, Past, ScalePoint
from pytest_aisbench.report import charts
from pytest_aisbench.report.charts import (
    BAND,
    COLOURS,
    GRID,
    INK,
    MARK,
    ODD,
    PAPER,
    VARIABLES,
    Claim,
    StepSpan,
    history_chart,
    loss_chart,
    run_scaling_chart,
    scaling_chart,
    speed_chart,
    step_spans,
    ticks,
    timeline,
)
from pytest_aisbench.report.rank_charts import case_charts, heat_map

CHINESE = language("zh")
SVG = "{http://www.w3.org/2000/svg}"
STYLE = (Path(charts.__file__).parents[1] / "look.css").read_text(encoding="utf-8")
LOOK = [dict(re.findall(r"--([\w-]+): (#\w+);", part)) for part in STYLE.split("{")[1:5:3]]  # by day, and by night
HOSTILE = "<script>alert(1)</script> ' \" & ]]> \x1b[2J \x00 \ud800"


def drawn(text: str) -> ET.Element:
    assert '"' not in text  # it travels inside a double-quoted attribute
    return ET.fromstring(text)


def told(svg: ET.Element) -> str:
    return svg.findtext(f"{SVG}desc") or ""


def bands(svg: ET.Element) -> list[ET.Element]:
    return [path for path in svg.iter(f"{SVG}path") if path.get("fill") == BAND]


@pytest.mark.parametrize("say", [ENGLISH, CHINESE])
@pytest.mark.parametrize("make", [showcase.case, showcase.failed, showcase.broken, showcase.inconclusive])
def test_every_picture_is_well_formed_and_small(make: Callable[[], CaseEntry], say: Language) -> None:
    made = [text for chart in case_charts(make(), say) if (text := chart.draw())]

    assert made
    for text in made:
        assert drawn(text).get("role") == "img"
        assert len(text) < 6000


def test_titles_of_strangers_stay_words() -> None:
    last = showcase.case().trials[-1]
    assert last.curve
    ranks = last.throughput_by_rank
    background = Background(history=(Past("r", 0.0, 1.0),))
    points = [ScalePoint(HOSTILE, 1.0, None, HOSTILE), ScalePoint("2x8", 2.0, None, HOSTILE)]

    for text in (
        timeline([last], title=HOSTILE),
        speed_chart(replace(last.curve, unit=HOSTILE), title=HOSTILE),
        loss_chart(last.curve, title=HOSTILE),
        heat_map(ranks, 8, title=HOSTILE, unit=HOSTILE),
        history_chart(background, 1.0, title=HOSTILE, unit=HOSTILE),
        scaling_chart(points, title=HOSTILE, unit=HOSTILE),
    ):
        svg = drawn(text)
        assert not list(svg.iter(f"{SVG}script"))
        assert "<script>" in (svg.findtext(f"{SVG}title") or "")


def test_a_life_is_told_at_its_true_times() -> None:
    times = {
        "stage": 0.0,
        "submit": 5.0,
        "watch": 10.0,
        "harvest": 110.0,
        "judge": 111.0,
        "done": 112.0,
        "silent": 50.0,
    }

    assert step_spans(times, 40.0) == [
        StepSpan("stage", 0.0, 5.0),
        StepSpan("submit", 5.0, 10.0),
        StepSpan("queue", 10.0, 50.0),
        StepSpan("train", 50.0, 110.0),
        StepSpan("harvest", 110.0, 111.0),
        StepSpan("judge", 111.0, 112.0),
    ]
    assert StepSpan("watch", 10.0, 110.0) in step_spans(times, None)
    assert StepSpan("queue", 10.0, 110.0) in step_spans(times, 9999.0)  # a clock that is wrong draws nothing outside


def test_trials_follow_each_other_on_one_scale() -> None:
    svg = drawn(timeline(showcase.case().trials, title="a"))

    pieces = [rect for rect in svg.iter(f"{SVG}rect") if rect.get("fill") == COLOURS["train"]]
    first, second = (float(piece.get("x") or 0) for piece in pieces)
    width = float(pieces[0].get("width") or 0)
    assert first + width < second
    assert pieces[0].findtext(f"{SVG}title") == "running 1 h 46 min"
    assert told(svg).startswith("staged 14.0 s · submitted 4.0 s · queued 9 min 40 s · running 1 h 46 min")


def test_nothing_timed_is_nothing_drawn() -> None:
    assert not timeline([replace(showcase.case().trials[0], times={})], title="a")
    assert not timeline([], title="a")


def speeds(*values: float) -> Curve:
    points = tuple(Point(0, 10 * (at + 1), value) for at, value in enumerate(values))
    return Curve(Series(points), Series(points), "samples/s", "rank")


def test_a_curve_has_its_band_and_its_warm_up() -> None:
    svg = drawn(speed_chart(speeds(10.0, 10.0, *[100.0] * 20), title="a", claim=Claim(100.0, 95.0, None)))

    assert told(svg) == (
        "one rank · by its log · steady 100 samples/s · warm-up of 2 points · 100 samples/s at the end"
    )
    assert len(bands(svg)) == 1
    assert any("warm-up" in (text.text or "") for text in svg.iter(f"{SVG}text"))


@pytest.mark.parametrize("values", [(), (1.0,), (float("nan"), 2.0)])
def test_too_little_is_no_curve(values: tuple[float, ...]) -> None:
    assert not speed_chart(speeds(*values), title="a")
    assert not loss_chart(speeds(*values), title="a")


@pytest.mark.parametrize(
    ("change", "unit", "reference"),
    [
        ({}, "images/s", 1769.0),  # a rank's share of sixteen
        ({"of": "job"}, "images/s", 28304.0),
        ({"unit": "steps/s", "batch": 256}, "images/s", 1769.0),
        ({"unit": "steps/s"}, "images/s", None),  # nobody knows how large a step is
        ({}, "tokens/s", None),  # a log counts samples
    ],
)
def test_the_claim_is_drawn_only_where_the_log_counts_the_same(
    change: dict[str, object], unit: str, reference: float | None
) -> None:
    case = showcase.case()
    last = case.trials[-1]
    assert last.curve
    curve = replace(last.curve, **change)  # type: ignore[arg-type]
    speed = replace(case.metrics["throughput"], unit=unit)
    case = replace(case, trials=(replace(last, curve=curve),), metrics={**case.metrics, "throughput": speed})

    found = {chart.name: chart.draw() for chart in case_charts(case, ENGLISH)}
    texts = list(drawn(found["resnet50-2x8: speed through the training"]).itertext())

    assert ("reference" in texts) is (reference is not None)
    assert reference is None or f"{reference:.0f}" in texts


def cells(text: str) -> list[list[int]]:
    """The pixels of the map, row by row."""
    found = re.search("base64,([^']*)'", text)
    assert found
    png = base64.b64decode(found[1])
    wide, high = struct.unpack(">II", png[16:24])
    start = png.index(b"IDAT")
    size = struct.unpack(">I", png[start - 4 : start])[0]
    data = zlib.decompress(png[start + 4 : start + 4 + size])
    return [list(data[row * (wide + 1) + 1 : (row + 1) * (wide + 1)]) for row in range(high)]


@pytest.mark.parametrize("nodes", [2, 8, 128])
def test_a_map_shows_each_card_at_its_place(nodes: int) -> None:
    ranks: list[float | None] = [100.0] * (nodes * 8)
    ranks[8 + 3], ranks[-1] = 70.0, None  # node 1 card 3; the last card of the last node

    text = heat_map(ranks, 8, title="a", unit="images/s")

    found = cells(text)
    assert (len(found), len(found[0])) == (8, nodes)
    odd = {(node, card): value for card, row in enumerate(found) for node, value in enumerate(row) if value != 11}
    assert odd == {(1, 3): 1, (nodes - 1, 7): 0}  # as slow as it gets, and missing
    story = told(drawn(text))
    assert story == f"median 100 images/s per rank · 1 outlier: rank 11 (-30%) · 1 missing: rank {nodes * 8 - 1}"
    assert len(text) < 4000


def test_of_a_thousand_nodes_a_column_is_the_slowest_of_several() -> None:
    ranks: list[float | None] = [100.0] * 8192
    ranks[5] = 50.0

    text = heat_map(ranks, 8, title="a")

    assert "each cell is the slowest of 4 nodes" in told(drawn(text))
    assert len(cells(text)[0]) == 256
    assert cells(text)[5][0] == 1
    assert len(text) < 5000


def test_one_node_needs_no_map() -> None:
    assert not heat_map([1.0] * 8, 8, title="a")
    assert not heat_map([None] * 16, 8, title="a")


@pytest.mark.parametrize(("now", "colour"), [(100.0, MARK), (90.0, ODD)])
def test_a_past_has_a_band_a_dot_for_each_trial_and_a_diamond_for_this_run(now: float, colour: str) -> None:
    past = tuple(Past(f"run-{day}", 86400.0 * day, 100.0 + day % 2) for day in range(5))
    background = Background(100.0, 95.0, None, (now - 1, now + 1), past)

    svg = drawn(history_chart(background, now, title="a", unit="images/s"))

    assert (
        told(svg)
        == f"5 earlier trials · this run {now:.0f} images/s · what the trials tell: {now - 1:.0f} to {now + 1:.0f}"
    )
    assert len(bands(svg)) == 1
    fills = [path.get("fill") for path in svg.iter(f"{SVG}path")]
    assert colour in fills
    hints = [dot.findtext(f"{SVG}title") for dot in svg.iter(f"{SVG}circle")]
    assert hints == [f"1970-01-0{day + 1} run-{day}: {100 + day % 2}" for day in range(5)]


def test_a_change_of_level_is_marked_where_it_was() -> None:
    past = tuple(Past(f"run-{day}", 86400.0 * day, (100.0 if day < 12 else 95.0) + day % 2 / 10) for day in range(20))
    svg = drawn(history_chart(Background(history=past), 95.0, title="a"))
    (line,) = [path for path in svg.iter(f"{SVG}path") if path.get("stroke-dasharray") == "2 3"]
    places = [float(dot.get("cx", "")) for dot in svg.iter(f"{SVG}circle")]
    assert places[11] < float(line.get("d", "").split()[0][1:]) < places[12]
    assert "-5.0%" in [text.text for text in svg.iter(f"{SVG}text")]


@pytest.mark.parametrize(("reference", "low"), [(2000.0, 1900.0), (500.0, 475.0)])
def test_the_band_of_a_claim_is_always_inside_the_axis(reference: float, low: float) -> None:
    past = tuple(Past(f"run-{day}", 86400.0 * day, 1600.0 + day) for day in range(5))
    background = Background(reference, low, None, history=past)
    svg = drawn(history_chart(background, 1604.0, title="a", day="2027-01-31"))
    texts = [text.text or "" for text in svg.iter(f"{SVG}text")]
    axis = [float(text) for text in texts if text.isdecimal()]
    assert min(axis) <= low < reference <= max(axis)
    (band,) = bands(svg)
    _, top, _, floor = re.findall(r"[\d.]+", band.get("d", ""))[:4]
    assert float(floor) - float(top) > 5  # it is there to be seen
    assert "2027-01-31" in texts
    assert told(svg) == "5 earlier trials · newest 1604"


def test_the_scaling_of_all_workloads_is_one_picture() -> None:
    def points(*shares: float) -> list[ScalePoint]:
        return [ScalePoint(f"{2**at}x8", 100.0 * 2**at * share, share, "this run") for at, share in enumerate(shares)]

    lines = {"good": points(1.0, 0.99, 0.97), "<bad>": points(1.0, 0.7), "alone": points(1.0)}
    svg = drawn(run_scaling_chart(lines, 0.9, title="Scaling"))
    assert told(svg) == "least: <bad> 2x8, 70.0% · claim: at least 90%"
    hints = [path.findtext(f"{SVG}title") for path in svg.iter(f"{SVG}path") if path.find(f"{SVG}title") is not None]
    assert "good 4x8: 388, 97.0% efficiency, this run" in hints
    assert len(hints) == 5  # `alone` has nothing to scale
    assert len(bands(svg)) == 1
    many = {f"w{at}": points(1.0, 1 - at / 100) for at in range(20)}
    assert told(drawn(run_scaling_chart(many, None, title="Scaling"))) == "least: w19 2x8, 81.0% · and 13 more"
    assert not run_scaling_chart({"alone": points(1.0)}, None, title="Scaling")


def test_without_a_past_or_other_shapes_there_is_no_picture_of_them() -> None:
    assert not history_chart(Background(1.0), 1.0, title="a")
    assert not scaling_chart([ScalePoint("1x8", 1.0, 1.0, "")], title="a")


def test_scaling_is_the_share_of_the_ideal() -> None:
    points = [
        ScalePoint("1x8", 100.0, None, "history: run run-1"),
        ScalePoint("2x8", 180.0, None, "this run"),
        ScalePoint("4x8", 320.0, 0.8, "this run"),
    ]

    svg = drawn(scaling_chart(points, title="a", unit="images/s"))

    texts = [text.text for text in svg.iter(f"{SVG}text")]
    assert [text for text in texts if text in {"100%", "90%", "80%"}] == ["100%", "90%", "80%"]
    assert told(svg) == "320 images/s at 4x8 · 80.0% efficiency · dashed: from history"
    bars = [path for path in svg.iter(f"{SVG}path") if path.find(f"{SVG}title") is not None]
    assert ["stroke-dasharray" in bar.attrib for bar in bars] == [True, False, False]


def test_the_scaling_of_a_case_tells_its_own_shape() -> None:
    speeds = {"1x8": (100.0, 1.0), "2x8": (180.0, 0.9), "4x8": (320.0, 0.8)}
    points = [ScalePoint(shape, *speed, "this run") for shape, speed in speeds.items()]

    svg = drawn(scaling_chart(points, "2x8", title="a", unit="images/s"))

    assert told(svg) == "180 images/s at 2x8 · 90.0% efficiency"
    bold = [text.text for text in svg.iter(f"{SVG}text") if text.get("font-weight") == "bold" and text.text != "a"]
    assert bold == ["2x8"]


@pytest.mark.parametrize("name", COLOURS)
def test_the_words_on_a_piece_of_life_are_readable_by_day_and_by_night(name: str) -> None:
    day, night = LOOK
    ink = INK if COLOURS[name] == GRID else PAPER
    for palette in (day, night):
        dark, light = sorted(luminance(palette[VARIABLES[colour]]) for colour in (ink, COLOURS[name]))
        assert (light + 0.05) / (dark + 0.05) >= 4.5  # WCAG, for text


def test_pictures_have_the_colours_of_our_pages() -> None:
    """Where nothing replaces them, as in Allure: those of a light page."""
    day, night = LOOK
    solid = {colour: name for colour, name in VARIABLES.items() if colour != BAND}  # which is transparent in a page
    assert {colour: day[name] for colour, name in solid.items()} == {colour: colour for colour in solid}
    assert set(VARIABLES.values()) <= night.keys()


def luminance(colour: str) -> float:
    parts = [int(colour[at : at + 2], 16) / 255 for at in (1, 3, 5)]
    red, green, blue = (part / 12.92 if part <= 0.04045 else ((part + 0.055) / 1.055) ** 2.4 for part in parts)
    return 0.2126 * red + 0.7152 * green + 0.0722 * blue


@pytest.mark.parametrize(("low", "high"), [(0.0, 1.0), (28100.0, 28500.0), (-3.0, 7.0), (5.0, 5.0), (1e-9, 1e-8)])
def test_an_axis_has_few_round_numbers_around_all_values(low: float, high: float) -> None:
    found = ticks(low, high)

    assert found[0] <= low
    assert found[-1] >= high
    assert 2 <= len(found) <= 7


def test_shapes_from_four_nodes_on_are_a_map() -> None:
    names = [
        [chart.name for chart in case_charts(showcase.case(shape), ENGLISH) if chart.draw() and "by" in chart.name]
        for shape in (Shape(1, 8), Shape(4, 8), Shape(8, 1))
    ]

    assert names == [
        ["resnet50-1x8: throughput by rank"],
        ["resnet50-4x8: throughput by node and card"],
        ["resnet50-8x1: throughput by rank"],
    ]
