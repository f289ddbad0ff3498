"""Results on their way to the Tester, as whoever runs pytest sees it."""

from __future__ import annotations

import json
import subprocess
import threading
import urllib.request
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

import pytest
from yard import TEST, WORKERS, Yard

STUB_LOG = Path(__file__).parents[1] / "unit" / "golden" / "tester" / "stub.log"
ALONE = """
def test_room(tester):
    handed_in = tester.upload("room", {"celsius": 21.5})
    assert (handed_in.state.value, handed_in.why) == ("delivered", "")
    assert tester.upload("room", {"celsius": 21.5}).key == handed_in.key
    assert tester.upload("room", {"celsius": 22.5}).attempt == 2
"""


def stored(card: Path, run: str, kind: str = "results") -> list[dict[str, Any]]:
    tester = json.loads(card.read_text())["tester_endpoint"]
    with urllib.request.urlopen(f"{tester}/api/v1/tests/{run}/{kind}", timeout=10) as answer:
        found: list[dict[str, Any]] = json.load(answer)[kind]
        return found


@pytest.mark.slow
@WORKERS
def test_on_the_local_cloud_results_go_to_its_own_tester(yard: Yard, card: Path, workers: list[str]) -> None:
    yard.suite(test=TEST + ALONE)
    ended = yard.pytest("suites", *workers)
    assert ended.code == 0, ended.out
    tester = json.loads(card.read_text())["tester_endpoint"]
    assert f"Tester {tester} (local cloud): 4 delivered\n" in ended.out
    uploads = ended.results["uploads"]
    assert sorted(upload["case"] for upload in uploads) == ["room", "room", "toy-1x2", "toy-2x2"]
    assert {(upload["tester"], upload["state"], upload["why"]) for upload in uploads} == {
        (f"{tester} (local cloud)", "delivered", "")
    }
    run = ended.results["run"]
    found = {body["case"]["id"]: body for body in stored(card, run)}
    assert sorted(found) == ["toy-1x2", "toy-2x2"]
    assert found["toy-2x2"]["status"] == "OK"
    assert found["toy-2x2"]["measured"]["throughput_ratio"]["value"] == 50.0
    assert found["toy-2x2"]["job"]["job_id"] == next(
        case["trials"][0]["job_id"] for case in ended.results["cases"] if case["id"] == "toy-2x2"
    )
    log = next(one for one in found["toy-1x2"]["artifacts"] if "worker-0" in one["name"])
    assert (ended.reports / log["name"]).stat().st_size == log["size"]
    assert [body["data"] for body in stored(card, run, "attachments")] == [{"celsius": 21.5}, {"celsius": 22.5}]
    (end,) = stored(card, run, "runs")
    assert (end["run_id"], end["exit_code"], end["unjudged"], end["missing"]) == (run, 0, {}, [])
    assert yard.aisbench("flush").stdout == "nothing is spooled\n"


@pytest.mark.slow
def test_the_tester_of_a_private_cloud_ends_with_the_run_and_no_address_of_it_is_printed(yard: Yard) -> None:
    yard.suite()
    ended = yard.pytest("suites", "--nodes", "1", cloud=False)
    assert ended.code == 0, ended.out
    assert [upload["state"] for upload in ended.results["uploads"]] == ["delivered"]
    assert "http://127.0.0.1" not in ended.out


@pytest.mark.slow
def test_none_is_no_upload(yard: Yard) -> None:
    yard.suite(test=TEST + ALONE)
    ended = yard.pytest("suites", "--nodes", "1", "--aisbench-tester", "none")
    assert ended.code == 1
    assert ended.verdicts == {"toy-1x2": "PASSED"}
    assert ended.results["uploads"] == []
    assert "Tester http" not in ended.out
    assert "there is no Tester; name one: --aisbench-tester URL, or url in [tester] of aisbench.toml" in ended.out


def test_a_fixture_alone_needs_no_workload(yard: Yard, card: Path) -> None:
    (yard.folder / "test_alone.py").write_text(ALONE)
    ended = yard.pytest("test_alone.py")
    assert ended.code == 0, ended.out


