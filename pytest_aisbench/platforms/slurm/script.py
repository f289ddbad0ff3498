"""Renders the options of sbatch and the bash script of a job. Pure.

`job.sh` and `rank.sh` beside this file are the script; this module writes the variables and functions that they use.
The script keeps its own books in the job's folder, because Slurm's are not enough: a restarted controller runs a job
that it forgot a second time, and COMPLETED is also what Slurm says of a job whose ranks never started. So the script
refuses a second start (`once`), each rank leaves its exit code (`exits/`), and `done` is written last, by one rename.
"""

from __future__ import annotations

import functools
import math
import shlex
import signal
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from pytest_aisbench.config.options import PYTHON
from pytest_aisbench.engine.submit import SINGLE_SERVER_VARIABLE
from pytest_aisbench.errors import UsageFault
from pytest_aisbench.model.job import (
    BY_ENVIRONMENT,
    JobSpec,
    StoreUrl,
    check_job_name,
    check_parameter_names,
    check_variable_name,
)
from pytest_aisbench.platforms.slurm.settings import CONTAINERS, Options
from pytest_aisbench.traininglog.failure import DIAGNOSIS

# Exit codes of the script itself; states.py says what they mean.
NO_TABLE, NO_RANKS, NO_FOLDER, STARTED_TWICE, STOPPED = 95, 96, 97, 98, 99
SIGNALLED = 128 + signal.SIGTERM  # of a rank that Slurm told to end
STARTED, DONE, STOP = "started", "done", "stop"  # files in the job's folder
_LAUNCH_NODES = ("torchrun", "horovod")  # launchers that start the ranks of a node, or of all nodes, themselves
_LEASE_MARGIN_S = 60.0  # the run's own limit ends a job first, and says so in better words


@dataclass(frozen=True)
class Folders:
    """Folders as the nodes see them: paths, or urls of OBS."""

    work: str  # the job's own, in the shared folder
    code: str
    outputs: str
    logs: str
    data: str
    share: str


def request_body(spec: JobSpec, options: Options, folders: Folders) -> dict[str, Any]:
    check_spec(spec, options)
    return {
        "name": spec.name,
        "comment": spec.description,
        "arguments": sbatch_arguments(spec, options, folders),
        "script": job_script(spec, options, folders),
    }


def check_spec(spec: JobSpec, options: Options) -> None:
    check_job_name(spec.name, "Slurm")
    check_parameter_names(spec.parameters, {"train_url", "data_url"})
    for name in spec.environment:
        check_variable_name(name)
        if name.startswith(("SLURM_", "SBATCH_", "SRUN_")):
            raise UsageFault(f"environment {name}: SLURM_, SBATCH_ and SRUN_ are Slurm's", advice="rename it")
    if options.launcher == "horovod" and _is_single_server(spec):
        advice = "leave --aisbench-single-server out, or write launcher = 'ranks' in workload.toml"
        raise UsageFault("[slurm] launcher horovod joins all cards: no node trains alone", advice=advice)


def sbatch_arguments(spec: JobSpec, options: Options, folders: Folders) -> list[str]:
    seconds = min(filter(None, (spec.max_run_s, options.longest_s)), default=0.0)
    given = {
        "job-name": spec.name,
        "comment": spec.description,
        "nodes": spec.shape.nodes,
        "ntasks-per-node": spec.shape.devices,
        "gres": f"{options.gres}:{spec.shape.devices}" if options.gres else "",
        "time": math.ceil((seconds + _LEASE_MARGIN_S) / 60) if seconds else "",
        "partition": options.partition,
        "account": options.account,
        "qos": options.qos,
        "reservation": options.reservation,
        "constraint": options.constraint,
        "cpus-per-task": options.cpus,
        "mem": options.memory,
        "nodelist": options.nodelist,
        "exclude": options.exclude,
        "chdir": folders.work,
        "output": f"{folders.work}/slurm.log",
        "open-mode": "append",
    }
    switches = ["--parsable", "--no-requeue", *(["--exclusive"] if options.exclusive else [])]
    return [*switches, *(f"--{name}={value}" for name, value in given.items() if value), *shlex.split(options.sbatch)]


def job_script(spec: JobSpec, options: Options, folders: Folders) -> str:
    """`#!/bin/bash -l` reads the login files, where sites define `module`."""
    codes = {
        "no_table": NO_TABLE,
        "no_ranks": NO_RANKS,
        "no_folder": NO_FOLDER,
        "started_twice": STARTED_TWICE,
        "stopped": STOPPED,
        "signalled": SIGNALLED,
    }
    variables = {
        **codes,
        "diagnosis": DIAGNOSIS,
        "work": folders.work,
        "logs": folders.logs,
        "store": spec.logs,
        "outputs": folders.outputs,
        "nodes": spec.shape.nodes,
        "devices": spec.shape.devices,
        "tasks": _tasks(spec, options),
        "hccn_conf": options.hccn_conf if _needs_addresses(spec, options) else "",
        "rank": _rank_script(spec, options, folders),
    }
    given = {
        "RANK_SIZE": spec.shape.world,
        "DEVICE_NUM": spec.shape.devices,
        "MA_NUM_HOSTS": spec.shape.nodes,
        "MA_NUM_GPUS": spec.shape.devices,
        "PYTHONUNBUFFERED": 1,
        **spec.environment,
    }
    lines = [
        "#!/bin/bash -l",
        *_assignments(variables),
        f"srun=({' '.join(map(shlex.quote, _srun(spec, options, folders)))})",
        *("prologue() {", *(options.prologue.strip().splitlines() or [":"]), "}"),
        *("environment() {", *(f"export {line}" for line in _assignments(given)), "}"),
        _shipped("job.sh"),
    ]
    return "\n".join(lines)


