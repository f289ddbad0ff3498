"""`aisbench jobs`, `stop` and `logs`, from another shell than the run's."""

from __future__ import annotations

import json
import os
import re
import signal
import subprocess
import sys
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path
from typing import NamedTuple

import pytest
from commands import AISBENCH, local_cloud
from forking import Child
from waiting import wait_until
from yard import SCRIPT, Gate, Yard, submitted

from pytest_aisbench.config.settings import Settings
from pytest_aisbench.ledger.ledger import Ledger
from pytest_aisbench.model.job import Phase
from pytest_aisbench.platforms.local import Local

pytestmark = [pytest.mark.slow, pytest.mark.skipif(sys.platform != "linux", reason="kills process groups")]
# Speaks, and trains until it is told to end. The first rank says what both would.
UNTIL_TOLD = """import os
if os.environ["RANK_ID"] == "0":
    print("first words" + 2 * "\\nepoch: 1 step: 5, loss is 2.0" + 2 * "\\nepoch: 2 step: 5, loss is 1.0", flush=True)
    exec({speak!r})
    print("zweite Wörter 二", flush=True)
{go}"""


class Gates(NamedTuple):
    speak: Gate
    go: Gate


@pytest.fixture
def gates(yard: Yard) -> Gates:
    """Of the job of this yard's suite."""
    gates = Gates(Gate(), Gate())
    yard.suite(script=UNTIL_TOLD.format(speak=gates.speak.wait, go=gates.go.wait) + SCRIPT)
    return gates


STARTED: list[Child] = []


@pytest.fixture(autouse=True)
def nothing_is_left() -> Iterator[None]:
    """A test that fails half-way leaves a run or a follower that would wait for ever."""
    yield
    while STARTED:
        process = STARTED.pop()
        if process.poll() is None:
            os.killpg(process.pid, signal.SIGKILL)
            process.communicate()


def started(yard: Yard, command: list[str]) -> Child:
    process = Child(command, yard.folder, yard.environment(), stderr=subprocess.STDOUT, new_session=True)
    STARTED.append(process)
    return process


def running_job(yard: Yard) -> tuple[Child, str]:
    """A run and the id of its job, which runs."""
    run = started(yard, yard.command("suites", "--nodes", "1"))
    return run, yard.wait_for_job("RUNNING")


def left_job(yard: Yard) -> str:
    """What a killed run left behind."""
    run, job = running_job(yard)
    os.killpg(run.pid, signal.SIGKILL)
    run.communicate()
    return job


def phase(card: Path, job: str) -> Phase:
    with closing(Local(Settings(cloud=card))) as platform:
        return platform.inspect([job])[job].phase


