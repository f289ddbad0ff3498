"""No secret leaves: not in the terminal, the reports, the requests, the ledger, the Tester, or what a job can see. And
what strangers wrote stays text, wherever it is shown."""

from __future__ import annotations

import base64
import hashlib
import html
import json
import re
import urllib.request
from pathlib import Path
from urllib.parse import quote, quote_plus

import pytest
import strict_html
from centre import DOMAIN, SERVICES, Authority, front_of, temporary_keys
from junit_schema import properties, strictly
from markdown_page import Page
from open_tester import Serving, serving
from prometheus_client.openmetrics.parser import text_string_to_metric_families
from report_page import page_data
from sqlalchemy import text
from yard import SCRIPT, THRESHOLDS, WORKERS, WORKLOAD, Ended, Yard

from pytest_aisbench.localcloud.faults import Fault
from pytest_aisbench.localcloud.server import LocalCloud
from pytest_aisbench.model.messages import plain
from pytest_aisbench.secret import Secret, mask
from pytest_aisbench.tester_server.app import transaction

PEEK = SCRIPT + "\nprint(dict(os.environ), open('/proc/self/cmdline').read(), flush=True)\n"
# A test that fails with everything it can reach in its frame, and locals shown.
CURIOUS = """import logging

import pytest

from pytest_aisbench.logs import get_logger

pytestmark = pytest.mark.workload("{name}", nodes=[1])


def test_trains(trial, modelarts_session, obs, request):
    log_keys(modelarts_session, trial)
    settings = [value for value in request.config.stash._storage.values()]
    everything = (trial, modelarts_session, obs, vars(modelarts_session), vars(obs), settings)
    print(everything, request.config.option)
    assert everything == 1


def log_keys(session, trial):  # as somebody might who wants to know why they are refused
    for secret in session._keys:
        for log in (get_logger("mistake"), logging.getLogger("urllib3.connectionpool")):
            try:
                log.warning("%s: signed with %s, %r", trial.name, secret.reveal(), {"key": secret.reveal()})
                raise ValueError(secret.reveal())
            except ValueError:
                log.exception("refused")
"""
LOGS = ("--log-level=DEBUG", "--log-file=run.log", "--log-cli-level=DEBUG")

# The same on a computing centre, and it ends in the frame that sends what is signed.
SENDING = """
    modelarts_session.endpoint = "https://127.0.0.1:1"
    try:
        modelarts_session.call("POST", "/v2/{project_id}/training-job-searches", {"limit": 1})
    except Exception as error:
        raise RuntimeError("so that all frames are shown") from error
"""
# An exception in the middle of the vendor's signer, whose frames have the secret key in plain.
SIGNING = """
    import hmac

    def refuse(key, *more, **named):
        raise RuntimeError(f"no digest for {key!r} and {key.hex()}")

    hmac.new = hmac.digest = refuse
    modelarts_session.call("GET", "/v2/{project_id}/training-job-flavors")
"""
MODELARTS = """
[modelarts]
framework_type = "Ascend-Powered-Engine"
framework_version = "python-local"
flavor = "modelarts.kat1.2xlarge"
"""
VARIABLES = ("HUAWEICLOUD_SDK_AK", "HUAWEICLOUD_SDK_SK", "HUAWEICLOUD_SDK_SECURITY_TOKEN")


HOSTILE = "<script>alert(1)</script>]]>|`x`**b**\x1b[31mred\n::error::forged\r\u202eltr \x07 é &amp; \"' end"
FORGED = re.compile(r"^\s*::", re.MULTILINE)  # what GitHub would take for a command


