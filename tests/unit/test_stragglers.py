"""Stragglers: found from two ranks on, named, and priced."""

from __future__ import annotations

import random
from statistics import median

import pytest
from hypothesis import given
from hypothesis import strategies as st

from pytest_aisbench.judge.stragglers import find_stragglers, stragglers_message
from pytest_aisbench.model import codec
from pytest_aisbench.model.case import Shape
from pytest_aisbench.model.results import Straggler

speeds = st.floats(1.0, 1000.0)


def test_of_two_nodes_the_slower_one_is_known() -> None:
    (slow,) = find_stragglers([100.0, 80.0], Shape(2, 1))
    assert (slow.node, slow.card, slow.rank) == (1, None, None)
    assert slow.ratio == pytest.approx(0.8)
    assert slow.cost == pytest.approx(0.1)  # 180 of 200
    assert str(slow) == "node 1 runs at 80.0% of the median; total throughput -10.0%"


def test_a_slow_card_is_named_with_its_node() -> None:
    by_rank = [100.0] * 16
    by_rank[11] = 60.0
    (slow,) = find_stragglers(by_rank, Shape(2, 8))
    assert (slow.node, slow.card, slow.rank) == (1, 3, 11)
    assert (
        stragglers_message([slow])
        == "slow: node 1 card 3 (rank 11) runs at 60.0% of the median; total throughput -2.5%"
    )


def test_a_slow_node_is_named_once_and_not_card_by_card() -> None:
    by_rank = [100.0 + card / 10 for card in range(8)] + [70.0 + card / 10 for card in range(8)]
    (slow,) = find_stragglers(by_rank, Shape(2, 8))
    assert (slow.node, slow.card) == (1, None)
    assert slow.ratio == pytest.approx(0.70, abs=0.01)


def test_the_costliest_comes_first() -> None:
    by_rank = [100.0] * 32
    by_rank[3], by_rank[9] = 90.0, 50.0
    by_rank[16:24] = [80.0] * 8
    found = find_stragglers(by_rank, Shape(4, 8))
    assert [(each.node, each.card) for each in found] == [(2, None), (1, 1), (0, 3)]
    assert stragglers_message(found, most=1).endswith("; and 2 more")


def test_a_slow_card_of_one_node() -> None:
    (slow,) = find_stragglers([100.0, 100.0, 50.0], Shape(1, 3))
    assert (slow.node, slow.card, slow.rank) == (0, 2, 2)


@pytest.mark.parametrize(
    "by_rank",
    [
        [],
        [100.0],
        [100.0, None],
        [100.0, float("inf")],
        [8e307, 8e307, 8e307, 1.0],  # whose sum is none
        [100.0, 95.1],  # within 5 %
        [100.0, 120.0, 100.0, 100.0],  # faster is no fault
        [80.0, 90.0, 100.0],  # everybody differs: that is noise
        [0.0, 0.0],
    ],
)
def test_nobody_is_accused_without_cause(by_rank: list[float | None]) -> None:
    assert find_stragglers(by_rank, Shape(1, max(len(by_rank), 1))) == ()
    assert stragglers_message(()) == ""


def test_noise_of_healthy_ranks_accuses_nobody() -> None:
    dice = random.Random(6)
    for _ in range(100):
        by_rank = [dice.gauss(100.0, 1.0) for _ in range(64)]
        assert find_stragglers(by_rank, Shape(8, 8)) == ()


