"""A job that a person stops: by `aisbench stop`, as ais-bench-stubs did, with nothing but its package."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from cloud_client import CloudClient
from old_package import BERT, config, unpack
from v1_client import KILLED, RUNNING, V1
from waiting import wait_until
from yard import WORKERS, WORKLOAD, Ended, Yard

from pytest_aisbench.localcloud.faults import Fault
from pytest_aisbench.localcloud.server import LocalCloud

PRINTED = Path(__file__).parents[1] / "data/seeds"  # what the guide of ais-bench-stubs shows
HELD = WORKLOAD + '[local]\nparameters = { seconds = "600" }\n'
FAST = WORKLOAD + '[local]\nparameters = { seconds = "0.1" }\n'
JOB_ONLY = (
    'import pytest\n\n@pytest.mark.workload("{name}", nodes=[1])\ndef test_ends(job):\n    assert job.reason == ""\n'
)


@pytest.fixture
def cloud() -> Iterator[LocalCloud]:
    with LocalCloud(engine="simulated", faults=[Fault(name="lost-1x2", job="lost")]) as cloud:
        yield cloud


@pytest.fixture
def client(cloud: LocalCloud) -> Iterator[CloudClient]:
    with CloudClient(cloud.card()) as client:
        client.put("code/train.py", b"print('training')")
        client.put("data/a", b"1")
        yield client


@pytest.fixture
def yard(tmp_path: Path, cloud: LocalCloud) -> Yard:
    (tmp_path / "card.json").write_text(json.dumps(cloud.card()))
    return Yard(tmp_path / "yard", tmp_path / "card.json")


def package(yard: Yard, cloud: LocalCloud, version: str) -> str:
    """Unpacked; its access_config is all that says where the cloud is, and how to sign."""
    card, text = cloud.card(), config({**BERT, "seconds": "600"}, code="bert", boot="run_pretrain.py", data="enwiki")
    for key, value in {
        "access_key": card["access_key"],
        "secret_access_key": card["secret_key"],
        "region_name": card["region"],
        "project_id": card["project_id"],
        **{name: card[name] for name in ("iam_endpoint", "obs_endpoint", "modelarts_endpoint")},
    }.items():
        text = re.sub(rf"'{key}' ?: '[^']*'", f"'{key}': '{value}'", text)
    text = text.replace("'server': 'https://obs.cn-north-4.myhuaweicloud.com'", "'server': ''")
    unpack(yard.folder / "unpacked", text, shell=f"export MODELARTS_VERSION={version}\n").chmod(0o700)
    return "unpacked"


def stopped_while_it_runs(yard: Yard, client: CloudClient, *arguments: str) -> Ended:
    """A run whose held job somebody stops at the console: a request of another client."""
    with yard.start(*arguments) as run:
        client.stop(held_job(yard))
        out, _ = run.communicate()
    return Ended(run.returncode, out, yard.folder)


def held_job(yard: Yard) -> str:
    def running() -> list[dict[str, Any]]:
        trials = [trial for trial in yard.trials() if trial["case"]["workload"]["name"] == "held"]
        return [trial for trial in trials if (trial["job"] or {}).get("phase") == "RUNNING"]

    return str(wait_until(running)[0]["job_id"])


@pytest.mark.slow
@WORKERS
def test_it_ranks_behind_broken_and_before_passed(yard: Yard, client: CloudClient, workers: list[str]) -> None:
    yard.suite("held", workload=HELD)
    yard.suite("good", workload=FAST)
    ended = stopped_while_it_runs(yard, client, *workers)
    assert ended.code == ended.results["exit_code"] == 2, ended.out
    assert ended.verdicts == {"held-1x2": None, "good-1x2": "PASSED"}
    yard.suite("lost", workload=FAST)
    broken = stopped_while_it_runs(yard, client, *workers, "--aisbench-max-trials", "1")
    assert broken.code == 12, broken.out
    assert broken.verdicts == {"held-1x2": None, "good-1x2": "PASSED", "lost-1x2": "BROKEN"}


def test_a_required_case_that_was_stopped_is_missing_and_says_who_did(yard: Yard, client: CloudClient) -> None:
    yard.suite("held", workload=HELD)
    (yard.folder / "required.txt").write_text("held-1x2\n")
    ended = stopped_while_it_runs(yard, client, "--aisbench-require", "required.txt")
    assert ended.code == 11, ended.out
    assert re.search(r"^missing: held-1x2: stopped by another person or program: ", ended.out, re.MULTILINE)


def test_a_test_of_the_job_alone_is_skipped_too(yard: Yard, client: CloudClient) -> None:
    yard.suite("held", workload=HELD, test=JOB_ONLY)
    ended = stopped_while_it_runs(yard, client, "-rs")
    assert ended.code == 2, ended.out
    assert re.search(r"SKIPPED \[1\].*stopped by another person or program", ended.out)


def test_chinese_reports_say_it_in_chinese(yard: Yard, client: CloudClient) -> None:
    yard.suite("held", workload=HELD)
    ended = stopped_while_it_runs(yard, client, "--aisbench-lang", "zh")
    assert ended.code == 2, ended.out
    assert "被他人停止" in ended.out
    assert ended.results["cases"][0]["reason"].startswith("stopped by another person or program")


@pytest.mark.slow
def test_stop_and_logs_of_v1_need_nothing_but_the_package(yard: Yard, cloud: LocalCloud, client: CloudClient) -> None:
    """As `train_modelarts.py --action stop`: the newest version of the job that the configuration names."""
    v1, folder = V1(cloud, client), package(yard, cloud, "V1")
    command, printed = (PRINTED / "stop_v1.txt").read_text().splitlines()
    assert command.endswith("--action stop")
    (name,) = re.findall(r"jobname:(\S+)", printed)
    version = v1.create(v1.slow(name))
    v1.until(version, {RUNNING})
    logs = yard.aisbench("logs", "--package", folder)
    assert (logs.returncode, logs.stderr) == (0, "")
    stopped = yard.aisbench("stop", "--package", folder)
    assert stopped.returncode == 0, stopped.stdout + stopped.stderr
    _, job, _, number = version.split("/")
    assert stopped.stdout.startswith(f"{job}/{number} ({name}): stopped (KILLED); it was RUNNING")
    assert v1.status(version) == KILLED
    assert not (yard.folder / "reports").exists()


def test_stop_of_v2_ends_as_the_predecessors_did(yard: Yard, cloud: LocalCloud, client: CloudClient) -> None:
    folder = package(yard, cloud, "V2")
    job = client.create("aisbench-debug", seconds=600)
    client.until(job, {"Running"})
    stopped = yard.aisbench("stop", job, "--package", folder)
    assert stopped.returncode == 0, stopped.stdout + stopped.stderr
    last = (PRINTED / "stop_v2.txt").read_text().splitlines()[-1]
    assert stopped.stdout.splitlines()[-1] == last == "job stop status: Terminated"
    assert client.phase(job) == "Terminated"


def test_a_package_whose_job_nobody_created_names_the_line(yard: Yard, cloud: LocalCloud) -> None:
    refused = yard.aisbench("stop", "--package", package(yard, cloud, "V2"))
    assert refused.returncode == 4
    assert "session_config_v2.job_name 'aisbench-debug' is the name of no job" in refused.stderr


def test_the_packages_run_is_stopped_from_another_shell(yard: Yard, cloud: LocalCloud) -> None:
    """The ledger knows the job of the run, whatever its name; and the run knows who stopped it."""
    folder = package(yard, cloud, "V2")
    place = yard.folder / "suites/package"
    place.mkdir(parents=True)
    place.joinpath("test_package.py").write_text(
        "import pytest\n\n@pytest.mark.workload(package=True)\ndef test_trains(trial):\n    pass\n"
    )
    with yard.start("--aisbench-package", folder, "--aisbench-devices", "2") as run:
        yard.wait_for_job("RUNNING")
        stopped = yard.aisbench("stop", "--package", folder, "--cloud", str(yard.card))
        out, _ = run.communicate()
    assert stopped.returncode == 0, stopped.stdout + stopped.stderr
    ended = Ended(run.returncode, out, yard.folder)
    assert ended.code == 2, out
    (case,) = ended.results["cases"]
    assert case["verdict"] is None
    assert re.fullmatch(r"stopped by \S+ with `aisbench stop`", case["reason"])