def _rank_script(spec: JobSpec, options: Options, folders: Folders) -> str:
    variables = {
        "no_folder": NO_FOLDER,
        "signalled": SIGNALLED,
        "diagnosis": DIAGNOSIS,
        "code": folders.code.rstrip("/"),
        "logs": folders.logs,
        "run": f"{folders.work}/run" if options.workdir == "shared" else "",
        "python": options.python,
        "alone": "yes" if _is_single_server(spec) else "",
        "one_per_card": "" if options.launcher in _LAUNCH_NODES else "yes",
    }
    train = f"train() {{ exec {_command(spec, options, folders)}; }}"
    return "\n".join([*_assignments(variables), train, _shipped("rank.sh")])


@functools.cache
def _shipped(name: str) -> str:
    return Path(__file__).with_name(name).read_text(encoding="utf-8")


def _assignments(values: Mapping[str, object]) -> list[str]:
    return [f"{name}={shlex.quote(str(value))}" for name, value in values.items()]


def _is_single_server(spec: JobSpec) -> bool:
    return spec.environment.get(SINGLE_SERVER_VARIABLE) == "True"


def _needs_addresses(spec: JobSpec, options: Options) -> bool:
    """True if HCCL joins the ranks, which finds them by the addresses of their cards."""
    return options.is_npu and spec.framework != PYTHON and spec.shape.world > 1


def _tasks_per_node(spec: JobSpec, options: Options) -> int:
    """One for each card, unless a launcher starts the ranks."""
    return 1 if options.launcher in _LAUNCH_NODES else spec.shape.devices


def _tasks(spec: JobSpec, options: Options) -> int:
    nodes = 1 if options.launcher == "horovod" else spec.shape.nodes
    return nodes * _tasks_per_node(spec, options)


def _command(spec: JobSpec, options: Options, folders: Folders) -> str:
    """The line that trains, by the launcher and in the container that the options name."""
    urls = {"train_url": folders.outputs, **({"data_url": folders.data} if folders.data else {})}
    in_environment = urls if spec.urls_by == BY_ENVIRONMENT else {}
    arguments: Mapping[str, str] = spec.parameters if in_environment else {**spec.parameters, **urls}
    words = " ".join([shlex.quote(spec.entry), *(shlex.quote(f"--{key}={value}") for key, value in arguments.items())])
    line = f"{_launcher(spec, options)} {words}"
    if options.image and options.container == "apptainer":
        mounts = ",".join(filter(None, (folders.share, options.mounts)))
        cards = " --nv" if options.gres.startswith("gpu") else ""
        image = shlex.quote(options.image)
        line = f'apptainer exec{cards} -B {shlex.quote(mounts)} -B "$run" --pwd "$run" {image} {line}'
    return " ".join(["env", *_assignments(in_environment), line]) if in_environment else line


def _launcher(spec: JobSpec, options: Options) -> str:
    if options.launcher == "torchrun":
        nodes, rank = ("1", "0") if _is_single_server(spec) else (str(spec.shape.nodes), '"$SLURM_NODEID"')
        meet = '--master-addr="$MASTER_ADDR" --master-port="$MASTER_PORT"'
        cards = spec.shape.devices
        return f'"$python" -m torch.distributed.run --nnodes={nodes} --node-rank={rank} --nproc-per-node={cards} {meet}'
    if options.launcher == "horovod":
        cards = spec.shape.devices
        return f'horovodrun -np {spec.shape.world} -H "${{VC_WORKER_HOSTS//,/:{cards},}}:{cards}" "$python"'
    return '"$python"'


def _srun(spec: JobSpec, options: Options, folders: Folders) -> list[str]:
    """`--distribution=block` numbers the ranks node by node; without `--export=ALL` the tasks have no PATH."""
    per_node = _tasks_per_node(spec, options)
    cpus = int(options.cpus) * (spec.shape.devices // per_node) if options.cpus else 0
    words = [
        *("--export=ALL", "--kill-on-bad-exit=1", "--distribution=block"),
        f"--nodes={_tasks(spec, options) // per_node}",
        f"--ntasks={_tasks(spec, options)}",
        f"--ntasks-per-node={per_node}",
        f"--mpi={options.mpi if options.launcher == 'mpi' else 'none'}",
        f"--cpus-per-task={cpus}" if cpus else "--cpu-bind=none",
    ]
    if options.image and options.container in {"", CONTAINERS[0]}:
        mounts = ",".join(filter(None, (f"{folders.share}:{folders.share}", options.mounts)))
        words += [f"--container-image={options.image}", f"--container-mounts={mounts}"]
    return [*words, *shlex.split(options.srun)]


def work_url(root: StoreUrl, name: str) -> StoreUrl:
    """The job's own folder in the shared folder."""
    return root / f"jobs/{name}/"
