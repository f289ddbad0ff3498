"""What the Tester keeps: databases of an older version, tokens, and an audit that can be taken away."""

from __future__ import annotations

import csv
import io
import json
import sqlite3
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest
from open_tester import Serving, aisbench, bound, case, parcel, serving
from sqlalchemy import inspect, text

from pytest_aisbench.errors import UsageFault
from pytest_aisbench.model.results import RunEnd
from pytest_aisbench.tester.payload import end_upload
from pytest_aisbench.tester_server import schema
from pytest_aisbench.tester_server.app import open_database
from pytest_aisbench.tester_server.schema import META, address, open_engine

pytestmark = pytest.mark.slow


def test_a_database_of_the_first_version_is_brought_up_to_date_and_shows_what_it_held(
    new_database: Callable[[], str],
) -> None:
    db, sent = new_database(), parcel("run-1", case())
    engine = open_engine(address(db))
    schema.upgrade(engine, to=1)
    with engine.begin() as connection:
        connection.execute(
            text("INSERT INTO tokens (digest, project, kind, label, created) VALUES ('d', 'old', 'send', '', 1)")
        )
        row = {"key": sent.key, "run_id": "run-1.resnet50-2x8", "body": sent.body}
        connection.execute(
            text(
                "INSERT INTO parcels (project, key, kind, testid, run_id, attempt, digest, received, token, body)"
                " VALUES ('old', :key, 'results', 'run-1', :run_id, 1, 'd', 1.8e9, 1, :body)"
            ),
            row,
        )
    engine.dispose()
    with open_database(db) as upgraded, upgraded.connect() as connection:
        assert schema.version_of(connection) == schema.VERSION
        found = connection.execute(text("SELECT name, cases, passed FROM runs")).one()
        assert tuple(found) == ("run-1", 1, 1)
        shown = connection.execute(text("SELECT name, throughput, low FROM results")).one()
        assert tuple(shown) == ("resnet50-2x8", 14000.0, 13680.0)


def test_a_database_of_the_second_version_shows_its_runs_and_takes_how_the_next_one_ends(
    new_database: Callable[[], str],
) -> None:
    db = new_database()
    engine = open_engine(address(db))
    schema.upgrade(engine, to=2)
    columns = "project, testid, name, platform, started, ended, card_hours, cases, passed, failed, broken, inconclusive"
    with engine.begin() as connection:
        connection.execute(
            text(f"INSERT INTO runs ({columns}) VALUES ('old', 'a', 'a', 'local', 1, 2, 3, 1, 1, 0, 0, 0)")
        )
    engine.dispose()
    with serving(db) as after:
        after.send(after.token("old"), end_upload(bound(), RunEnd("b", 5.0, 6.0, 2, {"toy-1x2": "not judged"}, 0.5), 1))
        told = {run["name"]: run for run in after.get("/p/old?format=json").json["rows"]}
    assert (told["a"]["exit_code"], told["a"]["unjudged"], told["a"]["card_hours"]) == (None, 0, 3.0)
    assert (told["b"]["exit_code"], told["b"]["unjudged"], told["b"]["card_hours"]) == (2, 1, 0.5)


def test_the_tables_are_those_that_the_statements_name(new_database: Callable[[], str]) -> None:
    with open_database(new_database()) as engine:
        real = inspect(engine)
        for table in META.sorted_tables:
            assert {column["name"] for column in real.get_columns(table.name)} == set(table.c.keys())


def test_a_database_of_a_newer_version_is_left_alone(new_database: Callable[[], str]) -> None:
    db = new_database()
    with open_database(db) as engine, engine.begin() as connection:
        connection.execute(text("UPDATE schema_version SET version = 99"))
    with pytest.raises(UsageFault, match="the database is of version 99"), open_database(db):
        pass


def test_a_database_that_is_not_there_is_one_line_without_its_password(tmp_path: Path) -> None:
    url = f"postgresql://me:hidden-word@/none?host={tmp_path}"
    refused = aisbench("tester", "token", "list", "--db", url, code=4)
    assert refused.stderr.count("\n") == 1
    assert "hidden-word" not in refused.stderr
    assert "aisbench tester: the database postgresql+psycopg://me:***@" in refused.stderr


