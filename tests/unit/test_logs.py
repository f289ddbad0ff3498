"""The client's log has no secret in it, whichever way it came there and whoever writes the record out."""

from __future__ import annotations

import base64
import logging
import re
from collections.abc import Iterator
from pathlib import Path
from urllib.parse import quote, quote_plus

import pytest

import pytest_aisbench
from pytest_aisbench.errors import Unreachable
from pytest_aisbench.logs import Exchange, attempt, get_logger, ignored
from pytest_aisbench.secret import Secret

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
    forms = [KEY, KEY[-8:], KEY[:8], base64.b64encode(KEY.encode()).decode()[4:-8], KEY.encode().hex()]
    assert [line for line in kept.lines for form in forms if form in line] == []


def test_what_others_wrote_stays_on_its_line(kept: Keeping) -> None:
    hostile = "red \x1b[31m\n::error::forged\r\u202eltr \x07 é"
    LOG.warning("it says %s", hostile, exc_info=ValueError(hostile))
    lines = kept.lines[0].split("\n")
    assert lines[0] == r"it says red \x1b[31m\n::error::forged\r\u202eltr \x07 é"
    assert all(line.isprintable() and line.startswith("  | ") for line in lines[1:])


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


def test_the_reference_names_every_logger() -> None:
    root = Path(pytest_aisbench.__file__).parent
    sources = (file.read_text(encoding="utf-8") for file in root.rglob("*.py"))
    topics = {topic for source in sources for topic in re.findall(r'get_logger\("(\w+)"\)', source)}
    page = (root.parent / "docs/reference.md").read_text(encoding="utf-8")
    assert topics == set(re.findall(r"^\| `aisbench\.(\w+)` \|", page, re.MULTILINE))
