"""A run on a real Slurm: from the command line to the verdict, killed and taken over, shown, stopped and examined."""

from __future__ import annotations

import json
import os
import re
import signal
import sys
from pathlib import Path

import pytest
from slurm import Cluster
from waiting import wait_until
from yard import SCRIPT, THRESHOLDS, Gate, Yard

pytestmark = pytest.mark.slow
CLAIMS = THRESHOLDS.replace("local", "slurm")


@pytest.fixture
def yard(tmp_path: Path, slurm: Cluster) -> Yard:
    """A folder with a suite, and an aisbench.toml that chooses this Slurm."""
    yard = Yard(tmp_path, tmp_path / "no cloud")
    table = f'share = "{slurm.share}"\npython = "{sys.executable}"\npoll = "0.1s"\nexclusive = "no"\n'
    (tmp_path / "aisbench.toml").write_text(f'platform = "slurm"\n[slurm]\n{table}')
    yard.suite(thresholds=CLAIMS)
    return yard


def jobs_named(slurm: Cluster, yard: Yard) -> list[str]:
    """The states of all jobs that runs of this folder submitted."""
    names = ",".join(trial["name"] for trial in yard.trials())
    return slurm.run("squeue", "-h", "-t", "all", f"--name={names}", "-o", "%T").split()


def test_two_nodes_pass_and_are_named(yard: Yard) -> None:
    """The slow node is named as the cluster calls it."""
    slow = SCRIPT.replace('"12.5"', "str(12.5 if rank < 2 else 10)")
    yard.suite(thresholds=CLAIMS, script=slow)
    ended = yard.pytest("suites", "--nodes", "2", cloud=False)
    assert ended.code == 0, ended.out
    (case,) = ended.results["cases"]
    (trial,) = case["trials"]
    assert case["metrics"]["throughput"]["value"] == 45
    # The job's own notes say that it is done; Slurm itself may be some seconds behind.
    assert trial["platform_phase"] in {"COMPLETED", "COMPLETING", "RUNNING"}
    assert (trial["phase"], trial["hosts"]) == ("SUCCEEDED", ["node1", "node2"])
    assert [log.rpartition("/")[2] for log in trial["logs"]] == ["worker-0.log", "worker-1.log"]
    assert "rank 3 of 4" in (ended.reports / trial["logs"][1]).read_text()
    assert [straggler["host"] for straggler in trial["stragglers"]] == ["node2"]
    assert "node 1 (node2) runs at 80.0%" in ended.out


def test_a_failure_names_its_rank_and_its_line(yard: Yard) -> None:
    script = "import os, sys\nif os.environ['RANK_ID'] == '3': sys.exit('no memory left')\nimport time; time.sleep(600)"
    yard.suite(thresholds=CLAIMS, script=script)
    ended = yard.pytest("suites", "--nodes", "2", cloud=False)
    assert (ended.code, ended.verdicts) == (1, {"toy-2x2": "FAILED"}), ended.out
    assert "the job failed with exit code 1: no memory left (logs/toy-2x2/1/worker-1.log)" in ended.out


def test_a_killed_run_is_taken_over_and_its_job_runs_once(yard: Yard, slurm: Cluster) -> None:
    gate = Gate()
    yard.suite(thresholds=CLAIMS, script=gate.wait + SCRIPT)
    run = yard.start(cloud=False)
    yard.wait_for_job("RUNNING")
    os.killpg(run.pid, signal.SIGKILL)
    run.communicate()
    gate.open()
    ended = yard.pytest("suites", "--nodes", "1", cloud=False)
    assert (ended.code, ended.verdicts) == (0, {"toy-1x2": "PASSED"}), ended.out
    assert "taken over from run" in ended.out
    assert len(jobs_named(slurm, yard)) == 1


def test_jobs_logs_and_stop(yard: Yard, slurm: Cluster) -> None:
    gate = Gate()
    yard.suite(thresholds=CLAIMS, script="print('it begins', flush=True)\n" + gate.wait + SCRIPT)
    run = yard.start(cloud=False)
    job_id = yard.wait_for_job("RUNNING")
    os.killpg(run.pid, signal.SIGKILL)
    run.communicate()
    shown = json.loads(yard.aisbench("jobs", "--json").stdout)["jobs"]
    assert [(job["job_id"], job["phase"]) for job in shown] == [(job_id, "RUNNING")]
    wait_until(lambda: yard.aisbench("logs", job_id).stdout.count("it begins"), lambda count: count == 2)
    stopped = yard.aisbench("stop", "--all-mine")
    assert stopped.returncode == 0, stopped.stdout + stopped.stderr
    assert "stopped (CANCELLED)" in stopped.stdout
    assert jobs_named(slurm, yard) == ["CANCELLED"]


@pytest.mark.parametrize(
    ("table", "nodes", "why"),
    [
        ('partition = "short"', "1", "short lets a job run for 5 minutes, and this one asks for 1441"),
        ('partition = "short"\ntime = "2m"', "2", "short gives a job 1 nodes at most, and 2x2 needs more"),
        ('partition = "closed"', "1", "closed is DOWN: no job starts there"),
        ('partition = "none"', "1", "none is not there; known: acceptance, closed, short, urgent"),
        ('gres = "gpu"', "1", "1x2: sbatch: .*Invalid generic resource"),
        ('constraint = "infiniband"', "1", "1x2: sbatch: .*Invalid feature|1x2: sbatch: .*not available"),
    ],
)
def test_what_slurm_would_never_run_is_exit_4(yard: Yard, table: str, nodes: str, why: str) -> None:
    with (yard.folder / "aisbench.toml").open("a") as file:
        file.write(table)
    ended = yard.pytest("suites", "--nodes", nodes, cloud=False)
    assert ended.code == 4, ended.out
    assert re.search(why, ended.out), ended.out
    assert yard.trials() == []


def test_doctor_says_what_the_cluster_has(yard: Yard) -> None:
    said = yard.aisbench("doctor", "suites", "--nodes", "2", "--probe")
    assert said.returncode == 0, said.stdout
    for part in ("cluster aisbench answers, with slurm", "can be written", "2 of 2 nodes take jobs, with npu:8"):
        assert part in said.stdout
    assert "sbatch --test-only" in said.stdout
    assert re.search(r"node[12] writes to the shared folder", said.stdout)
