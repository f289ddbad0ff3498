"""A ledger outlives whoever writes it, on any file system, at any version."""

from __future__ import annotations

import errno
import fcntl
import json
import shutil
import sqlite3
import subprocess
import sys
from contextlib import closing
from pathlib import Path, PurePosixPath
from typing import Any

import ledger_victims
import pytest
from cloud_client import CloudClient
from waiting import PATIENCE
from yard import SCRIPT, Gate, Yard

from pytest_aisbench.errors import LedgerError
from pytest_aisbench.ledger import database
from pytest_aisbench.ledger import database as database_module
from pytest_aisbench.ledger.database import STEPS, VERSION, Mount, find_mount
from pytest_aisbench.ledger.lease import Liveness, liveness
from pytest_aisbench.ledger.ledger import Ledger
from pytest_aisbench.ledger.runs import JobLedger

pytestmark = pytest.mark.slow

TABLE = r"""
22 27 0:21 / /proc rw,relatime - proc proc rw
27 1 254:0 / / rw,relatime shared:1 - ext4 /dev/vda rw
60 27 0:50 / /home rw master:2 propagate_from:1 - nfs4 server:/home rw,vers=4.2
61 60 0:51 / /home/with\040blank\134slash rw - fuse.sshfs other: rw
62 60 8:1 / /home/local rw - xfs /dev/sda1 rw
63 62 0:52 / /home/local rw - cifs //over/it rw
not a mount
"""


def victims(act: str, folder: Path, *numbers: int, table: Path | None = None, before: tuple[str, ...] = ()) -> Any:
    script = Path(ledger_victims.__file__)
    words = [*before, sys.executable, script, act, table or "", folder, *map(str, numbers)]
    done = subprocess.run(words, capture_output=True, text=True, check=False, timeout=PATIENCE)
    assert done.returncode == 0, done.stderr
    assert done.stderr == ""
    return json.loads(done.stdout)


@pytest.fixture
def nfs(tmp_path: Path) -> Path:
    """A table of mounts that has this test's folder on another machine."""
    table = tmp_path / "mountinfo"
    table.write_text(f"1 0 0:1 / / rw - ext4 /dev/vda rw\n2 1 0:2 / {tmp_path} rw - nfs4 server:/ci rw\n")
    return table


@pytest.fixture(params=["wal", "delete"])
def journal(request: pytest.FixtureRequest, nfs: Path) -> tuple[str, Path | None]:
    return request.param, nfs if request.param == "delete" else None


def asked(file: Path, statement: str) -> list[Any]:
    with closing(sqlite3.connect(file)) as db:
        return db.execute(statement).fetchall()


def opened_with(monkeypatch: pytest.MonkeyPatch, option: str) -> None:
    connect: Any = sqlite3.connect
    monkeypatch.setattr(sqlite3, "connect", lambda path, **more: connect(f"file:{path}?{option}", uri=True, **more))


@pytest.mark.parametrize(
    ("folder", "mount"),
    [
        ("/work", Mount("/", "ext4")),
        ("/homes", Mount("/", "ext4")),
        ("/home", Mount("/home", "nfs4")),
        ("/home/me/reports", Mount("/home", "nfs4")),
        ("/home/with blank\\slash/reports", Mount("/home/with blank\\slash", "fuse.sshfs")),
        ("/home/local/reports", Mount("/home/local", "cifs")),
    ],
)
def test_the_nearest_mount_decides(folder: str, mount: Mount) -> None:
    assert find_mount(TABLE, PurePosixPath(folder)) == mount
    assert mount.shares_memory == (mount.kind == "ext4")


@pytest.mark.parametrize("kind", ["nfs", "smb3", "fuse.sshfs", "9p", "virtiofs", "lustre", "gpfs", "ceph", "of-2030"])
def test_no_shared_memory_is_believed_of_other_machines(kind: str) -> None:
    assert not Mount("/", kind).shares_memory


def test_what_was_said_survives_a_kill_at_any_moment(tmp_path: Path, journal: tuple[str, Path | None]) -> None:
    mode, table = journal
    rounds = victims("kill", tmp_path, 15, 20_260, table=table)
    assert [done["integrity"] for done in rounds] == ["ok"] * 15
    for done in rounds:
        # The save that the kill interrupted may have been whole, and not yet said.
        assert all(done["found"][number] >= state for number, state in done["said"].items())
    assert sum(bool(done["said"]) for done in rounds) > 5
    assert asked(tmp_path / "ledger-0.db", "PRAGMA journal_mode") == [(mode,)]


