"""Slurm without Slurm: settings, the rendered script, and what states, reasons and notes mean."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from pytest_aisbench.config.loading import load_settings
from pytest_aisbench.config.settings import Settings
from pytest_aisbench.errors import (
    AisbenchError,
    OutOfQuota,
    PlatformError,
    Rejected,
    Throttled,
    Unreachable,
    UsageFault,
)
from pytest_aisbench.model.case import Shape
from pytest_aisbench.model.job import BY_ENVIRONMENT, Job, JobSpec, Phase, StoreUrl
from pytest_aisbench.platforms.slurm.commands import (
    Commands,
    by_name,
    environment,
    error_of,
    parse_queue,
    parse_records,
)
from pytest_aisbench.platforms.slurm.platform import Slurm
from pytest_aisbench.platforms.slurm.script import Folders, job_script, request_body, sbatch_arguments
from pytest_aisbench.platforms.slurm.settings import Options, SlurmKind, SlurmSite, read_options, slurm_site
from pytest_aisbench.platforms.slurm.states import STATES, Notes, Row, describe, read_notes
from pytest_aisbench.registry import PLATFORMS, Registry

ROOT = StoreUrl("share", "aisbench/")
FOLDERS = Folders("/s/jobs/n", "/s/code/", "/s/out/", "/s/logs", "", "/s")
SPEC = JobSpec("bert-1", Shape(2, 8), ROOT / "code/", "train.py", ROOT / "out/", ROOT / "logs/", framework="mindspore")


def settings(folder: Path, table: str, platform: str = "slurm") -> Settings:
    (folder / "aisbench.toml").write_text(f'platform = "{platform}"\n[slurm]\n{table}')
    return load_settings({}, {}, {}, folder, Registry(PLATFORMS))


def test_the_table_names_the_share_and_what_jobs_ask_for(tmp_path: Path) -> None:
    (tmp_path / "share").mkdir()
    table = 'share = "share"\nshare_on_nodes = "/data"\npartition = "npu"\npoll = "2s"\nminiature = "yes"\n'
    site = slurm_site(settings(tmp_path, table))
    assert (site.share, site.seen_by_nodes) == (str(tmp_path / "share"), "/data")
    assert (site.poll_s, site.miniature, site.defaults) == (2.0, True, {"partition": "npu"})
    assert read_options(site.defaults, {"partition": "gpu", "cpus": 12, "exclusive": False}) == Options(
        partition="gpu", cpus="12", exclusive=False
    )


@pytest.mark.parametrize(
    ("table", "why"),
    [
        ("", "platform slurm needs a shared folder"),
        ('share = "nowhere"', "there is no folder .*nowhere"),
        ('share = "."\npoll = "often"', "slurm.poll 'often' is not a length of time"),
        ('share = "."\nminiature = "perhaps"', "is neither yes nor no"),
        ('share = "."\nresults = "tape"', "slurm.results 'tape' is not known"),
        ('share = "."\nlauncher = "spark"', r"\[slurm\] launcher 'spark' is not known"),
        ('share = "."\npartition = "a b"', "is not a name that Slurm takes"),
        ('share = "."\nsbatch = "--requeue"', "gives --requeue, which the platform gives"),
        ('share = "."\nsrun = "--label \'"', "cannot be split"),
        ('share = "."\nnodelist = "n1; rm"', "is not a list of nodes"),
        ('share = "."\ncpus = "many"', "is not a number of CPUs"),
        ('share = "."\ntime = "soon"', "is not a length of time"),
        ('share = "."\npartion = "npu"', "unknown key 'partion' in .*did you mean 'partition'"),
    ],
)
def test_a_table_that_cannot_work_is_one_line(tmp_path: Path, table: str, why: str) -> None:
    with pytest.raises(UsageFault, match=why) as fault:
        settings(tmp_path, table)
    assert len(fault.value.lines) == 1


def test_another_platform_needs_none_of_it(tmp_path: Path) -> None:
    assert slurm_site(settings(tmp_path, 'share = "/nowhere/here"', "local")).share


def test_a_local_cloud_has_no_slurm() -> None:
    with pytest.raises(UsageFault, match="a local cloud has no Slurm"):
        SlurmKind().check(Settings(platform="slurm", cloud=Path("card.json")))


def test_a_miniature_trains_what_the_local_cloud_trains() -> None:
    for miniature in (True, False):
        tables = {"slurm": SlurmSite(share="/s", miniature=miniature)}
        assert SlurmKind().is_miniature(Settings(platform="slurm", tables=tables)) is miniature


def test_sbatch_is_given_the_whole_request() -> None:
    options = read_options(
        {"partition": "npu", "account": "acc"},
        {"gres": "npu:910b", "cpus": 4, "time": "2h", "exclude": "n[3-4]", "sbatch": "--mail-type=END --nice=10"},
    )
    words = sbatch_arguments(replace(SPEC, max_run_s=86400.0, description="aisbench a/b trial c"), options, FOLDERS)
    assert {"--parsable", "--no-requeue", "--exclusive", "--job-name=bert-1", "--nodes=2"} <= set(words)
    assert {"--comment=aisbench a/b trial c", "--gres=npu:910b:8", "--time=121", "--cpus-per-task=4"} <= set(words)
    assert {"--partition=npu", "--account=acc", "--exclude=n[3-4]", "--chdir=/s/jobs/n"} <= set(words)
    assert words[-2:] == ["--mail-type=END", "--nice=10"]
    assert not any("qos" in word or "mem=" in word for word in words), "what is not given is not sent"
    assert "--exclusive" not in sbatch_arguments(SPEC, Options(exclusive=False), FOLDERS)


@pytest.mark.parametrize("launcher", ["ranks", "torchrun", "horovod", "mpi"])
@pytest.mark.parametrize("container", ["", "pyxis", "apptainer"])
def test_the_script_starts_ranks_by_the_launcher_and_in_the_container(launcher: str, container: str) -> None:
    options = Options(launcher=launcher, container=container, image="x.sqsh" if container else "", gres="npu")
    script = job_script(SPEC, options, FOLDERS)
    rank = script.partition("rank='")[2]
    assert ("torch.distributed.run" in rank) is (launcher == "torchrun")
    assert ("horovodrun -np 16" in rank) is (launcher == "horovod")
    assert ("apptainer exec" in rank) is (container == "apptainer")
    assert ("--container-image=x.sqsh" in script) is (container == "pyxis")
    tasks = {"torchrun": 2, "horovod": 1}.get(launcher, 16)
    assert f"--ntasks={tasks}" in script
    assert f"--mpi={'pmix' if launcher == 'mpi' else 'none'}" in script


def test_addresses_of_cards_are_asked_for_only_where_hccl_needs_them() -> None:
    def conf(spec: JobSpec, **options: Any) -> str:
        return next(line for line in job_script(spec, Options(**options), FOLDERS).splitlines() if "hccn_conf=" in line)

    assert conf(SPEC, gres="npu") == "hccn_conf=/etc/hccn.conf"
    assert conf(SPEC, gres="gpu") == "hccn_conf=''"
    assert conf(replace(SPEC, framework="python"), gres="npu") == "hccn_conf=''"
    assert conf(replace(SPEC, shape=Shape(1, 1)), gres="npu") == "hccn_conf=''"


def test_urls_come_as_the_workload_wants_them() -> None:
    by_parameter = request_body(SPEC, Options(), FOLDERS)["script"]
    assert "--train_url=/s/out/" in by_parameter
    by_environment = request_body(replace(SPEC, urls_by=BY_ENVIRONMENT), Options(), FOLDERS)["script"]
    assert "env train_url=/s/out/" in by_environment
    assert "--train_url" not in by_environment


@pytest.mark.parametrize(
    ("changed", "why"),
    [
        ({"name": "a b"}, "cannot be the name of a job on Slurm"),
        ({"environment": {"SLURM_NTASKS": "1"}}, "are Slurm's"),
        ({"environment": {"A-B": "1"}}, "cannot be an environment variable"),
        ({"parameters": {"train_url": "x"}}, "is set by the platform"),
    ],
)
def test_a_request_that_slurm_would_misread_is_refused(changed: dict[str, Any], why: str) -> None:
    with pytest.raises(UsageFault, match=why):
        request_body(replace(SPEC, **changed), Options(), FOLDERS)


def test_horovod_joins_all_nodes_or_none() -> None:
    alone = replace(SPEC, environment={"SINGLESERVER_MODE": "True"})
    with pytest.raises(UsageFault, match="no node trains alone"):
        request_body(alone, Options(launcher="horovod"), FOLDERS)


# States.

STARTED = b"job=7\nstarted=1000.5\nnodes=n1,n2\nlogs=/s/logs\nstore=obs://share/logs/\n"


def done(rc: int, *codes: int, tasks: int = 2) -> bytes:
    ranks = "".join(f"rank={rank} {code} {1010 + rank}.25 n{rank + 1}\n" for rank, code in enumerate(codes))
    return f"job=7\ntasks={tasks}\nrc={rc}\nended=1012.5\n{ranks}".encode()


def judge(state: str, notes: Notes, *, settled: bool = True, **row: Any) -> Job:
    listed = Row("7", "n", state, submitted=990.0, started=1000.0, ended=1013.0, nodes="n[1-2]") if state else None
    return describe("7/n", "n", replace(listed, **row) if listed else None, notes, settled=settled)


def test_success_is_the_jobs_own_record_of_every_rank() -> None:
    job = judge("COMPLETED", read_notes(STARTED, done(0, 0, 0)))
    assert (job.phase, job.exit_code, job.reason, job.hosts) == (Phase.SUCCEEDED, 0, "", ("n1", "n2"))
    assert (job.queued_s, job.ran_s) == (10.5, 12.0)
    for state in ("", "RUNNING", "COMPLETING", "NODE_FAIL"):
        assert judge(state, read_notes(STARTED, done(0, 0, 0)), settled=False).phase is Phase.SUCCEEDED, state


@pytest.mark.parametrize(
    "notes",
    [
        Notes(),
        read_notes(STARTED, None),
        read_notes(STARTED, done(0, 0)),
        read_notes(STARTED, done(0, 0, 0, tasks=3)),
        read_notes(STARTED, done(0, 0, 0).replace(b"rank=1 0", b"rank=1 ?")),
        read_notes(STARTED, b"job=7\nrc=0\n"),
        read_notes(STARTED, b""),
    ],
)
def test_completed_without_that_record_is_no_success(notes: Notes) -> None:
    job = judge("COMPLETED", notes)
    assert job.phase is Phase.LOST
    assert job.reason


def test_the_first_rank_that_failed_by_itself_is_named() -> None:
    job = judge("FAILED", read_notes(STARTED, done(3, 143, 3)), exit_code=3)
    assert (job.phase, job.exit_code, job.reason) == (Phase.FAILED, 3, "rank 1 on n2 (worker-1) ended with exit code 3")


@pytest.mark.parametrize("state", sorted(STATES))
def test_every_state_has_a_phase_and_every_end_a_reason(state: str) -> None:
    job = judge(state, Notes() if state == "PENDING" else read_notes(STARTED, None), exit_code=1, signal=15)
    assert job.known
    assert job.phase is STATES[state][0]
    assert job.reason or not job.phase.is_final


@pytest.mark.parametrize(
    ("state", "row", "notes", "phase", "reason"),
    [
        ("FAILED", {"exit_code": 98}, read_notes(STARTED, None), Phase.LOST, "a second time"),
        ("FAILED", {"exit_code": 97}, Notes(), Phase.LOST, "shared folder"),
        ("FAILED", {"exit_code": 99}, Notes(), Phase.CANCELLED, "stopped before it started"),
        ("FAILED", {"exit_code": 0, "reason": "JobLaunchFailure"}, Notes(), Phase.LOST, "JobLaunchFailure"),
        ("FAILED", {"exit_code": 4}, read_notes(STARTED, None), Phase.FAILED, "exit code 4"),
        ("CANCELLED", {"nodes": ""}, Notes(), Phase.CANCELLED, "cancelled"),
        ("CANCELLED", {"signal": 15}, read_notes(STARTED, None), Phase.CANCELLED, "cancelled"),
        ("CANCELLED by 1000", {"signal": 15}, read_notes(STARTED, None), Phase.CANCELLED, "cancelled"),
        ("CANCELLED", {}, read_notes(STARTED, None), Phase.LOST, "could not launch"),
        ("CANCELLED", {}, read_notes(STARTED, None, stopped=True), Phase.CANCELLED, "stopped"),
        ("", {}, read_notes(None, None, stopped=True), Phase.CANCELLED, "stopped"),
        ("NODE_FAIL", {}, read_notes(STARTED, None, stopped=True), Phase.LOST, "a node of the job failed"),
        ("NODE_FAIL", {"reason": "NodeDown"}, read_notes(STARTED, done(1, 0)), Phase.LOST, "NodeDown"),
        ("", {}, Notes(), Phase.LOST, "does not know"),
        ("", {}, read_notes(STARTED, None), Phase.LOST, "without an end"),
        ("", {}, read_notes(STARTED, done(5, 0, 5)), Phase.FAILED, "rank 1"),
        ("RUNNING", {}, read_notes(STARTED, done(5, 0, 5)), Phase.FAILED, "rank 1"),
        ("FAILED", {"exit_code": 97}, read_notes(STARTED, done(97, 0, 97)), Phase.LOST, "n2"),
        ("COMPLETED", {}, read_notes(STARTED, done(0, 143, 0)), Phase.LOST, "Slurm told rank 0 on n1 to end"),
        ("FAILED", {"exit_code": 143}, read_notes(STARTED, done(143, 143)), Phase.LOST, "no exit code: 1"),
        ("COMPLETED", {}, read_notes(STARTED, done(96, tasks=2)), Phase.LOST, "2 of 2 ranks left no exit code: 0, 1"),
    ],
)
def test_who_is_to_blame(state: str, row: dict[str, Any], notes: Notes, phase: Phase, reason: str) -> None:
    job = judge(state, notes, **row)
    assert job.phase is phase
    assert reason in job.reason


def test_a_failure_waits_for_slurms_own_word() -> None:
    """Such as NODE_FAIL, which comes a moment after the script's end."""
    assert judge("COMPLETING", read_notes(STARTED, done(5, 0, 5)), settled=False).phase is Phase.RUNNING