def forms(secret: str) -> list[bytes]:
    """As itself, in URLs, in JSON, in hex, and in base64 wherever in a longer text it stands."""
    raw = secret.encode()
    aligned = [base64.b64encode(b"?" * offset + raw)[offset + (offset > 0) : -4] for offset in range(3)]
    quoted = [quote(secret, safe="").encode(), quote(secret).encode(), quote_plus(secret).encode()]
    webby = [form.replace(b"+", b"-").replace(b"/", b"_") for form in aligned]
    escaped = [json.dumps(secret)[1:-1].encode(), html.escape(secret).encode()]
    return [raw, raw[::-1], raw.hex().encode(), raw.hex().upper().encode(), *quoted, *aligned, *webby, *escaped]


def uploaded(card: Path, run: str) -> bytes:
    """What the Tester of a local cloud was told of a run."""
    address = f"{json.loads(card.read_text())['tester_endpoint']}/api/v1/tests/{run}/results"
    with urllib.request.urlopen(address, timeout=10) as answer:
        data: bytes = answer.read()
    return data


def logged(ended: Ended) -> bytes:
    """pytest's log file, which tells much, also that somebody logged keys, and with a traceback."""
    log_file = (ended.folder / "run.log").read_bytes()
    assert re.search(rb"POST \S+/training-jobs -> 201, \d+ ms", log_file)
    assert re.search(rb"aisbench.fleet\S* toy-1x2-\S+: STAGE -> SUBMIT", log_file)
    assert re.search(rb"aisbench.mistake\S* toy-1x2-\S+: signed with \*\*\*", log_file)
    assert re.search(rb"urllib3.connectionpool\S* toy-1x2-\S+: signed with \*\*\*", log_file)
    assert log_file.count(b"\n  | ValueError: ***\n") >= 4
    return log_file


def leaks(secret: str, ended: Ended, *more: bytes) -> list[str]:
    """Where it is found, in any form."""
    written = {str(file): file.read_bytes() for file in (ended.folder / "reports").rglob("*") if file.is_file()}
    assert {"results.json", "junit.xml", "report.html", "metrics.txt", "metrics.csv", "summary.md"} <= {
        Path(name).name for name in written
    }
    told = {"the terminal": ended.out.encode(), **{f"more {number}": data for number, data in enumerate(more)}}
    found = {name for form in forms(secret) for name, data in {**written, **told}.items() if form in data}
    return sorted(found)


@WORKERS
def test_the_keys_are_nowhere(yard: Yard, card: Path, workers: list[str]) -> None:
    keys = json.loads(card.read_text())
    yard.suite(script=PEEK, test=CURIOUS)
    step = yard.folder / "step.md"
    env = {"GITHUB_STEP_SUMMARY": str(step), "GITHUB_ACTIONS": "true"}
    ended = yard.pytest("suites", "-vv", "--showlocals", *LOGS, *workers, env=env)
    assert ended.code == 1
    log_file = logged(ended)
    uploads = uploaded(card, ended.results["run"])
    assert leaks(keys["secret_key"], ended, step.read_bytes(), uploads, log_file) == []
    assert keys["access_key"].encode() not in log_file
    written = {file: file.read_bytes() for file in (yard.folder / "reports").rglob("*") if file.is_file()}
    log = next(data for file, data in written.items() if file.name == "worker-0.log")
    assert b"RANK_ID" in log
    assert keys["access_key"].encode() not in log


@WORKERS
def test_an_exception_in_the_signer_shows_no_key(yard: Yard, card: Path, workers: list[str]) -> None:
    keys = json.loads(card.read_text())
    test = CURIOUS.replace("    assert everything == 1\n", SIGNING)
    yard.suite(script=SCRIPT, test=test)
    ended = yard.pytest("suites", "-vv", "--showlocals", "--full-trace", *workers)
    assert ended.code in {1, 13}, ended.out
    assert "no digest for" in ended.out
    for name in ("access_key", "secret_key"):
        assert leaks(keys[name], ended, uploaded(card, ended.results["run"])) == []


def test_a_repr_that_was_cut_in_a_key_shows_no_part_of_it() -> None:
    key = "Qk3vTz81LmPw0aZxY7Rd"
    held = Secret(key)
    assert mask(f"'{key[:9]}...{key[-8:]}'") == "'***...***'"
    assert mask(f"see {key[:3]}... and {held}") == f"see {key[:3]}... and ***"


