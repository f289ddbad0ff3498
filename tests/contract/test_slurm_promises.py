"""No job of Slurm is lost, doubled or taken for another, whatever becomes of its daemons; and each state that a real
Slurm can be brought into means what the table says. On a cluster of its own: other tests would suffer."""

from __future__ import annotations

import contextlib
import signal
import time
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import pytest
from slurm import ABSENT, Cluster, missing_programs, shared
from slurm_jobs import ended, look, make_spec, platform_on, submit
from waiting import wait_until

from pytest_aisbench.errors import Unreachable
from pytest_aisbench.model.case import Shape
from pytest_aisbench.model.job import Phase
from pytest_aisbench.platforms.slurm.platform import Slurm

pytestmark = pytest.mark.slow(seconds=12)
SLEEP = "import time; time.sleep(600)"


@pytest.fixture(scope="module")
def cluster(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Cluster]:
    if missing_programs():
        pytest.skip(ABSENT)
    with shared(tmp_path_factory.mktemp("slurm")) as cluster, pytest.MonkeyPatch.context() as patch:
        patch.setenv("SLURM_CONF", cluster.environment["SLURM_CONF"])
        yield cluster


@pytest.fixture
def platform(cluster: Cluster) -> Iterator[Slurm]:
    with contextlib.closing(platform_on(cluster)) as platform:
        yield platform
    cluster.run("scancel", "--me")
    wait_until(lambda: cluster.run("squeue", "-h") == "")
    for node in cluster.nodes:  # a controller that meets a job twice drains its node
        cluster.run("scontrol", "update", f"nodename={node}", "state=resume", check=False)
    assert cluster.wait_for_nodes(2)


def name_of(job_id: str) -> str:
    return job_id.partition("/")[2]


def number_of(job_id: str) -> str:
    return job_id.partition("/")[0]


def has_started(platform: Slurm, job_id: str) -> bool:
    return look(platform, job_id).phase is Phase.RUNNING and bool(platform._notes(name_of(job_id)).number)


def crash_controller(cluster: Cluster, *options: str) -> None:
    """Kill it as a power cut does, and start it again."""
    pid = cluster.signal("slurmctld", signal.SIGKILL)
    wait_until(lambda: not Path(f"/proc/{pid}").exists())
    cluster.start_controller(*options)
    wait_until(lambda: cluster.run("scontrol", "ping", check=False), lambda said: "is UP" in said)


def test_a_lost_answer_is_one_job(cluster: Cluster, platform: Slurm) -> None:
    """The controller stands still while sbatch asks, and makes the job when it goes on."""
    request = platform.render(make_spec(platform))
    cluster.signal("slurmctld", signal.SIGSTOP)
    try:
        with pytest.raises(Unreachable):
            platform.submit(request)
        with pytest.raises(Unreachable):
            platform.find(request)
    finally:
        cluster.signal("slurmctld", signal.SIGCONT)
    found = platform.find(request)
    assert found is not None
    assert ended(platform, found).phase is Phase.SUCCEEDED
    assert cluster.run("squeue", "-h", "-t", "all", "--name", name_of(found), "-o", "%i") == number_of(found)


def test_a_crash_of_the_controller(cluster: Cluster, platform: Slurm) -> None:
    """It forgets its last seconds: a cancellation and a start."""
    cancelled = make_spec(platform, SLEEP, options={"sbatch": "--begin=now+12"})
    cancelled_id = submit(platform, cancelled)
    time.sleep(6)
    started = make_spec(platform, f"import sys; open(sys.argv[1][12:] + 'began', 'a').write('x'); {SLEEP}")
    started_id = submit(platform, started)
    wait_until(lambda: platform.store.read(started.outputs / "began"))
    platform.cancel(cancelled_id)
    crash_controller(cluster)
    with contextlib.closing(platform_on(cluster)) as another:  # which has seen nothing of it
        wait_until(lambda: look(another, started_id).phase is Phase.LOST)
        assert another.store.read(started.outputs / "began") == b"x", "it ran once"
        wait_until(lambda: look(another, cancelled_id).phase is Phase.CANCELLED)
        wait_until(lambda: "PENDING" not in cluster.run("squeue", "-h", "--name", name_of(cancelled_id), "-o", "%T"))
        assert another.store.read(cancelled.logs / "worker-0.log") is None, "it never ran"


def test_a_number_is_believed_only_with_its_name(cluster: Cluster, platform: Slurm) -> None:
    """The controller dies before it wrote a job down, and gives its number to the next."""
    forgotten = submit(platform, make_spec(platform, SLEEP, options={"sbatch": "--begin=now+1hour"}))
    crash_controller(cluster)
    successor = submit(platform, make_spec(platform, SLEEP))
    assert number_of(forgotten) == number_of(successor), "this Slurm forgets less than the one that was measured"
    assert look(platform, forgotten).phase is Phase.LOST
    platform.cancel(forgotten)
    wait_until(lambda: has_started(platform, successor))