def test_a_state_of_a_newer_slurm_counts_as_running() -> None:
    job = judge("TELEPORTING", Notes())
    assert (job.phase, job.known) == (Phase.RUNNING, False)


@pytest.mark.parametrize(
    ("reason", "stuck"),
    [
        ("Priority", False),
        ("Resources", False),
        ("QOSMaxJobsPerUserLimit", False),
        ("AssocGrpCpuLimit", False),
        ("BeginTime", False),
        ("ReqNodeNotAvail, UnavailableNodes:node1", False),
        ("Nodes required for job are DOWN, DRAINED or reserved for jobs in higher priority partitions", False),
        ("PartitionTimeLimit", True),
        ("PartitionNodeLimit", True),
        ("PartitionConfig", True),
        ("DependencyNeverSatisfied", True),
        ("JobHeldUser", True),
        ("JobHeldAdmin", True),
        ("QOSMaxWallDurationPerJobLimit", True),
        ("QOSMaxGRESPerJob", True),
        ("QOSMinGRES", True),
        ("AssocMaxNodePerJobLimit", True),
        ("InvalidQOS", True),
        ("BadConstraints", True),
        ("launch failed requeued held", True),
    ],
)
def test_a_queue_that_can_never_move_is_told_from_one_that_may(reason: str, stuck: bool) -> None:
    job = judge("PENDING", Notes(), reason=reason, started=None, nodes="")
    assert (job.phase, job.reason, bool(job.stuck)) == (Phase.PENDING, reason, stuck)