@pytest.mark.parametrize(
    ("arguments", "environment", "settings"),
    [
        (["--aisbench-tester", "http://user:PASSW0RD-typed@tester.example/"], {}, ""),
        ([], {"AISBENCH_NODES": "PASSW0RDtypedInTheWrongPlace"}, ""),
        (["--aisbench-budget", "PASSW0RDtypedInTheWrongPlace"], {}, ""),
        ([], {}, '[access]\nobs_signature = "PASSW0RDtypedInTheWrongPlace"\n'),
        ([], {}, '[tester]\nurl = "http://user:PASSW0RD-typed@tester.example/"\n'),
    ],
)
def test_a_key_in_the_wrong_place_is_not_quoted_back(
    yard: Yard, arguments: list[str], environment: dict[str, str], settings: str
) -> None:
    yard.suite()
    (yard.folder / "aisbench.toml").write_text(settings)
    ended = yard.pytest("suites", *arguments, env=environment)
    assert ended.code == 4, ended.out
    assert "PASSW0RD" not in ended.out


@pytest.mark.parametrize("source", ["file", "environment"])
def test_nor_are_temporary_keys_and_their_token(yard: Yard, card: Path, tmp_path: Path, source: str) -> None:
    """All the way through a computing centre: https by its own authority, names that only [hosts] knows."""
    cloud = json.loads(card.read_text())
    keys = temporary_keys(cloud)
    authority = Authority(tmp_path)
    yard.suite(
        script=PEEK,
        test=CURIOUS.replace("    assert everything == 1\n", SENDING),
        workload=WORKLOAD + MODELARTS,
        thresholds=THRESHOLDS.replace("local", "modelarts"),
    )
    with front_of(authority, cloud).serving() as front:
        lines = [f'{name}_endpoint = "https://{name}.{DOMAIN}:{front.port}"' for name in SERVICES]
        lines += ['region_name = "local-1"', f'bucket = "{cloud["bucket"]}"', 'ca_file = "ca.pem"']
        env = dict(zip(VARIABLES, keys.values(), strict=False))
        if source == "file":
            names = ("access_key", "secret_access_key", "security_token")
            lines += [f'{name} = "{env[variable]}"' for name, variable in zip(names, VARIABLES, strict=True)]
            env = {}
        hosts = [f'"{name}.{DOMAIN}" = "127.0.0.1"' for name in SERVICES]
        (yard.folder / "centre.toml").write_text("\n".join(["[access]", *lines, "[hosts]", *hosts]))
        where = ("--aisbench-platform", "modelarts", "--aisbench-config", "centre.toml")
        ended = yard.pytest("suites", "-vv", "--showlocals", *LOGS, *where, cloud=False, env=env)
    assert ended.code == 1, ended.out
    assert ended.results["cases"][0]["metrics"]["throughput"]["value"] == 25.0
    assert "nothing listens there" in ended.out
    assert "request    = " in ended.out  # the frame that holds the headers
    assert ("chmod 600" in ended.out) == (source == "file")
    assert ("keys: HUAWEICLOUD_SDK_AK" in ended.out) == (source == "environment")
    assert set(front.asked) == {f"iam.{DOMAIN}", f"modelarts.{DOMAIN}", f"{cloud['bucket']}.obs.{DOMAIN}"}
    for secret in (keys["secret"], keys["securitytoken"]):
        assert leaks(secret, ended, logged(ended)) == []
    assert keys["access"].encode() not in logged(ended)


