"""One front door."""

from __future__ import annotations

import pytest

import pytest_aisbench


def test_every_public_name_can_be_had_and_is_listed_once() -> None:
    homes = [name for names in pytest_aisbench._HOMES.values() for name in names.split()]
    assert sorted(homes) == sorted(set(homes)) == pytest_aisbench.__all__
    for name in pytest_aisbench.__all__:
        assert getattr(pytest_aisbench, name).__name__ == name


def test_what_is_not_public_is_not_there() -> None:
    with pytest.raises(AttributeError, match="has no attribute 'nonsense'"):
        pytest_aisbench.nonsense  # noqa: B018
