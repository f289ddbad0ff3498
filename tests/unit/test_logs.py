"""The client's log has no secret in it, whichever way it came there and whoever writes the record out."""

from __future__ import annotations

import base64
import logging
from collections.abc import Iterator
from urllib.parse import quote, quote_plus

import pytest

from pytest_aisbench.errors import Unreachable
from pytest_aisbench.logs import Exchange, attempt, get_logger, ignored, mask_libraries
from pytest_aisbench.secret import Secret, mask

KEY = 'k3y/of+the=test "quoted" 0815'
LOG = get_logger("unit-test")


class Keeping(logging.Handler):
    """Any handler of a user's: formats as Python does, and looks at the bare record too."""

    def __init__(self) -> None:
        super().__init__()
        self.lines: list[str] = []

    def emit(self, record: logging.LogRecord) -> None:
        self.lines += [self.format(record), repr(vars(record))]


def _sign() -> None:
    try:
        bytes.fromhex(KEY)
    except ValueError as cause:
        raise RuntimeError(f"cannot sign with {KEY}") from cause


@pytest.fixture
def kept() -> Iterator[Keeping]:
    handler, root = Keeping(), logging.getLogger()
    before = root.level
    root.addHandler(handler)
    root.setLevel(logging.DEBUG)
    yield handler
    root.removeHandler(handler)
    root.setLevel(before)


def test_a_secret_is_in_no_part_of_a_record(kept: Keeping) -> None:
    secret = Secret(KEY)
    for form in (KEY, quote(KEY), quote(KEY, safe=""), quote_plus(KEY), KEY.encode().hex(), repr([KEY])):
        LOG.warning("it is %s", form)
    LOG.warning("it is " + KEY)  # noqa: G003
    LOG.warning("it is %(key)s, %(secret)s", {"key": KEY, "secret": secret})
    LOG.warning("basic %s", base64.b64encode(f"user:{KEY}".encode()).decode())
    try:
        _sign()
    except RuntimeError:
        LOG.exception("no signature", stack_info=True)
    with ignored(LOG, ValueError, "step %s", 1):
        raise ValueError(KEY)
    assert len(kept.lines) == 2 * 11
    assert "Traceback" in kept.lines[-3]
    forms = [KEY, "0815", KEY[:8], base64.b64encode(KEY.encode()).decode()[4:-8], KEY.encode().hex()]
    assert [line for line in kept.lines for form in forms if form in line] == []


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


def test_a_message_whose_arguments_do_not_fit_ends_nothing(kept: Keeping) -> None:
    LOG.warning("%d jobs", "three")
    assert "%d jobs (with arguments that do not fit" in kept.lines[0]


def test_a_request_is_one_line_with_status_duration_and_attempt(kept: Keeping) -> None:
    with Exchange("GET", "server.test/path") as exchange:
        exchange.status = 200
    attempt(3)
    with pytest.raises(Unreachable), Exchange("PUT", "obs://bucket/key"):
        raise Unreachable("the connection broke")
    attempt(1)
    first, second = kept.lines[::2]
    assert first.startswith("GET server.test/path -> 200, ")
    assert first.endswith(" ms")
    assert "PUT obs://bucket/key -> Unreachable: the connection broke" in second
    assert second.endswith(" ms, attempt 3")


def test_libraries_below_write_no_second_line_for_our_requests_and_no_secret(kept: Keeping) -> None:
    Secret(KEY)
    mask_libraries()
    library = logging.getLogger("urllib3.connectionpool")
    with Exchange("GET", "server.test/path"):
        library.debug('"GET /path HTTP/1.1" 200')
        library.warning("retrying, token %s", KEY)
    library.debug("somebody else's request")
    texts = kept.lines[::2]
    assert [text.partition(" ")[0] for text in texts] == ["retrying,", "GET", "somebody"]
    assert KEY not in "".join(kept.lines)


def test_nothing_is_printed_where_nobody_set_up_logging(capfd: pytest.CaptureFixture[str]) -> None:
    root = logging.getLogger()
    handlers, root.handlers = root.handlers, []
    try:
        LOG.warning("to nobody")
    finally:
        root.handlers = handlers
    assert capfd.readouterr() == ("", "")