def test_a_centre_whose_authority_is_not_trusted_is_one_line(yard: Yard, card: Path, tmp_path: Path) -> None:
    cloud = json.loads(card.read_text())
    Authority(tmp_path, "stranger")
    yard.suite(workload=WORKLOAD + MODELARTS, thresholds=THRESHOLDS.replace("local", "modelarts"))
    with front_of(Authority(tmp_path), cloud).serving() as front:
        lines = [f'{name}_endpoint = "https://{name}.{DOMAIN}:{front.port}"' for name in SERVICES]
        lines += ['region_name = "local-1"', 'bucket = "b"', 'ca_file = "stranger.pem"']
        lines += ["[hosts]", *(f'"{name}.{DOMAIN}" = "127.0.0.1"' for name in SERVICES)]
        (yard.folder / "aisbench.toml").write_text("\n".join(['platform = "modelarts"', "[access]", *lines]))
        env = {"HUAWEICLOUD_SDK_AK": "A", "HUAWEICLOUD_SDK_SK": "S"}
        ended = yard.pytest("suites", "--nodes", "1", cloud=False, env=env)
    assert ended.code == 4
    (line,) = [line for line in ended.out.splitlines() if line.startswith("ERROR")]
    assert f"iam.{DOMAIN}:{front.port}" in line
    assert "certificate is not trusted; name the certificate of its authority: ca_file in [access]" in line
    assert front.asked == []


TOKEN = "to/ken+of=the~tester~0123456789"
PLANTED = 'pl"anted <se&cret> of the environment | 4711'
WILD = f"""{WORKLOAD.replace('"images/s"', json.dumps(HOSTILE))}
[local]
parameters = {{ note = {json.dumps(HOSTILE)} }}
environment = {{ NOTE = {json.dumps(HOSTILE)} }}
"""
LOUD = f"import os, sys\nprint({HOSTILE!r}, os.environ['NOTE'], flush=True)\nsys.exit({HOSTILE!r})\n"
# Asks for more than its verdict, and fails with a stranger's words.
TELLING = """import pytest

pytestmark = pytest.mark.workload("{name}", nodes=[1])


def test_trains(trial, case, request):
    request.node.user_properties.append(("said", HOSTILE))
    raise RuntimeError(HOSTILE)


HOSTILE = """ + repr(HOSTILE)


def admit(tester: Serving, token: str) -> None:
    """As a send token: one that no program would make, so that its forms differ."""
    digest = hashlib.sha256(token.encode()).hexdigest()
    statement = "INSERT INTO tokens (digest, project, kind, label, created) VALUES (:digest, 'wild', 'send', '', 1)"
    with transaction(tester.db) as connection:
        connection.execute(text(statement), {"digest": digest})


def visited(tester: Serving, ended: Ended) -> dict[str, str]:
    """All that the open Tester shows of a run."""
    run = f"/p/wild/t/{ended.results['run']}/r/{ended.results['run']}"
    cases = [str(case["id"]) for case in ended.results["cases"]]
    pages = ["/p/wild", "/p/wild/cases", "/p/wild/scaling", "/p/wild/audit", "/p/wild/search?q=script", run]
    pages += [f"{run}/c/{case}" for case in cases] + [f"/p/wild/cases/local/{case}" for case in cases]
    exports = [f"/p/wild/{name}?format={kind}" for name in ("results", "audit") for kind in ("csv", "json")]
    found = {path: tester.get(path) for path in [*pages, *exports]}
    assert {answer.status for answer in found.values()} == {200}
    assert all(json.loads(found[path].text) for path in exports if path.endswith("json"))
    return {path: answer.text for path, answer in found.items()}