def test_a_job_that_left_the_queue_is_known(cluster: Cluster, platform: Slurm) -> None:
    """By Slurm's records of ended jobs where it keeps them, and else by its own notes."""
    requests = [platform.render(make_spec(platform, code)) for code in ("pass", "raise SystemExit(4)")]
    ids = [platform.submit(request) for request in requests]
    for job_id in ids:
        ended(platform, job_id)  # by its own notes: Slurm may write its record a moment later
    wait_until(lambda: cluster.run("squeue", "-h", "-o", "%i") == "")
    crash_controller(cluster, "-c")  # which empties the queue
    for records in (True, False):
        with contextlib.closing(platform_on(cluster)) as another:
            config = another._commands.config()
            assert config.completions
            another._commands._config = replace(config, completions=records)
            assert [another.find(request) for request in requests] == ids
            jobs = another.inspect(ids)
        assert [jobs[job_id].phase for job_id in ids] == [Phase.SUCCEEDED, Phase.FAILED]
        assert [jobs[job_id].exit_code for job_id in ids] == [0, 4]
        assert jobs[ids[0]].platform_phase == ("COMPLETED" if records else "gone")


def test_states_of_a_job_that_waits(cluster: Cluster, platform: Slurm) -> None:
    """Why it waits is told; that it waits in vain is told apart."""
    later = submit(platform, make_spec(platform, SLEEP, options={"sbatch": "--begin=now+1hour"}))
    held = submit(platform, make_spec(platform, SLEEP, options={"sbatch": "--hold"}))
    long = submit(platform, make_spec(platform, max_run_s=3600.0, options={"partition": "short"}))
    wide = submit(platform, make_spec(platform, shape=Shape(2, 1), options={"partition": "short"}))
    down = submit(platform, make_spec(platform, options={"partition": "closed"}))
    wanted = {later: ("BeginTime", False), held: ("JobHeldUser", True), down: ("PartitionDown", False)}
    wait_until(
        lambda: {job_id: look(platform, job_id).reason for job_id in wanted},
        lambda seen: seen == {job_id: reason for job_id, (reason, _) in wanted.items()},
    )
    jobs = platform.inspect([*wanted, long, wide])
    assert {job.phase for job in jobs.values()} == {Phase.PENDING}
    assert {job_id: bool(jobs[job_id].stuck) for job_id in wanted} == {job_id: s for job_id, (_, s) in wanted.items()}
    wait_until(lambda: all(look(platform, job_id).stuck for job_id in (long, wide)))


def test_states_of_a_job_that_loses_its_node(cluster: Cluster, platform: Slurm) -> None:
    """Preempted, its node taken away, cancelled by a person while it waits and while it runs, too late to begin."""
    on_one = {"nodelist": "node1", "exclusive": "yes"}
    preempted = submit(platform, make_spec(platform, SLEEP, options=on_one))
    waiting = submit(platform, make_spec(platform, SLEEP, options={"sbatch": "--begin=now+1hour"}))
    running = submit(platform, make_spec(platform, SLEEP, options={"nodelist": "node2"}))
    orphan = submit(platform, make_spec(platform, SLEEP, options={"nodelist": "node2"}))
    wait_until(lambda: all(has_started(platform, job_id) for job_id in (preempted, running, orphan)))
    for job_id in (waiting, running):
        cluster.run("scancel", number_of(job_id))
    assert {ended(platform, job_id).phase for job_id in (waiting, running)} == {Phase.CANCELLED}
    cluster.run("scontrol", "update", "nodename=node2", "state=down", "reason=test")
    job = ended(platform, orphan)
    assert (job.phase, job.platform_phase) == (Phase.LOST, "NODE_FAIL")
    cluster.run("scontrol", "update", "nodename=node2", "state=resume", check=False)  # it may be back by itself
    urgent = submit(platform, make_spec(platform, options={**on_one, "partition": "urgent"}))
    job = ended(platform, preempted)
    assert (job.phase, job.platform_phase) == (Phase.LOST, "PREEMPTED")
    assert ended(platform, urgent).phase is Phase.SUCCEEDED


def test_a_training_that_slurm_tells_to_end_did_not_succeed(cluster: Cluster, platform: Slurm) -> None:
    """It ends with 0 within its time of grace, as if it had trained to its end."""
    code = f"import signal, sys; signal.signal(15, lambda *_: sys.exit(0)); print('up', flush=True); {SLEEP}"
    job_id = submit(platform, make_spec(platform, code))
    wait_until(lambda: platform.logs(job_id).text)
    cluster.run("scancel", "--signal=TERM", number_of(job_id))  # as Slurm does where a partition has a GraceTime
    job = ended(platform, job_id)
    assert job.phase is Phase.LOST
    assert job.reason == f"Slurm told rank 0 on {job.hosts[0]} to end"


def test_a_node_whose_daemon_dies_is_lost(cluster: Cluster, platform: Slurm) -> None:
    job_id = submit(platform, make_spec(platform, SLEEP, Shape(2, 1)))
    wait_until(lambda: has_started(platform, job_id))
    cluster.signal("slurmd-node2", signal.SIGKILL)
    try:
        cluster.run("scontrol", "update", "nodename=node2", "state=down", "reason=dead")
        job = ended(platform, job_id)
    finally:
        cluster.start_node("node2")
        cluster.run("scontrol", "update", "nodename=node2", "state=resume", check=False)
    assert (job.phase, job.platform_phase) == (Phase.LOST, "NODE_FAIL")
