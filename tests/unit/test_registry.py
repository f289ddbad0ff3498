"""Platforms, reporters and power sources by name."""

from __future__ import annotations

import pytest

from pytest_aisbench import registry
from pytest_aisbench.errors import UsageFault
from pytest_aisbench.registry import REPORTERS, Registry


class Plain:
    """A reporter that says nothing about its use."""


class Busy:
    order, on_workers, once = 7, True, True


def test_a_reporter_says_what_it_needs_and_has_defaults_for_the_rest() -> None:
    offered = Registry({}, {"plain": f"{__name__}:Plain", "busy": f"{__name__}:Busy"})

    assert offered.reporter("plain")[1:] == (Plain, 0, False, False)
    assert offered.reporter("busy")[1:] == (Busy, 7, True, True)


def test_each_built_in_reporter_has_an_order_of_its_own() -> None:
    offered = registry.of_commands()
    orders = {name: offered.reporter(name).order for name in REPORTERS}

    assert len(set(orders.values())) == len(REPORTERS)
    assert min(orders.values()) > 0  # those of others, which have 0, are told first
    assert max(orders, key=lambda name: orders[name]) == "transcript"  # pytest's hooks call it before the others


def test_installed_plugins_are_looked_at_only_for_a_name_that_is_not_built_in() -> None:
    looked: list[str] = []

    def more() -> dict[str, str]:
        looked.append("once")
        return {"plain": f"{__name__}:Plain"}

    offered = Registry({"busy": f"{__name__}:Busy"}, more_platforms=more)

    assert offered.platform("busy") is Busy
    assert not looked
    assert offered.platform("plain") is Plain
    with pytest.raises(UsageFault, match="unknown platform 'other'; known: busy, plain"):
        offered.require_platform("other")
    assert looked == ["once"]


def test_a_class_that_is_not_there_is_a_fault_that_names_it() -> None:
    with pytest.raises(UsageFault, match="reporter 'gone' cannot be loaded from 'no_such:Gone'"):
        Registry({}, {"gone": "no_such:Gone"}).reporter("gone")
