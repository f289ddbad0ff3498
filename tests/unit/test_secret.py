"""A secret is seen by nobody who does not ask for it by name."""

from __future__ import annotations

import copy
import json
import pickle
import traceback

import pytest

from pytest_aisbench.secret import Secret, mask

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


@pytest.mark.parametrize(
    "text",
    [
        "Authorization: Bearer {}",
        "'Authorization': 'SDK-HMAC-SHA256 Access=AK, SignedHeaders=host, Signature={}'",
        '{{"X-Security-Token": "{}"}}',
        "https://b.obs.test/key?AccessKeyId={}&Expires=1",
        "https://b.obs.test/key?X-Amz-Credential=a&X-Amz-Signature={}",
        "Cookie: token={}; other=1",
        "password={}",
        "https://somebody:{}@proxy.test:3128/",
    ],
)
def test_what_a_header_or_an_address_calls_a_secret_is_masked_though_nobody_registered_it(text: str) -> None:
    assert "n0b0dy-registered" not in mask(text.format("n0b0dy-registered"))
    assert "***" in mask(text.format("n0b0dy-registered"))


def test_ordinary_text_stays_as_it_is() -> None:
    Secret("abc")  # too short to be told from a part of a word
    for text in (
        "GET 127.0.0.1:80/v2/{project_id}/training-jobs -> 200, 3 ms",
        "cannot read obs://bucket/trials/run-1/token_ids.json: HTTP 404; check token in [tester]",
        "abcdef",
    ):
        assert mask(text) == text


def test_of_two_secrets_the_longer_is_masked_whole() -> None:
    Secret("shorter-one")
    Secret("shorter-one-and-longer")
    assert mask("<shorter-one-and-longer>") == "<***>"