@pytest.mark.parametrize("required", [[], ["--aisbench-tester-required"]], ids=["as it is", "required"])
@pytest.mark.slow(seconds=6)
def test_a_tester_that_is_down_changes_no_verdict(yard: Yard, required: list[str]) -> None:
    yard.suite()
    way = yard.folder / "way"
    way.touch()  # a file where a folder should be
    tester = ("--aisbench-tester", f"file://{way}/to", *required)
    ended = yard.pytest("suites", "--nodes", "1", *tester, tester_patience=0.5)
    assert ended.code == (12 if required else 0), ended.out
    assert ended.results["exit_code"] == ended.code
    assert ended.verdicts == {"toy-1x2": "PASSED"}
    assert f"Tester file://{way}/to: 1 spooled: aisbench flush " in " ".join(ended.out.split())
    (upload,) = ended.results["uploads"]
    assert upload["state"] == "spooled"
    assert "cannot be written: Not a directory" in upload["why"]
    assert yard.aisbench("flush", "--patience", "1s").returncode == 1
    way.unlink()
    flushed = yard.aisbench("flush", "--json")
    assert flushed.returncode == 0, flushed.stdout
    found = {upload["case"]: upload["state"] for upload in json.loads(flushed.stdout)["uploads"]}
    assert found == {"toy-1x2": "delivered", "end": "delivered"}
    (file,) = (path for path in way.rglob("results/*.json"))
    assert json.loads(file.read_text())["case"]["verdict"] == "PASSED"
    (file,) = (path for path in way.rglob("runs/*.json"))
    assert json.loads(file.read_text())["exit_code"] == ended.code


class Refusing(ThreadingHTTPServer):
    daemon_threads = True
    status = 401
    old = False  # it takes results and knows nothing of runs


class _Answer(BaseHTTPRequestHandler):
    server: Refusing

    def do_POST(self) -> None:
        self.rfile.read(int(self.headers["Content-Length"]))
        body = json.dumps({"key": self.headers["Idempotency-Key"], "error": "no, thank you"}).encode()
        self.send_response(404 if self.path.endswith("/runs") and self.server.old else self.server.status)
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)

    def log_message(self, format: str, *args: object) -> None:  # noqa: A002
        """Silence."""


@pytest.fixture
def refusing() -> Iterator[Refusing]:
    with Refusing(("127.0.0.1", 0), _Answer) as server:
        thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.01})
        thread.start()
        yield server
        server.shutdown()
        thread.join()


@pytest.mark.slow
def test_a_refusal_is_a_warning_and_a_dead_letter_can_be_sent_again(yard: Yard, refusing: Refusing) -> None:
    yard.suite()
    (yard.folder / "aisbench.toml").write_text(
        f'[tester]\nurl = "http://127.0.0.1:{refusing.server_port}/"\ntoken = "${{TESTER_TOKEN}}"\n'
    )
    token = {"TESTER_TOKEN": "a-token-that-nobody-may-see"}
    ended = yard.pytest("suites", "--nodes", "1", env=token, tester_patience=0.5)
    assert ended.code == 0, ended.out
    assert "the Tester does not take results now, they are spooled" in ended.out
    assert "1 spooled: aisbench flush" in ended.out
    assert token["TESTER_TOKEN"] not in ended.out

    def again(*options: str) -> subprocess.CompletedProcess[str]:
        return yard.aisbench("flush", *options, TESTER_TOKEN=token["TESTER_TOKEN"])

    refusing.status = 422
    assert again().returncode == 1
    dead = json.loads(again("--dead", "--json").stdout)["uploads"]
    assert [(one["case"], one["state"]) for one in dead] == [("toy-1x2", "dead"), ("end", "dead")]
    assert "no, thank you (HTTP 422)" in dead[0]["why"]
    assert again("--requeue", "feedfacefeed").returncode == 4
    refusing.status = 201
    for one in dead:
        assert again("--requeue", one["key"][:10]).returncode == 0
    assert again("--dead").stdout == "no dead letter\n"
    for file in (yard.folder / "reports").rglob("*"):
        if file.is_file():
            assert token["TESTER_TOKEN"].encode() not in file.read_bytes(), file