def test_a_job_left_behind_is_seen_heard_and_stopped(yard: Yard, card: Path, gates: Gates) -> None:
    job, cloud = left_job(yard), ["--cloud", str(card)]
    table = yard.aisbench("jobs")
    assert table.returncode == 0
    assert all(len(line) <= 80 for line in table.stdout.splitlines())
    assert job in table.stdout
    (row,) = [line.split() for line in table.stdout.splitlines() if line.startswith("toy-1x2")]
    assert (row[1], row[2], row[-1]) == ("WATCH", "RUNNING", "dead")
    (row,) = json.loads(yard.aisbench("jobs", "--json").stdout)["jobs"]
    assert (row["case"], row["job_id"], row["phase"], row["owner_state"]) == ("toy-1x2", job, "RUNNING", "dead")
    assert row["job_name"].startswith(f"toy-1x2-{row['run']}")

    followers = [started(yard, [*AISBENCH, "logs", job, "--follow", *cloud]) for _ in range(2)]
    texts = []
    for follower in followers:
        assert follower.stdout is not None
        texts.append("")
        while "first words" not in texts[-1]:
            texts[-1] += follower.stdout.readline()
    followers[1].send_signal(signal.SIGINT)
    quiet, _ = followers[1].communicate()
    assert (followers[1].returncode, "Traceback" in quiet) == (2, False)
    gates.speak.open()
    assert followers[0].stdout is not None
    while "zweite" not in texts[0]:
        texts[0] += followers[0].stdout.readline()

    stop = yard.aisbench("stop", job, *cloud)
    assert stop.returncode == 0, stop.stderr
    name = re.escape(row["job_name"])
    line = rf"{job} \({name}\): stopped \(Terminated\); it was Running, and ran for \d+\.\d s\n"
    assert re.fullmatch(line, stop.stdout), stop.stdout
    assert phase(card, job) is Phase.CANCELLED
    rest, _ = followers[0].communicate()
    assert followers[0].returncode == 0
    whole = yard.aisbench("logs", job, *cloud)
    assert texts[0] + rest == whole.stdout
    assert "zweite Wörter 二" in whole.stdout
    curve = yard.aisbench("logs", job, "--curve", *cloud)
    assert (curve.returncode, curve.stdout[:4], curve.stderr) == (0, "loss", "")
    assert "2 → 1 at epoch 2 step 5" in curve.stdout, "the ledger knows of two ranks"
    assert "at epoch 5 step 5" in yard.aisbench("logs", job, "--curve", "--ranks", "1", *cloud).stdout
    elsewhere = yard.aisbench("logs", job, "--curve", "--ledger", "none.db", *cloud)
    assert "at epoch 5 step 5" in elsewhere.stdout
    assert "read as the log of one rank (--ranks N)" in elsewhere.stderr

    again = yard.aisbench("stop", job, *cloud)
    assert again.returncode == 0
    assert f"{job} ({row['job_name']}): was over before (Terminated); it ran for " in again.stdout
    assert yard.aisbench("jobs").stdout == "no job is in flight\n"
    everything = yard.aisbench("jobs", "--all", "--json")
    assert [entry["step"] for entry in json.loads(everything.stdout)["jobs"]] == ["HARVEST"]
    secret = json.loads(card.read_text())["secret_key"]
    for output in (table, stop, whole, again, everything):
        assert secret not in output.stdout + output.stderr
    ledger = b"".join(file.read_bytes() for file in (yard.folder / "reports").glob("ledger.db*"))
    assert secret.encode() not in ledger

    gates.go.open()
    before = submitted(card)
    ended = yard.pytest("suites", "--nodes", "1")
    assert ended.verdicts == {"toy-1x2": "PASSED"}, ended.out
    assert "taken over" not in ended.out
    assert submitted(card) == before + 1


@pytest.mark.usefixtures("gates")
def test_a_strangers_job_is_refused_unless_forced(yard: Yard, card: Path) -> None:
    job, cloud = left_job(yard), ["--cloud", str(card)]
    Ledger(yard.folder / "other.db").close()
    refused = yard.aisbench("stop", job, "--ledger", "other.db", *cloud)
    assert refused.returncode == 1
    assert "--force stops it all the same" in refused.stdout
    assert yard.aisbench("stop", "--all-mine", "--ledger", "other.db", "--force", *cloud).stdout == ""
    assert phase(card, job) is Phase.RUNNING
    forced = yard.aisbench("stop", job, "--ledger", "other.db", "--force", *cloud)
    assert forced.returncode == 0, forced.stdout + forced.stderr
    assert phase(card, job) is Phase.CANCELLED
    mine = yard.aisbench("stop", "--all-mine", "--reports", "reports", *cloud)
    assert (mine.returncode, mine.stdout.count("was over before (Terminated)")) == (0, 1)
    assert yard.aisbench("jobs").stdout == "no job is in flight\n"


@pytest.mark.usefixtures("gates")
def test_a_live_run_keeps_its_job_unless_forced(yard: Yard, card: Path) -> None:
    run, job = running_job(yard)
    cloud = ["--cloud", str(card)]
    assert yard.aisbench("jobs").stdout.splitlines()[1].endswith(" alive")
    refused = yard.aisbench("stop", job, *cloud)
    assert refused.returncode == 1
    assert "which is alive" in refused.stdout
    assert "left to run" in yard.aisbench("stop", "--all-mine", *cloud).stdout
    assert run.poll() is None
    forced = yard.aisbench("stop", job, "--force", *cloud)
    assert (forced.returncode, "): stopped (Terminated); it was Running" in forced.stdout) == (0, True), forced.stdout
    out, _ = run.communicate()
    assert run.returncode == 2, out
    assert re.search(r"not judged: stopped by \S+ with `aisbench stop`", out)


