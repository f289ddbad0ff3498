"""`aisbench doctor`: each thing that a run needs, ok or with the fix; nothing is left behind or paid for."""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping
from contextlib import closing
from email.utils import formatdate
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from threading import Thread
from typing import Any

import pytest
from old_package import unpack
from yard import Yard, submitted

from pytest_aisbench import Settings
from pytest_aisbench.cli import main
from pytest_aisbench.localcloud.engine import private_root
from pytest_aisbench.platforms.local import Local

Examine = Callable[..., tuple[int, dict[str, list[dict[str, Any]]]]]
ENGINE = "mindspore_1.3.0-cann_5.0.2-py_3.7-euler_2.8.3-aarch64"


@pytest.fixture
def examine(yard: Yard, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> Examine:
    """The exit code, and the checks by their names."""
    monkeypatch.chdir(yard.folder)

    def run(*arguments: str) -> tuple[int, dict[str, list[dict[str, Any]]]]:
        code = main(["doctor", "--json", *arguments])
        by_name: dict[str, list[dict[str, Any]]] = {}
        for check in json.loads(capsys.readouterr().out)["checks"]:
            by_name.setdefault(check["name"], []).append(check)
        return code, by_name

    return run


def states(by_name: Mapping[str, list[dict[str, Any]]], state: str) -> dict[str, str]:
    return {name: check["text"] for name, checks in by_name.items() for check in checks if check["state"] == state}


def configure(yard: Yard, access: Mapping[str, str] | None = None, hosts: Mapping[str, str] | None = None) -> None:
    """A user's aisbench.toml for ModelArts, which is the local cloud, except as told."""
    card = json.loads(yard.card.read_text())
    rows = {
        "access_key": card["access_key"],
        "secret_access_key": card["secret_key"],
        "region_name": card["region"],
        "bucket": card["bucket"],
        **{key: card[key] for key in ("iam_endpoint", "obs_endpoint", "modelarts_endpoint")},
        **(access or {}),
    }
    tables = {"access": rows, "hosts": hosts or {}}
    text = 'platform = "modelarts"\n'
    for table, pairs in tables.items():
        text += f"[{table}]\n" + "".join(f"{json.dumps(key)} = {json.dumps(value)}\n" for key, value in pairs.items())
    file = yard.folder / "aisbench.toml"
    file.write_text(text)
    file.chmod(0o600)


def workload(yard: Yard, section: str) -> None:
    yard.suite()
    (file,) = yard.folder.rglob("workload.toml")
    file.write_text(file.read_text() + f"\n[modelarts]\n{section}")


def test_a_healthy_local_cloud(yard: Yard, card: Path, examine: Examine) -> None:
    yard.suite()
    before = submitted(card)
    code, by_name = examine("suites", "--cloud", str(card))
    assert (code, states(by_name, "failure")) == (0, {})
    looked_at = "configuration versions room ledger containers suites request code credentials project bucket quota"
    assert set(looked_at.split()) <= by_name.keys()
    assert {"write access", "bucket's region", "clock of obs", "answer of iam", "flavor", "engine"} <= by_name.keys()
    assert submitted(card) == before
    with closing(Local(Settings(cloud=card))) as local:
        assert not [head for head in local.store.objects(local.root) if "doctor" in head.url.key]
    assert not (yard.folder / "reports").exists()


def test_lines_for_people(yard: Yard, card: Path, capsys: pytest.CaptureFixture[str], monkeypatch: Any) -> None:
    monkeypatch.chdir(yard.folder)
    yard.suite()
    assert main(["doctor", "suites", "--cloud", str(card), "--ledger", "there/ledger.db"]) == 0
    *lines, last = capsys.readouterr().out.splitlines()
    assert [line for line in lines if line.endswith(":")] == ["toy-1x2:"], "a group for the case"
    group = lines.index("toy-1x2:")
    assert all(line.startswith("  ok ") for line in lines[group + 1 :])
    assert {line.split()[0] for line in lines[:group]} <= {"ok", "warning"}
    assert last.startswith(f"{len(lines) - 1} checks: 0 failures, ")
    assert main(["doctor", "suites", "--cloud", str(card), "--ledger", "there/ledger.db", "--quiet"]) == 0
    *quiet, quiet_last = capsys.readouterr().out.splitlines()
    assert [line.split()[0] for line in quiet] == ["warning"] * len(quiet)
    assert quiet_last == last
    assert main(["doctor", "nowhere", "--cloud", "none.json"]) == 1
    out = capsys.readouterr().out
    assert "failure  suites: nowhere holds no workload.toml; name a folder of suites\n" in out
    assert ": 2 failures, " in out
    assert "failure  platform: none.json: No such file" in out.replace(f"{yard.folder}/", "")
    assert "; start it with `aisbench cloud --json > FILE`\n" in out


def test_a_failure_of_several_cases_is_said_once(
    yard: Yard, capsys: pytest.CaptureFixture[str], monkeypatch: Any
) -> None:
    monkeypatch.chdir(yard.folder)
    configure(yard)
    workload(yard, f'framework_version = "{ENGINE}"\nflavor = "modelarts.no.such"\n')
    assert main(["doctor", "--devices", "8", "--nodes", "1,2", "--quiet"]) == 1
    lines = capsys.readouterr().out.splitlines()
    (failure,) = [line for line in lines if "modelarts.no.such" in line]
    assert lines[lines.index(failure) - 1] == "toy-1x8:"
    assert failure.startswith("  failure  ")
    assert failure.endswith(" (also toy-2x8)")


def test_a_configuration_that_cannot_be_read(yard: Yard, examine: Examine) -> None:
    (yard.folder / "aisbench.toml").write_text('[access]\nacces_key = "x"\n')
    code, by_name = examine()
    assert code == 1
    (check,) = by_name["configuration"]
    assert (check["state"], "unknown key 'acces_key'" in check["text"]) == ("failure", True)
    assert check["fix"] == "did you mean 'access_key'?"


def test_modelarts_from_name_to_quota(yard: Yard, examine: Examine) -> None:
    configure(yard)
    data = f"obs://{json.loads(yard.card.read_text())['bucket']}/pictures/"
    workload(
        yard,
        f'framework_version = "{ENGINE}"\nflavor = "modelarts.kat1"\ndata = "{data}"\ndata_contains = ["train/"]\n',
    )
    code, by_name = examine("--devices", "8", "--nodes", "1,2")
    assert (code, states(by_name, "failure")) == (1, {"data": f"toy-1x8, toy-2x8: {data} has no train/"})
    assert by_name["data"][0]["cases"] == ["toy-1x8", "toy-2x8"]
    assert states(by_name, "warning") == {}
    assert [check["text"] for check in by_name["suites"]] == ["suites/toy: toy-1x8, toy-2x8"]
    assert by_name["flavor"][0]["text"] == "modelarts.kat1.8xlarge is offered, up to 64 nodes"
    assert [len(by_name[name]) for name in ("flavor", "engine", "code", "request")] == [1, 1, 1, 2]
    secret = json.loads(yard.card.read_text())["secret_key"]
    assert secret not in json.dumps(by_name)


@pytest.mark.parametrize(
    ("access", "name", "text", "fix"),
    [
        ({"secret_access_key": "wrong"}, "credentials", "HTTP 401", "check access_key, secret_access_key"),
        ({"bucket": "of-nobody"}, "bucket", "of-nobody", "bucket"),
        ({"project_id": "0" * 32}, "credentials", "Project", "project_id"),
        ({"modelarts_endpoint": "http://127.0.0.1:9"}, "answer of modelarts", "nothing listens", "[access]"),
        ({"iam_endpoint": "https://iam.centre.invalid"}, "name of iam", "has no address", "to [hosts]"),
    ],
    ids=["keys", "bucket", "project", "port", "name"],
)
def test_what_is_wrong_on_the_way(
    yard: Yard, examine: Examine, access: dict[str, str], name: str, text: str, fix: str
) -> None:
    configure(yard, access)
    code, by_name = examine()
    assert code == 1
    assert list(states(by_name, "failure")) == [name]
    (check,) = by_name[name]
    assert text in check["text"]
    assert fix in check["fix"]
    assert "not checked" in by_name["offer"][0]["text"]


@pytest.mark.slow(seconds=10)
def test_names_by_the_hosts_table(yard: Yard, examine: Examine) -> None:
    port = json.loads(yard.card.read_text())["obs_endpoint"].rpartition(":")[2]
    configure(yard, {"obs_endpoint": f"https://obs.centre.invalid:{port}"}, {"obs.centre.invalid": "127.0.0.1"})
    code, by_name = examine()
    assert code == 1
    bucket = json.loads(yard.card.read_text())["bucket"]
    assert by_name["name of obs"][0]["text"] == f"{bucket}.obs.centre.invalid is 127.0.0.1, by [hosts]"
    assert list(states(by_name, "failure")) == ["answer of obs"]  # there is no TLS


class _Tomorrow(BaseHTTPRequestHandler):
    def do_GET(self) -> None:
        self.send_response_only(404)
        self.send_header("Date", formatdate(86400 * 30000, usegmt=True))
        self.send_header("Content-Length", "0")
        self.end_headers()

    def log_message(self, format: str, *args: object) -> None:  # noqa: A002
        """Silence."""


def test_a_clock_that_is_wrong(yard: Yard, examine: Examine) -> None:
    with ThreadingHTTPServer(("127.0.0.1", 0), _Tomorrow) as server:
        thread = Thread(target=server.serve_forever, args=(0.01,))
        thread.start()
        try:
            project = json.loads(yard.card.read_text())["project_id"]
            configure(yard, {"iam_endpoint": f"http://127.0.0.1:{server.server_port}", "project_id": project})
            code, by_name = examine()
        finally:
            server.shutdown()
            thread.join()
    assert (code, states(by_name, "failure")) == (0, {})
    (clock,) = by_name["clock of iam"]
    assert clock["state"] == "warning"
    assert clock["text"].endswith(" s behind")
    assert "set this machine's clock" in clock["fix"]
    assert by_name["clock of obs"][0]["state"] == "ok"


def test_a_bucket_of_another_region(yard: Yard, examine: Examine) -> None:
    project = json.loads(yard.card.read_text())["project_id"]
    configure(yard, {"region_name": "mars-1", "project_id": project})
    code, by_name = examine()
    assert code == 1
    assert states(by_name, "failure") == {"bucket's region": "aisbench is in local-1, and jobs run in mars-1"}


def test_a_suite_that_cannot_be_asked_for_hides_no_other(yard: Yard, examine: Examine) -> None:
    configure(yard)
    yard.suite()
    workload(yard, f'framework_version = "{ENGINE}"\nflavor = "modelarts.kat1"\npool_id = "pool-local"\n')
    (yard.folder / "suites/broken").mkdir()
    (yard.folder / "suites/broken/workload.toml").write_text("name = 7\n")
    code, by_name = examine("--devices", "8")
    assert code == 1
    assert "suites/broken/workload.toml" in states(by_name, "failure")["suites"]
    assert "both flavor and pool_id" in states(by_name, "failure")["request"]
    assert "offer" not in by_name, "what cannot be asked for is not looked up"
    assert by_name["write access"][0]["state"] == "ok"


def test_a_package(yard: Yard, card: Path, examine: Examine) -> None:
    unpack(yard.folder / "unpacked")
    code, by_name = examine("--package", "unpacked", "--cloud", str(card))
    assert (code, states(by_name, "failure")) == (0, {})
    assert [check["text"] for check in by_name["suites"]] == [f"{yard.folder}/unpacked: aisbench-debug-1x8"]


def test_a_machine_without_namespaces_is_told_what_still_works(
    card: Path, examine: Examine, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(private_root, "container_support", lambda: (False, "no private mounts; TMPDIR works"))
    code, by_name = examine("--cloud", str(card))
    assert code == 0
    (check,) = by_name["containers"]
    assert (check["state"], check["text"]) == ("warning", "no private mounts; TMPDIR works")