@pytest.mark.slow
def test_a_tester_that_takes_results_alone_is_a_warning_and_no_exit_code(yard: Yard, refusing: Refusing) -> None:
    yard.suite()
    refusing.status, refusing.old = 201, True
    required = ("--aisbench-tester", f"http://127.0.0.1:{refusing.server_port}/", "--aisbench-tester-required")
    ended = yard.pytest("suites", "--nodes", "1", *required)
    assert ended.code == 0, ended.out
    assert [upload["state"] for upload in ended.results["uploads"]] == ["delivered"]
    assert "the Tester does not know how the run ended" in ended.out


@pytest.mark.slow
def test_papers_travel_without_their_secrets(yard: Yard, tmp_path: Path) -> None:
    yard.suite()
    config = {
        "testid": "20210126-ljp0IY",
        "Divsion": "close",
        "Model": "resnet50_v1.5",
        "auth": {"password": "hunter2"},
    }
    (yard.folder / "config.json").write_text(json.dumps(config))
    (yard.folder / "system.json").write_text(json.dumps({"server": "Atlas 800", "bmc_token": "hunter3"}))
    (yard.folder / "aisbench.toml").write_text(
        f'[tester]\nurl = "file://{tmp_path}/out"\nconfig = "config.json"\nsystem = "system.json"\ntoken = "hunter4"\n'
    )
    ended = yard.pytest("suites", "--nodes", "1")
    assert ended.code == 0, ended.out
    (file,) = (tmp_path / "out" / "20210126-ljp0IY").rglob("results/*.json")
    body = json.loads(file.read_text())
    assert body["config"]["Division"] == "close"
    assert body["config"]["Model"] == "resnet50_v1.5"
    assert body["system"] == {"server": "Atlas 800"}
    secret_key = json.loads(yard.card.read_text())["secret_key"]
    for secret in ("hunter2", "hunter3", "hunter4", secret_key):
        assert secret not in file.read_text()
        assert secret not in ended.out
        assert secret.encode() not in (yard.folder / "reports" / "ledger.db").read_bytes()


@pytest.mark.parametrize(
    ("told", "said"),
    [
        ('tester = "http://tester.example/"', "would send results and token over plain http: write https"),
        (
            'tester = "ftp://tester.example/"',
            "is none of https://tester.example/, file:///folder, stubs:/package, none",
        ),
        (
            '[tester]\nurl = "https://t/"\ntokn = "x"',
            "aisbench.toml:3: unknown key 'tokn' in [tester]; did you mean 'token'?",
        ),
        ('[tester]\nurl = "https://t/"\ntoken = "${NOT_SET}"', "takes ${NOT_SET}, which is not set; export NOT_SET"),
        ('[tester]\nurl = "https://t/"\nconfig = "none.json"', "tester.config: there is no file"),
        ('[tester]\nurl = "https://t/"\ntestid = "../up"', "tester.testid '../up' is not the name of a test"),
        ('[tester]\nurl = "https://t/"\nsystem = "aisbench.toml"', "aisbench.toml: not JSON"),
    ],
)
def test_what_is_wrong_with_a_tester_is_one_line_before_anything_is_paid_for(yard: Yard, told: str, said: str) -> None:
    yard.suite()
    (yard.folder / "aisbench.toml").write_text(f"{told}\n")
    ended = yard.pytest("suites", "--nodes", "1")
    assert ended.code == 4, ended.out
    assert said in ended.out
    assert not (yard.folder / "reports").exists()


def test_the_log_of_a_stub_is_uploaded_once(yard: Yard, tmp_path: Path) -> None:
    for expected in ("delivered", "nothing is spooled"):
        done = yard.aisbench("flush", "--stub-log", str(STUB_LOG), "--tester", f"file://{tmp_path}/out")
        assert done.returncode == 0, done.stderr
        assert done.stdout.startswith(expected)
    (file,) = (tmp_path / "out").rglob("*.json")
    assert json.loads(file.read_text())["train_result_info"]["throughput_ratio"] == "14151.181727494011"
    assert yard.aisbench("flush", "--stub-log", str(STUB_LOG)).returncode == 4


def test_the_last_line_of_a_benchmark(yard: Yard) -> None:
    (yard.folder / "results.json").write_text('{"exit_code": 5, "cases": []}')
    for arguments, code in ((["results.json"], 1), ([], 1)):
        assert yard.aisbench("stubs", *arguments).returncode == code