# What commands print.


def test_rows_of_the_queue_are_read_whatever_strangers_call_their_jobs() -> None:
    text = (
        "12|RUNNING|None|0|1700000000|1700000005|N/A|node[1-2]|bert-1|\n"
        "13|PENDING|ReqNodeNotAvail, UnavailableNodes:node1|0|1700000000|N/A|N/A||a|b|c|\n"
        "14_[2-3]|PENDING|Priority|0|1700000000|N/A|N/A||bert-1|\nhalf a line\n"
        "15|FAILED|NonZeroExitCode|768|1700000000|1700000005|1700000006|node1|bert-1|\n"
    )
    rows = by_name(parse_queue(text))
    assert list(rows) == ["bert-1", "a|b|c"]
    newest = rows["bert-1"][0]
    assert (newest.number, newest.exit_code, newest.ended) == ("15", 3, 1700000006.0)
    assert [row.number for row in rows["bert-1"]] == ["15", "14_[2-3]", "12"]


def test_rows_of_the_records_are_read() -> None:
    text = "7|CANCELLED by 0|0:15|1700000000|1700000001|1700000002|None assigned|bert-1\n7.batch|x|0:0|1|1|1|n|batch\n"
    assert parse_records(text) == [
        Row("7", "bert-1", "CANCELLED by 0", "", 0, 15, 1700000000.0, 1700000001.0, 1700000002.0, "")
    ]