@pytest.mark.parametrize(("nodes", "devices"), [(2, 2), (2, 8), (3, 4), (8, 8)])
def test_a_slow_node_is_found_in_spite_of_the_noise_of_its_cards(nodes: int, devices: int) -> None:
    dice, shape = random.Random(5), Shape(nodes, devices)
    for _ in range(100):
        by_rank = [dice.gauss(88.0 if rank // devices == 1 else 100.0, 0.7) for rank in range(shape.world)]
        (slow,) = find_stragglers(by_rank, shape)
        assert (slow.node, slow.card) == (1, None)
        assert slow.ratio == pytest.approx(0.88, abs=0.03)
        assert slow.cost == pytest.approx(0.12 / nodes, abs=0.03)


def test_cards_as_noisy_as_nodes_differ_accuse_no_node() -> None:
    dice = random.Random(8)
    found = [find_stragglers([dice.gauss(100.0, 3.0) for _ in range(16)], Shape(2, 8)) for _ in range(200)]
    assert not [slow for run in found for slow in run if slow.card is None]


def test_beside_a_slow_node_a_slow_card_of_another_is_named_too() -> None:
    by_rank = [100.0] * 8 + [80.0] * 8
    by_rank[2] = 50.0
    node, card = find_stragglers(by_rank, Shape(2, 8))
    assert (node.node, node.card) == (1, None)
    assert (card.node, card.card, card.ratio) == (0, 2, 0.5)


def test_half_of_a_node_is_named_card_by_card() -> None:
    found = find_stragglers([100.0] * 8 + [100.0] * 4 + [70.0] * 4, Shape(2, 8))
    assert {(each.node, each.card) for each in found} == {(1, card) for card in range(4, 8)}


@given(st.lists(speeds, min_size=2, max_size=24), st.randoms())
def test_the_order_of_ranks_does_not_matter(by_rank: list[float], dice: random.Random) -> None:
    shape = Shape(1, len(by_rank))
    found = find_stragglers(by_rank, shape)
    shuffled = list(enumerate(by_rank))
    dice.shuffle(shuffled)
    again = find_stragglers([value for _, value in shuffled], shape)
    assert {shuffled[each.rank or 0][0] for each in again} == {each.rank for each in found}


@given(st.lists(speeds, min_size=2, max_size=24), st.integers(1, 4))
def test_who_is_named_is_below_the_median_of_the_others(by_rank: list[float], nodes: int) -> None:
    shape = Shape(nodes, -(-len(by_rank) // nodes))
    for each in find_stragglers(by_rank, shape):
        assert 0 < each.ratio < 0.95
        assert 0 < each.cost < 1
        if each.rank is not None and nodes == 1:
            others = median(by_rank[: each.rank] + by_rank[each.rank + 1 :])
            assert each.ratio == pytest.approx(by_rank[each.rank] / others)


@given(st.floats(0.01, 0.94), st.integers(2, 8), st.integers(1, 8), st.data())
def test_one_slow_node_is_found_at_every_shape(ratio: float, nodes: int, devices: int, data: st.DataObject) -> None:
    shape, slow = Shape(nodes, devices), data.draw(st.integers(0, nodes - 1))
    by_rank = [100.0 * (ratio if rank // devices == slow else 1.0) for rank in range(shape.world)]
    (found,) = find_stragglers(by_rank, shape)
    assert (found.node, found.card) == (slow, None)
    assert found.ratio == pytest.approx(ratio)


def test_a_straggler_survives_the_ledger() -> None:
    found = find_stragglers([100.0, 80.0], Shape(2, 1))
    before = {"node": 1, "card": None, "rank": None, "ratio": 0.8, "cost": 0.1}
    assert codec.dump(found) == [{**before, "host": ""}]
    assert codec.load(Straggler, codec.dump(found)[0]) == found[0]
    assert codec.load(Straggler, before) == found[0], "of a ledger without names"


def test_a_slow_node_is_named_where_the_platform_says_its_name() -> None:
    (slow,) = find_stragglers([100.0, 80.0], Shape(2, 1), ("cn01", "cn02"))
    assert slow.host == "cn02"
    assert str(slow).startswith("node 1 (cn02) runs at 80.0%")
    (slow,) = find_stragglers([100.0, 80.0], Shape(2, 1), ("cn01",))
    assert slow.host == "", "a list that does not fit the shape names none"