def test_runs_that_begin_at_once_lose_nothing(tmp_path: Path, journal: tuple[str, Path | None]) -> None:
    mode, table = journal
    for file in (tmp_path / f"{number}.db" for number in range(2)):
        done = victims("collide", file, 3, 8, table=table)
        assert done == {"codes": [0] * 3, "rows": [[f"run-{at}", 0, 8] for at in range(3)], "mode": mode}


def test_a_ledger_with_a_log_is_converted_where_that_is_not_safe(tmp_path: Path, nfs: Path) -> None:
    """By three at once, with a log that a killed run left full."""
    file = tmp_path / "ledger.db"
    with closing(Ledger(file)) as ledger:
        ledger.begin("old", {}, 1.0)
        for end in ("", "-wal", "-shm"):  # as a kill leaves them
            shutil.copy(f"{file}{end}", tmp_path / f"left.db{end}")
    done = victims("collide", tmp_path / "left.db", 3, 2, table=nfs)
    assert (done["codes"], done["mode"]) == ([0] * 3, "delete")
    assert ("old",) in asked(tmp_path / "left.db", "SELECT run FROM runs")


def test_a_log_that_somebody_has_open_is_refused_where_that_is_not_safe(
    tmp_path: Path, nfs: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with closing(Ledger(tmp_path / "ledger.db")) as open_elsewhere:
        open_elsewhere.begin("r", {}, 1.0)
        monkeypatch.setattr(database_module, "TABLE", nfs)
        monkeypatch.setattr(database, "_WAIT_S", 0.05)
        with pytest.raises(LedgerError, match=rf"not safe on nfs4 at {tmp_path}, and a process .* --aisbench-ledger$"):
            Ledger(tmp_path / "ledger.db")
        open_elsewhere.finish("r", 0, 2.0)


def test_a_ledger_without_a_log_stays_so(tmp_path: Path, nfs: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """It may be open on another machine, for which the folder is a remote one."""
    file = tmp_path / "ledger.db"
    with monkeypatch.context() as patched:
        patched.setattr(database_module, "TABLE", nfs)
        Ledger(file).close()
    Ledger(file).close()
    assert asked(file, "PRAGMA journal_mode") == [("delete",)]


def test_sqlite_without_shared_memory_writes_all_the_same(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A layer of SQLite that answers to WAL with something else."""
    opened_with(monkeypatch, "vfs=unix-dotfile")
    with closing(Ledger(tmp_path / "ledger.db")) as ledger:
        ledger.begin("r", {}, 1.0)
        assert ledger.database.read("PRAGMA journal_mode") == [("delete",)]
        assert ledger.database.read("PRAGMA synchronous") == [(3,)]
        assert ledger.entry("r").exit_code is None


def test_a_machine_that_does_not_tell_its_mounts_gets_a_log(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(database_module, "TABLE", tmp_path / "none")
    with closing(Ledger(tmp_path / "ledger.db")) as ledger:
        assert ledger.database.read("PRAGMA journal_mode") == [("wal",)]
        assert ledger.database.read("PRAGMA synchronous") == [(2,)]


def test_a_file_system_without_locks_is_named(tmp_path: Path, nfs: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(*_: Any) -> None:
        raise OSError(errno.ENOLCK, "No locks available")

    monkeypatch.setattr(fcntl, "lockf", refuse)
    monkeypatch.setattr(database_module, "TABLE", nfs)
    named = rf"nfs4 at {tmp_path} has no working file locks \(No locks available\); .* --aisbench-ledger$"
    with pytest.raises(LedgerError, match=named):
        Ledger(tmp_path / "ledger.db")


def test_a_full_disk_is_one_line_and_costs_nothing_that_was_there(tmp_path: Path) -> None:
    with closing(Ledger(tmp_path / "ledger.db")) as ledger:
        ledger.begin("r", {}, 1.0)
        ledger.save_trial(ledger_victims.trial("r", 1, 1), 1.0)
        ledger.database.read("PRAGMA max_page_count = 1")  # SQLite takes as many as there are now

        def fill() -> None:
            for number in range(2, 50):
                ledger.save_trial(ledger_victims.trial("r", number, 1), 1.0)

        def renew_and_save() -> None:
            with ledger.database.transaction():
                ledger.renew("r", 77.0)
                ledger.save_trial(ledger_victims.trial("r", 60, 1), 1.0)

        with pytest.raises(LedgerError, match=r"disk is full; free some space, or name another .*--aisbench-ledger$"):
            fill()
        before = ledger.trials("r")
        with pytest.raises(LedgerError, match="full"):
            renew_and_save()
        assert ledger.database.read("SELECT lease FROM runs") == [(0.0,)]  # all of it, or nothing
        ledger.database.read("PRAGMA max_page_count = 1000")
        ledger.save_trial(ledger_victims.trial("r", 60, 1), 1.0)
        assert ledger.trials("r") == [*before, ledger_victims.trial("r", 60, 1)]
        assert ledger.database.read("PRAGMA integrity_check") == [("ok",)]


def test_a_disk_that_is_really_full_and_then_read_only(tmp_path: Path) -> None:
    alone = ("unshare", "--user", "--map-root-user", "--mount")
    if not shutil.which("unshare") or subprocess.run([*alone, "true"], capture_output=True, check=False).returncode:
        pytest.skip("no user namespace to mount a small disk in")
    disk = tmp_path / "small disk"
    disk.mkdir()
    told = victims("fill", disk, before=alone)
    assert "disk is full; free some space" in told["full"]
    assert told["kept"] == list(range(1, told["saved"] + 1))
    assert told["saved"]
    assert told["integrity"] == "ok"
    assert "can be written, or name another file with --aisbench-ledger" in told["readonly"]
    assert told["mount"] == [str(disk), "tmpfs"]


def test_a_file_that_is_read_only_says_so(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    Ledger(tmp_path / "ledger.db").close()
    opened_with(monkeypatch, "mode=ro")  # the file's own mode would not stop a superuser
    with closing(Ledger(tmp_path / "ledger.db")) as ledger:
        assert ledger.trials("r") == []
        with pytest.raises(LedgerError, match=r"readonly database; make the file and its folder writable, or name"):
            ledger.begin("r", {}, 1.0)


def test_a_damaged_file_is_one_line(tmp_path: Path) -> None:
    file = tmp_path / "ledger.db"
    Ledger(file).close()
    file.write_bytes(file.read_bytes()[:4096] + b"\xff" * 40_000)
    damaged = r"malformed; it is damaged: move it away and keep it"
    with pytest.raises(LedgerError, match=damaged), closing(Ledger(file)) as ledger:
        ledger.begin("r", {}, 1.0)


def delete(file: Path) -> None:
    for each in file.parent.glob(f"{file.name}*"):
        each.unlink()


def cut(file: Path) -> None:
    with file.open("r+b") as content:
        content.truncate(0)


def replace_by_a_copy(file: Path) -> None:
    shutil.copy(file, file.with_suffix(".copy"))
    file.with_suffix(".copy").replace(file)


def delete_its_log(file: Path) -> None:
    Path(f"{file}-wal").unlink()


@pytest.mark.parametrize(
    ("harm", "said"),
    [
        (delete, "was deleted"),
        (cut, "was cut"),
        (replace_by_a_copy, "was replaced by another file"),
        (delete_its_log, "was deleted"),
    ],
)
def test_a_ledger_that_is_lost_in_mid_run_is_noticed(tmp_path: Path, harm: Any, said: str) -> None:
    with closing(Ledger(tmp_path / "ledger.db")) as ledger:
        ledger.begin("r", {}, 1.0)
        ledger.database.check_file()
        ledger.save_trial(ledger_victims.trial("r", 1, 1), 1.0)
        ledger.database.check_file()
        ledger.database.read("PRAGMA wal_checkpoint")
        ledger.database.check_file()
        harm(ledger.path)
        with pytest.raises(LedgerError, match=f"{said} while this run used it; its jobs are stopped"):
            ledger.database.check_file()


def test_a_ledger_that_was_tidied_up_is_not_lost(tmp_path: Path) -> None:
    with closing(Ledger(tmp_path / "ledger.db")) as ledger:
        ledger.begin("r", {}, 1.0)
        for number in range(1, 50):
            ledger.save_trial(ledger_victims.trial("r", number, 1), 1.0)
        ledger.database.read("PRAGMA wal_checkpoint(TRUNCATE)")
        ledger.database.check_file()
        ledger.database.write("DELETE FROM trials")
        with closing(sqlite3.connect(ledger.path)) as other:
            other.execute("VACUUM")
            other.execute("PRAGMA wal_checkpoint(TRUNCATE)")
        ledger.database.check_file()


@pytest.mark.slow(seconds=6)
@pytest.mark.parametrize("harm", [delete, cut])
def test_a_run_whose_ledger_is_lost_stops_its_jobs_and_the_next_one_knows(yard: Yard, card: Path, harm: Any) -> None:
    gate = Gate()
    yard.suite(script=gate.wait + SCRIPT)
    run = yard.start()
    yard.wait_for_job()
    ledger = yard.folder / "reports" / "ledger.db"
    harm(ledger)
    out, _ = run.communicate(timeout=PATIENCE)
    assert run.returncode == 3, out
    assert "while this run used it; its jobs are stopped" in out
    assert "INTERNALERROR" not in out
    assert "Traceback" not in out
    (journal,) = yard.folder.glob("reports/2*/journal.jsonl")
    lines = [json.loads(line) for line in journal.read_text().splitlines()]
    assert lines[0]["run"]["run"] == journal.parent.name
    assert lines[-1].keys() == {"ended"}
    assert [line["trial"]["job"]["phase"] for line in lines if "trial" in line][-1] == "CANCELLED"
    delete(ledger)
    gate.open()
    ended = yard.pytest("suites", "--nodes", "1")
    assert ended.code == 0, ended.out
    assert f"the journal of run {journal.parent.name}, whose ledger failed, was brought into the ledger" in ended.out
    first, second = yard.trials()
    assert (first["run"], first["job"]["phase"]) == (journal.parent.name, "CANCELLED")
    assert second["job"]["phase"] == "SUCCEEDED"
    assert not journal.exists()
    assert [path.name for path in yard.folder.glob("reports/*/.journal")] == []


@pytest.mark.slow(seconds=6)
def test_a_run_whose_folder_is_removed_ends_in_one_line_and_the_next_one_is_right(yard: Yard) -> None:
    gate = Gate()
    yard.suite(script=gate.wait + SCRIPT)
    run = yard.start()
    yard.wait_for_job()
    (folder,) = yard.folder.glob("reports/2*/")
    shutil.rmtree(folder)
    gate.open()
    out, _ = run.communicate(timeout=PATIENCE)
    assert run.returncode == 3, out
    assert "was removed while this run used it; verdicts are in the ledger" in " ".join(out.split())
    assert "INTERNALERROR" not in out
    assert "Traceback" not in out
    ended = yard.pytest("suites", "--nodes", "1")
    assert (ended.code, ended.verdicts) == (0, {"toy-1x2": "PASSED"}), ended.out


def _small_disk(folder: Path) -> list[str]:
    """What runs a command in `folder` on a disk of 128 MB that no other process sees."""
    alone = ["unshare", "--user", "--map-root-user", "--mount"]
    if not shutil.which("unshare") or subprocess.run([*alone, "true"], capture_output=True, check=False).returncode:
        pytest.skip("no user namespace to mount a small disk in")
    mount = f'mount -t tmpfs -o size=128m tmpfs "{folder}" && exec "$@"'
    return [*alone, "sh", "-c", mount, "sh"]


# Runs on a small disk: pytest, the disk filled once the job is submitted, and pytest again with room.
_FILL = """
import glob, json, os, sqlite3, subprocess, sys, time
reports, *command = sys.argv[1:]


def trials():
    try:
        with sqlite3.connect(f"{reports}/ledger.db") as db:
            return db.execute("SELECT step, job_id FROM trials").fetchall()
    except sqlite3.OperationalError:
        return []


run = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True)
while not any(step == "WATCH" and job for step, job in trials()):
    assert run.poll() is None, run.stdout.read()
    time.sleep(0.02)
with open(f"{reports}/filler", "wb", 0) as filler:
    for size in (1_000_000, 1000, 1):
        try:
            while True:
                filler.write(bytes(size))
        except OSError:
            pass
out = run.communicate()[0]
journals = glob.glob(f"{reports}/2*/journal.jsonl")
os.unlink(f"{reports}/filler")
again = subprocess.run(command, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True)
print(json.dumps({"code": run.returncode, "out": out, "journals": journals, "trials": trials(),
                  "then": again.returncode, "again": again.stdout}))
"""


@pytest.mark.slow(seconds=10)
def test_a_run_whose_disk_is_full_ends_in_one_line_and_the_next_one_is_right(tmp_path: Path, own_card: Path) -> None:
    disk = tmp_path / "disk"
    disk.mkdir()
    before = _small_disk(disk)
    yard = Yard(tmp_path, own_card)
    yard.suite(script="import time\ntime.sleep(4)\n" + SCRIPT)
    command = yard.command("suites", "--nodes", "1", "--aisbench-reports", str(disk))
    done = subprocess.run(
        [*before, sys.executable, "-c", _FILL, str(disk), *command],
        cwd=tmp_path, env=yard.environment(), capture_output=True, text=True, timeout=PATIENCE, check=False,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr + done.stdout
    told = json.loads(done.stdout)
    assert told["code"] == 3, told["out"]
    assert "INTERNALERROR" not in told["out"]
    assert "Traceback" not in told["out"]
    assert told["then"] == 0, told["again"]
    with CloudClient(json.loads(own_card.read_text())) as cloud:
        jobs = cloud.control("GET", "books")[1]["jobs"]
    assert all(job["phase"] in {"Completed", "Terminated"} for job in jobs), jobs
    assert {job["id"] for job in jobs} == {job for _, job in told["trials"]}


@pytest.mark.skipif(sys.platform != "linux", reason="pid namespaces")
def test_a_process_is_known_beyond_its_number_and_its_host() -> None:
    tell = [
        sys.executable,
        "-c",
        "from pytest_aisbench.ledger.lease import *; print(this_process(), flush=True); input()",
    ]
    process = subprocess.Popen(tell, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)
    assert process.stdout
    owner = process.stdout.readline().strip()
    assert liveness(owner) is Liveness.ALIVE
    process.communicate("\n")
    assert liveness(owner) is Liveness.DEAD
    inside = subprocess.run(
        ["unshare", "--pid", "--fork", "--mount-proc", *tell], input="\n", capture_output=True, text=True, check=False
    )
    if inside.returncode:
        pytest.skip(f"no pid namespace can be made here: {inside.stderr.strip()}")
    assert liveness(inside.stdout.strip()) is Liveness.UNKNOWN


def test_a_kill_in_the_middle_of_an_upgrade_leaves_a_whole_version(tmp_path: Path) -> None:
    whole = {}
    for version in range(1, VERSION + 1):
        with closing(sqlite3.connect(tmp_path / f"{version}.db")) as db:
            db.executescript("".join(STEPS[:version]) + f"PRAGMA user_version = {version};")
        listed = "SELECT name, sql FROM sqlite_master WHERE sql IS NOT NULL ORDER BY name"
        whole[version] = [list(row) for row in asked(tmp_path / f"{version}.db", listed)]
    old = tmp_path / "1.db"
    with closing(sqlite3.connect(old)) as db, db:
        db.execute("INSERT INTO runs VALUES ('old', 1.0, NULL, NULL, '{}')")
        told = '{"fingerprint": "same", "job": {"phase": "SUCCEEDED", "ran_s": 7.5}}'
        db.execute("INSERT INTO trials VALUES ('t', 'old', 'toy-1x1', 1, 'name', 'DONE', NULL, 1.0, ?)", (told,))
    killed = victims("upgrade", old)
    assert [done["finished"] for done in killed] == [False] * (len(killed) - 1) + [True]
    assert {done["version"] for done in killed} == set(range(1, VERSION + 1))
    for done in killed:
        assert done["tables"] == whole[done["version"]]
        with closing(JobLedger(tmp_path / done["file"])) as ledger:  # goes on where the victim fell
            assert ledger.past_durations("toy-1x1", "", "same") == [7.5]
            assert ledger.entry("old").exit_code is None
