"""The picture of the ranks: valid, small, and honest about what is odd or missing."""

from __future__ import annotations

import re
from xml.etree import ElementTree as ET

import pytest

from pytest_aisbench.judge.stragglers import find_stragglers
from pytest_aisbench.model.case import Shape
from pytest_aisbench.report.charts import BAR, ODD
from pytest_aisbench.report.rank_charts import outliers, rank_chart

SVG = "{http://www.w3.org/2000/svg}"


def steady(count: int) -> list[float | None]:
    return [100.0 + rank % 3 * 0.1 for rank in range(count)]


def drawn(
    values: list[float | None], devices: int = 8, title: str = "resnet50-2x8", unit: str = "images/s"
) -> ET.Element:
    text = rank_chart(values, devices, title=title, unit=unit)
    assert '"' not in text  # it travels inside a double-quoted attribute
    return ET.fromstring(text)


def tooltips(svg: ET.Element) -> list[str]:
    return [title.text or "" for path in svg.iter(f"{SVG}path") for title in path.findall(f"{SVG}title")]


def top(shape: str) -> float:
    found = re.match(r"M[\d.]+ 202V([\d.]+)", shape)
    assert found
    return float(found[1])


def told(svg: ET.Element) -> str:
    found = svg.find(f"{SVG}desc")
    assert found is not None
    return found.text or ""


def test_every_rank_has_its_bar() -> None:
    svg = drawn(steady(16))

    assert tooltips(svg)[:2] == ["rank 0: 100 images/s", "rank 1: 100.1 images/s"]
    assert len(tooltips(svg)) == 16
    labels = [text.text for text in svg.iter(f"{SVG}text")]
    assert [label for label in labels if label and label.startswith("node")] == ["node 0", "node 1"]
    assert told(svg) == "median 100.1 images/s per rank · no outlier among 16 ranks"


def test_a_slow_rank_and_a_silent_one_stand_out() -> None:
    values = steady(16)
    values[3], values[12] = 70.0, None

    svg = drawn(values)

    assert told(svg).endswith("1 outlier: rank 3 (-30%) · 1 missing: rank 12")
    bars = {title.text: path for path in svg.iter(f"{SVG}path") for title in path.findall(f"{SVG}title")}
    assert bars["rank 3: 70 images/s"].get("fill") == ODD
    pattern = svg.find(f"{SVG}pattern")
    assert pattern is not None
    assert bars["rank 12: no result"].get("fill") == f"url(#{pattern.get('id')})"
    assert "missing" in [text.text for text in svg.iter(f"{SVG}text")]


def test_it_names_itself_for_those_who_cannot_see_it() -> None:
    svg = drawn(steady(8))
    ids = {child.get("id") for child in svg if child.tag in {f"{SVG}title", f"{SVG}desc"}}

    assert svg.get("role") == "img"
    assert set((svg.get("aria-labelledby") or "").split()) == ids


def test_charts_of_one_page_do_not_share_names() -> None:
    first, second = (drawn(steady(8), title=title) for title in ("a-1x8", "b-1x8"))

    assert not {e.get("id") for e in first.iter() if e.get("id")} & {e.get("id") for e in second.iter() if e.get("id")}


@pytest.mark.parametrize("gone", [0, 63])
def test_64_ranks_are_small(gone: int) -> None:
    values = steady(64)
    values[:gone] = [None] * gone

    assert len(rank_chart(values, 8, title="resnet50-8x8: throughput by rank", unit="images/s")) < 12_000


@pytest.mark.parametrize(("ranks", "devices", "size"), [(1024, 8, 4), (4096, 16, 16), (2400, 8, 16), (264, 8, 2)])
def test_many_ranks_share_bars_that_show_the_slowest(ranks: int, devices: int, size: int) -> None:
    values = steady(ranks)
    values[5], values[ranks - 1] = 50.0, None

    svg = drawn(values, devices)

    assert f"each bar is the slowest of {size} ranks" in told(svg)
    assert "1 outlier: rank 5 (-50%)" in told(svg)
    assert f"1 missing: rank {ranks - 1}" in told(svg)
    shapes = "".join(path.get("d", "") for path in svg.iter(f"{SVG}path") if path.get("fill", "none") != "none")
    assert len(re.findall(r"V202z", shapes)) == ranks // size
    odd = next(path.get("d", "") for path in svg.iter(f"{SVG}path") if path.get("fill") == ODD)
    usual = next(path.get("d", "") for path in svg.iter(f"{SVG}path") if path.get("fill") == BAR)
    assert top(odd) > top(usual) + 50  # y grows downwards: the bucket of the slow rank is lower
    assert len(ET.tostring(svg)) < 15_000


def test_hostile_words_stay_words() -> None:
    title = "<script>alert(1)</script> ' \" & ]]> \x1b[2J \x00 \ud800"

    svg = drawn(steady(8), title=title, unit="<b>'/s")

    assert not list(svg.iter(f"{SVG}script"))
    assert "<script>alert(1)</script>" in (svg.findtext(f"{SVG}title") or "")


@pytest.mark.parametrize("values", [[], [None, None], [float("nan")]])
def test_nothing_measured_draws_nothing(values: list[float | None]) -> None:
    assert not rank_chart(values, 8, title="t")


@pytest.mark.parametrize("values", [[0.0, 0.0, 0.0], [-1.0, 2.0], [1e-9], [3e12, None]])
def test_odd_numbers_are_drawn(values: list[float | None]) -> None:
    drawn(values, 1)


def test_noise_hides_what_it_explains() -> None:
    assert outliers([100.0, 100.0, 100.0, 96.0]) == set()  # within 5%
    assert outliers([100.0, 100.0, 100.0, 94.0]) == {3}
    assert outliers([80.0, 120.0, 90.0, 110.0, 75.0]) == set()  # all are far from each other
    assert outliers([100.0, 10.0]) == set()  # nobody can say which of two is odd


def test_whom_the_verdict_calls_slow_the_picture_marks() -> None:
    values: list[float | None] = [112.0, 130.0, 124.0, 132.0]

    assert outliers(values) == set()
    assert [slow.rank for slow in find_stragglers(values, Shape(2, 2))] == [0]
    assert told(drawn(values, 2)).endswith("1 outlier: rank 0 (-12%)")
