"""A secret is seen by nobody who does not ask for it by name."""

from __future__ import annotations

import copy
import json
import pickle
import traceback

import pytest

from pytest_aisbench.secret import Secret

VALUE = "K3Y-that-must-not-be-seen"


def test_nothing_shows_it() -> None:
    secret = Secret(VALUE)
    shown = [repr(secret), str(secret), f"{secret}", f"{secret:>20}", "%s" % secret, repr({"k": [secret]})]  # noqa: UP031
    assert all(VALUE not in text for text in shown)
    assert secret.reveal() == VALUE


def test_it_does_not_travel() -> None:
    with pytest.raises(TypeError):
        pickle.dumps(Secret(VALUE))
    with pytest.raises(TypeError):
        json.dumps(Secret(VALUE))
    with pytest.raises(TypeError):
        copy.deepcopy(Secret(VALUE))


def test_a_traceback_does_not_show_it() -> None:
    def sign(key: Secret) -> None:
        raise ValueError(f"cannot sign with {key}")

    try:
        sign(Secret(VALUE))
    except ValueError:
        text = traceback.format_exc()
    assert VALUE not in text


def test_equal_secrets_are_equal_and_an_empty_one_is_false() -> None:
    assert Secret("a") == Secret("a") != Secret("b")
    assert not Secret("")
    assert len({Secret("a"), Secret("a")}) == 1