@pytest.mark.parametrize(
    ("command", "text", "error"),
    [
        ("sbatch", "sbatch: error: Batch job submission failed: Socket timed out on send/recv operation", Unreachable),
        ("sbatch", "sbatch: error: Unable to contact slurm controller (connect failure)", Unreachable),
        ("squeue", "slurm_load_jobs error: Unable to contact slurm controller (connect failure)", Unreachable),
        ("sbatch", "allocation failure: Requested node configuration is not available", Rejected),
        ("sbatch", "sbatch: error: Batch job submission failed: Invalid qos specification", Rejected),
        ("sbatch", "sbatch: error: … QOS policy (job submit limit, user's size and/or time limits)", OutOfQuota),
        ("squeue", "slurm_load_jobs error: Rate limit exceeded", Throttled),
        ("scancel", "scancel: error: something new", PlatformError),
        ("sbatch", "", Rejected),
    ],
)
def test_a_failed_command_is_an_error_of_the_tree(command: str, text: str, error: type[AisbenchError]) -> None:
    raised = error_of(command, text)
    assert type(raised) is error
    assert str(raised).startswith(command)


def test_no_variable_of_the_user_changes_a_command() -> None:
    own = {"PATH": "/bin", "SLURM_NTASKS": "8", "SBATCH_PARTITION": "x", "SQUEUE_FORMAT": "x", "SLURM_CONF": "/c"}
    assert environment(own) == {"PATH": "/bin", "SLURM_CONF": "/c", "LC_ALL": "C.UTF-8", "SLURM_TIME_FORMAT": "%s"}


def test_a_thousand_jobs_are_one_request(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """And callers that ask in quick succession get the same answer."""
    asked: list[tuple[str, ...]] = []
    line = "{0}|PENDING|Priority|0|1700000000|N/A|N/A||job-{0}|"

    def run(_: Commands, *command: str, text: str = "", patience_s: float = 1.0) -> str:
        asked.append(command)
        return "\n".join(line.format(number) for number in range(1, 1001))

    monkeypatch.setattr(Commands, "run", run)
    platform = Slurm(Settings(platform="slurm", tables={"slurm": SlurmSite(share=str(tmp_path), poll_s=60.0)}))
    ids = [f"{number}/job-{number}" for number in range(1, 1001)]
    for _ in range(3):
        jobs = platform.inspect(ids)
        assert {job.phase for job in jobs.values()} == {Phase.PENDING}
    assert [command[0] for command in asked] == ["squeue"]
    platform.close()
