"""No secret leaves: not in the terminal, the reports, the requests, the ledger, or what a job can see."""

from __future__ import annotations

import base64
import json
from pathlib import Path
from urllib.parse import quote

import pytest
from yard import SCRIPT, Yard

PEEK = SCRIPT + "\nprint(dict(os.environ), open('/proc/self/cmdline').read(), flush=True)\n"
# A test that fails with everything it can reach in its frame, and locals shown.
CURIOUS = """import pytest

pytestmark = pytest.mark.workload("{name}", nodes=[1])


def test_trains(trial, modelarts_session, obs, request):
    settings = [value for value in request.config.stash._storage.values()]
    everything = (trial, modelarts_session, obs, vars(modelarts_session), vars(obs), settings)
    print(everything, request.config.option)
    assert everything == 1
"""


def forms(secret: str) -> list[bytes]:
    return [secret.encode(), base64.b64encode(secret.encode())[:-4], quote(secret, safe="").encode()]


@pytest.mark.parametrize("workers", [[], ["-n", "2"]], ids=["single", "xdist"])
def test_the_keys_are_nowhere(yard: Yard, card: Path, workers: list[str]) -> None:
    keys = json.loads(card.read_text())
    yard.suite(script=PEEK, test=CURIOUS)
    ended = yard.pytest("suites", "-vv", "--showlocals", *workers)
    assert ended.code == 1
    written = {file: file.read_bytes() for file in (yard.folder / "reports").rglob("*") if file.is_file()}
    assert len(written) > 8
    for form in forms(keys["secret_key"]):
        assert form not in ended.out.encode()
        assert [str(file) for file, data in written.items() if form in data] == []
    log = next(data for file, data in written.items() if file.name == "worker-0.log")
    assert b"RANK_ID" in log
    assert keys["access_key"].encode() not in log