def test_what_strangers_write_stays_text_everywhere(tmp_path: Path) -> None:
    """In a workload's parameters, environment and units, in logs, in errors of jobs, tests and the platform, in names.
    The token of the Tester is a secret, and so is a variable of the shell."""
    faults = [Fault(service="modelarts", operation="create", times=1, status=400, code="X.1", message=HOSTILE)]
    db = tmp_path / "tester.db"
    with LocalCloud(faults=faults) as cloud, serving(str(db)) as open_tester:
        admit(open_tester, TOKEN)
        (tmp_path / "card.json").write_text(json.dumps(cloud.card()))
        yard = Yard(tmp_path / "yard", tmp_path / "card.json")
        yard.suite("loud", script=LOUD, workload=WILD)
        yard.suite("telling", workload=WILD, test=TELLING)
        yard.suite("third", workload=WILD)
        tester = f'[tester]\nurl = "{open_tester.url}"\ntoken = "{TOKEN}"\n'
        (yard.folder / "aisbench.toml").write_text(tester)
        (yard.folder / "pytest.ini").write_text("[pytest]\n")
        step = yard.folder / "step.md"
        env = {"MY_PASSWORD": PLANTED, "GITHUB_STEP_SUMMARY": str(step), "GITHUB_ACTIONS": "true"}
        env["GITHUB_WORKSPACE"] = str(yard.folder)
        ended = yard.pytest("suites", "--nodes", "1", "--showlocals", "--aisbench-max-jobs", "1", *LOGS, env=env)
        pages = visited(open_tester, ended)
    assert ended.code == 1, ended.out
    assert {upload["state"] for upload in ended.results["uploads"]} == {"delivered"}
    assert strict_html.report_errors(ended.reports / "report.html") == []
    for path, sent in pages.items():
        assert "format=" in path or strict_html.errors(sent) == [], path
        assert "format=" in path or not re.search(r"<script>|<img|\x1b|\u202e|\x07", sent), path
    assert any("&lt;script&gt;" in sent for sent in pages.values())  # it is there, as words
    kept = [file.read_bytes() for file in tmp_path.glob("tester.db*")]
    assert any(b"loud-1x2" in data for data in kept)
    kept += [sent.encode() for sent in pages.values()]
    log_file = (yard.folder / "run.log").read_bytes()
    assert b"aisbench.uploads" in log_file
    assert all(line.isprintable() for line in log_file.decode().split("\n") if "aisbench." in line)
    assert not any(map(FORGED.match, log_file.decode().split("\n")))
    kept.append(log_file)
    assert leaks(TOKEN, ended, *kept) == []
    assert leaks(PLANTED, ended, *kept) == []
    assert set(ended.verdicts.values()) >= {"FAILED", "PASSED"} or "BROKEN" in ended.verdicts.values()
    assert leaks(TOKEN, ended, step.read_bytes()) == []
    assert leaks(PLANTED, ended, step.read_bytes()) == []
    ours = re.split(r"^=+ (?:aisbench|short test summary info) =+$", ended.out, flags=re.MULTILINE)[1]
    assert all(line.isprintable() for line in ours.splitlines())
    commands = [line for line in ended.out.splitlines() if FORGED.match(line)]
    assert commands
    genuine = re.compile(r"::(?:error|warning) file=suites/\w+/test_\w+\.py,line=\d+,title=\w+-1x2 [A-Z]+::")
    assert [line for line in commands if not genuine.match(line)] == []
    suite = strictly(ended.reports / "junit.xml")
    reasons = [str(properties(case)["aisbench.reason"]) for case in suite.iter("testcase")]
    assert any("<script>" in reason for reason in reasons)
    metrics = (ended.reports / "metrics.txt").read_text(encoding="utf-8")
    units = {
        sample.labels["unit"]
        for family in text_string_to_metric_families(metrics)  # type: ignore[no-untyped-call]
        if family.name == "aisbench_throughput"
        for sample in family.samples
    }
    assert units == {plain(HOSTILE)}
    for file in (step, ended.reports / "summary.md"):
        page = Page(file.read_text(encoding="utf-8"))
        assert not {"script", "img", "em", "del"} & set(page.tags)
        assert page.tags.count("strong") == len([word for word in ended.verdicts.values() if word != "PASSED"])
        assert set(page.rows) == {9}
    for file in (ended.reports / "allure-results").glob("*.json"):
        json.loads(file.read_text(encoding="utf-8"))
    for tests in page_data(ended.reports / "report.html")["tests"].values():
        for row in tests:
            for part in (*row["resultsTableRow"], row["details"], row["log"]):
                assert "<script" not in part