@pytest.mark.parametrize(
    ("db", "said"),
    [
        ("mysql://x/y", "mysql is not a database of the Tester's"),
        ("sqlite://", "SQLite needs a file"),
        ("/no/such/folder/t.db", "there is no folder /no/such/folder"),
        ("://", "no URL of a database"),
    ],
)
def test_a_database_that_cannot_be_is_refused(db: str, said: str) -> None:
    with pytest.raises(UsageFault, match=said), open_database(db):
        pass


def test_a_database_that_fails_later_is_one_line_too(tmp_path: Path) -> None:
    db = f"{tmp_path}/tester.db"
    aisbench("tester", "token", "add", "p", "--db", db)
    assert "too large" in aisbench("tester", "token", "revoke", str(10**20), "--db", db, code=4).stderr
    with sqlite3.connect(db) as connection:
        connection.execute("DROP TABLE audit")
    told = aisbench("tester", "token", "add", "p", "--db", db, code=4).stderr
    assert told == f"aisbench tester: the database sqlite:///{db}: no such table: audit\n"


def test_tokens_are_printed_once_and_kept_as_digests(tmp_path: Path) -> None:
    db = f"{tmp_path}/tester.db"
    added = aisbench("tester", "token", "add", "acceptance", "--label", "ci", "--db", db)
    token = added.stdout.strip()
    assert token.startswith("aisbt_")
    assert "not shown again" in added.stderr
    assert token.encode() not in Path(db).read_bytes()
    assert aisbench("tester", "token", "revoke", "1", "--db", db).stdout == "token 1 is revoked\n"
    (listed,) = json.loads(aisbench("tester", "--db", db, "token", "list", "--json").stdout)
    assert (listed["project"], listed["kind"], listed["label"]) == ("acceptance", "send", "ci")
    assert listed["revoked"] is not None
    assert token not in json.dumps(listed)
    acts = [json.loads(line)["act"] for line in aisbench("tester", "audit", "--db", db, "--json").stdout.splitlines()]
    assert acts == ["token added (send)", "token revoked"]
    assert "is not the name of a project" in aisbench("tester", "token", "add", "A/B", "--db", db, code=4).stderr


def test_the_audit_is_a_page_and_a_file(tester: Serving) -> None:
    tester.send(tester.token("audited", label="jenkins"), parcel("run-1", case()))
    page = tester.get("/p/audited/audit").text
    assert "jenkins" in page
    assert "127.0.0.1" in page
    rows = list(csv.DictReader(io.StringIO(tester.get("/p/audited/audit?format=csv").text)))
    assert [(row["act"], row["status"], row["run_id"]) for row in rows] == [
        ("token added (send)", "0", ""),
        ("results", "201", "run-1.resnet50-2x8"),
    ]


def test_the_file_is_its_owners_alone(tmp_path: Path) -> None:
    file = tmp_path / "tester.db"
    with serving(f"sqlite:///{file}") as running:
        running.token("one")
        modes = {each.name: each.stat().st_mode & 0o777 for each in tmp_path.glob("tester.db*")}
    assert set(modes.values()) == {0o600}, modes


def test_a_restart_knows_everything(new_database: Callable[[], str]) -> None:
    db = new_database()
    with serving(db) as before:
        token = before.token("kept")
        before.send(token, parcel("run-1", case()))
    with serving(db) as after:
        after.send(token, parcel("run-1", case()))
        assert [row["status"] for row in after.audited("kept")] == [201, 200]


def test_without_the_extra_it_is_one_line(tmp_path: Path) -> None:
    blocked = "import sys; sys.modules['sqlalchemy'] = None; from pytest_aisbench.cli import main; sys.exit(main())"
    done = subprocess.run(
        [sys.executable, "-c", blocked, "tester"], capture_output=True, text=True, check=False, timeout=60, cwd=tmp_path
    )
    assert done.returncode == 4
    advice = "pip install 'pytest-aisbench[tester]'"
    assert done.stderr == f"aisbench tester: the Tester needs sqlalchemy, which is not installed; {advice}\n"