@pytest.mark.parametrize(
    ("arguments", "says"),
    [
        (["jobs"], "there is no ledger"),
        (["jobs", "--ledger", "a", "--reports", "b"], "not allowed with"),
        (["stop"], "name jobs, or --all-mine"),
        (["logs"], "name a job"),
        (["stop", "x", "--all-mine"], "name jobs, or --all-mine"),
        (["stop", "x", "--ledger", "l.db"], "name --cloud FILE"),
        (["logs", "x"], "name --cloud FILE"),
        (["logs", "x", "--cloud", "none.json"], "none.json: No such file"),
        (["logs", "x", "--platform", "mars"], "unknown platform 'mars'"),
        (["logs", "x", "--platform", "modelarts"], "--platform: platform modelarts needs access_key"),
        (["logs", "x", "--node", "-1"], "-1"),
    ],
    ids=" ".join,
)
def test_what_was_typed_wrong_is_one_line_and_exit_4(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], arguments: list[str], says: str
) -> None:
    from pytest_aisbench.cli import main

    monkeypatch.chdir(tmp_path)
    Ledger(tmp_path / "l.db").close()
    try:
        code = main(arguments)
    except SystemExit as ended:
        code = int(str(ended.code))
    assert code == 4
    assert says in capsys.readouterr().err.splitlines()[-1]


def test_jobs_needs_no_key_of_the_platform(yard: Yard) -> None:
    (yard.folder / "aisbench.toml").write_text('platform = "modelarts"\n[access]\naccess_key = "${NOT_SET}"\n')
    Ledger(yard.folder / "reports" / "ledger.db").close()
    listed = yard.aisbench("jobs")
    assert (listed.returncode, listed.stdout) == (0, "no job is in flight\n"), listed.stderr


def test_a_plugin_that_is_installed_offers_its_platform(yard: Yard, card: Path) -> None:
    info = yard.folder / "site" / "mars-1.0.dist-info"
    info.mkdir(parents=True)
    (info / "METADATA").write_text("Metadata-Version: 2.1\nName: mars\nVersion: 1.0\n")
    (info / "entry_points.txt").write_text("[pytest11]\nmars = mars\n")
    (info.parent / "mars.py").write_text(
        "from pytest_aisbench.model.job import LogPart\n"
        "def pytest_aisbench_platforms():\n    return {'mars': 'mars:Mars'}\n"
        "class Mars:\n"
        "    def __init__(self, settings): pass\n"
        "    def logs(self, job_id, node=0, since=0): return LogPart(f'red dust of {job_id} on {node}\\n', 1)\n"
        "    def close(self): pass\n"
    )
    done = yard.aisbench("logs", "job-1", "--node", "3", "--platform", "mars", PYTHONPATH=str(info.parent))
    assert (done.returncode, done.stdout) == (0, "red dust of job-1 on 3\n"), done.stderr


def test_a_cloud_that_was_started_again_on_its_data_is_the_same_place(tmp_path: Path, yard: Yard) -> None:
    """Its ports are others: the jobs that ended with it must not stay in flight for ever."""
    gate = Gate()
    yard.suite(script=gate.wait + SCRIPT)
    kept = ("--data", str(tmp_path / "cloud"))
    with local_cloud(tmp_path, *kept) as card:
        before = json.loads(card.read_text())
        left_job(Yard(yard.folder, card))
    (job,) = json.loads(yard.aisbench("jobs", "--json").stdout)["jobs"]
    assert before["cloud_id"] in job["platform"]
    with local_cloud(tmp_path, *kept) as card:
        after = json.loads(card.read_text())
        assert after["cloud_id"] == before["cloud_id"]
        assert after["modelarts_endpoint"] != before["modelarts_endpoint"]
        stopped = yard.aisbench("stop", "--all-mine", "--cloud", str(card))
    assert stopped.returncode == 0, stopped.stdout
    assert yard.aisbench("jobs").stdout.strip() == "no job is in flight"
    forgotten = yard.aisbench("jobs", "forget", job["job_id"])
    assert (forgotten.returncode, forgotten.stdout) == (1, f"{job['job_id']}: is no job in flight of this ledger\n")


def test_the_log_of_a_job_of_a_private_cloud_is_read_while_its_run_lives_and_afterwards(yard: Yard) -> None:
    """Only the run can ask that cloud; the command that a person pastes reads what the run has written."""
    gate = Gate()
    yard.suite(script="print('it trains', flush=True)\n" + gate.wait + SCRIPT)
    with yard.start(cloud=False) as run:
        job = yard.wait_for_job("RUNNING")
        wait_until(lambda: "it trains" in yard.aisbench("logs", job).stdout)
        gate.open()
        assert "rank 0 of 2" in yard.aisbench("logs", job, "--follow").stdout
        assert run.wait() == 0
    after = yard.aisbench("logs", job)
    assert (after.returncode, after.stdout.count("it trains")) == (0, 2), after.stderr
    strange = yard.aisbench("logs", "no-such-job")
    assert strange.returncode == 4
    assert "name --cloud FILE" in strange.stderr
