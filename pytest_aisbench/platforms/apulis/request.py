"""Renders the request that submits a job to Apulis, and the bash script that its pods run. Pure.

The script is one line, since the platform hands a command on as one variable.
"""

from __future__ import annotations

import re
import shlex
import uuid
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any
from urllib.parse import quote, unquote

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
from pytest_aisbench.platforms.apulis import settings
from pytest_aisbench.platforms.apulis.settings import ApulisAccess, Options
from pytest_aisbench.traininglog.failure import DIAGNOSIS, SUSPICION

"""In the environment of a job whose nodes train each for itself."""
DONE = "AISBENCH_DONE"
"""The last line of a node's log: `AISBENCH_DONE node=1 rc=0`."""
IDLE = "AISBENCH_IDLE"
"""The line of a pod without work: if one pod logs nothing, the platform keeps no log of any."""
_WAIT = f"echo {IDLE}; exec sleep infinity"
_TABLE_S = 600  # until the platform has written the rank table
_GRACE_S = 15
_ENDED = f"for wait in $(seq {5 * _GRACE_S}); do kill -0 $pids 2>/dev/null || break; sleep 0.2; done"
# Not `wait -n`, which may miss a process that ended earlier.
_WATCHED = (
    'why=; left=$pids; while [ "$left" ] && [ "$rc" = 0 ]; do sleep 0.2; still=; for pid in $left; do '
    'if kill -0 "$pid" 2>/dev/null; then still="$still $pid"; else wait "$pid" || rc=$?; fi; done; left=$still; '
    "numbered && apart || rc=1; done"
)
# The group of a workload's own command has another leader than the command: the platform's guide has scripts kill the
# group of their own number when they exit, which would end a script that leads one with 143 after it succeeded.
_LEADER = 'trap : TERM INT; bash -c "$0"; exit $?'
_SHARED_FOLDERS = ("/data", "/work", "/home", "/job")  # the platform mounts the same ones in every pod
_OWN_FOLDERS = "give each node a folder of its own there, such as node-\\$DLWS_ROLE_IDX"
_GOES_TO = re.compile(r"\bcd\s+[\"']?(/[\w./+@-]+)(?![\w./+@$-])")  # a path without variables is the same on all nodes
_LOOKS, _RARE = 600, 10  # checks of the ranks' numbers before only every tenth is made
_FETCH = "import sys, moxing; moxing.file.copy_parallel(sys.argv[1], sys.argv[2])"


@dataclass(frozen=True)
class Folders:
    """Folders as the pods see them: paths, or urls of OBS."""

    code: str
    outputs: str
    data: str
    scratch: str  # a folder that all pods share
    mount: str  # the shared folder of aisbench.toml; empty without one


def render_commands(spec: JobSpec, options: Options, folders: Folders) -> dict[str, str]:
    """`cmd` for every job; also `masterCmd` and `workerCmd` for one with several nodes."""
    launches = options.launcher == "horovod"
    train = _line(spec, options, _script(spec, options, folders))
    if spec.shape.nodes == 1:
        return {"cmd": train}
    wait = f"bash -c {shlex.quote(_WAIT)}"
    roles = {"masterCmd": train, "workerCmd": wait} if launches else {"masterCmd": wait, "workerCmd": train}
    return {"cmd": train, **roles}


def _line(spec: JobSpec, options: Options, script: str) -> str:
    limit = f"timeout -k {2 * _GRACE_S} {max(1, round(spec.max_run_s))} " if spec.max_run_s else ""
    run = f"{limit}bash -c {shlex.quote(script)}"
    if not options.is_npu:
        return f"exec {run}"
    # The cards belong to root. sudo drops these paths, even with -E.
    kept = '"PATH=$PATH" "LD_LIBRARY_PATH=${LD_LIBRARY_PATH-}" "PYTHONPATH=${PYTHONPATH-}"'
    root = 'as=; [ "$(id -u)" = 0 ] || ! sudo -n true 2>/dev/null || as="sudo -n -E"'
    return f"{root}; exec $as env {kept} {run}"


def _script(spec: JobSpec, options: Options, folders: Folders) -> str:
    launches = options.launcher == "horovod" and spec.shape.nodes > 1
    idle = '[ "$DLWS_ROLE_NAME" != worker ]' if launches else '[ "$DLWS_ROLE_NAME" != ps ]'
    parts = [
        f"{idle} || {{ {_WAIT}; }}",  # a platform without masterCmd gives every pod the same command
        "node=${DLWS_ROLE_IDX:-0}",
        f'end() {{ rm -rf "$mine"; echo "{DONE} node=$node rc=$1"; exit "$1"; }}',
        f'fail() {{ echo "{DIAGNOSIS}$1"; end 1; }}',
        *_exports(spec),
        "python=$(command -v python || command -v python3)",
        "mine=${TMPDIR:-/tmp}/aisbench-$DLWS_JOB_ID/node-$node",
        # Before anything is made: a job may be stopped while it copies its code or waits for its rank table.
        "pids=",
        'signal() { for pid in $pids; do kill "-$1" -- "$pid" "-$pid"; done 2>/dev/null; }',
        'stop() { exec 2>/dev/null; signal TERM; wait; rm -rf "$mine"; exit 143; }',
        "trap stop TERM INT",
        'rm -rf "$mine"; mkdir -p "$mine"',
        *_fetch_code(options, folders),
        *([] if "://" in folders.outputs else [f"mkdir -p {shlex.quote(folders.outputs)}"]),
        *(_wait_for_rank_table(spec) if options.is_npu and spec.shape.world > 1 else []),
        *_check_rank_numbers(spec, options),
        *_check_rank_folders(spec, options, folders),
        *_start_ranks(spec, options, folders, launches=launches),
        "rc=0",
        _WATCHED,
        # One rank that fails leaves the others waiting for it.
        f'if [ "$rc" != 0 ]; then signal TERM; {_ENDED}; signal KILL; fi',
        *_suspect_folder(spec, options, folders),
        "wait",
        *(["signal TERM"] if options.command else []),  # what the command left running in its group
        '[ -z "$why" ] || fail "$why"',
        'end "$rc"',
    ]
    return "; ".join(parts)


def _exports(spec: JobSpec) -> list[str]:
    """Set in the script, not in the request's `env`, which the platform writes to a script without quotes."""
    given = {
        "RANK_SIZE": str(spec.shape.world),
        "DEVICE_NUM": str(spec.shape.devices),
        "PYTHONUNBUFFERED": "1",
        **spec.environment,
    }
    meeting = (
        'export "MASTER_ADDR=${MASTER_ADDR:-${DLWS_SD_worker0_IP:-127.0.0.1}}" "MASTER_PORT=${MASTER_PORT:-29500}"'
    )
    return [meeting, *(f"export {name}={shlex.quote(value)}" for name, value in given.items())]


def _fetch_code(options: Options, folders: Folders) -> list[str]:
    if options.code_dir:
        return [f"code={shlex.quote(options.code_dir)}", *_require_code("code_dir")]
    if "://" not in folders.code:
        return [f"code={shlex.quote(folders.code.rstrip('/'))}", *_require_code("share_in_pods")]
    fetch = f'"$python" -c {shlex.quote(_FETCH)} {shlex.quote(folders.code)} "$mine/code"'
    advice = "the code did not come from OBS: the image needs moxing and keys, or name code_dir"
    return ["code=$mine/code", f'{fetch} || fail "{advice}"']


def _require_code(key: str) -> list[str]:
    return [f'[ -d "$code" ] || fail "there is no folder $code on this pod: check {key}"']


def _wait_for_rank_table(spec: JobSpec) -> list[str]:
    """Wait for the platform's rank table, in the format of the framework. It needs the addresses of all workers."""
    name = "hccl_tf.json" if spec.framework == "tensorflow" else "hccl_ms.json"
    homes = f'"$HOME/.npu/$DLWS_JOB_ID/{name}" "/home/$DLWS_USER_NAME/.npu/$DLWS_JOB_ID/{name}"'
    look = f'for file in {homes}; do if grep -qs completed "$file"; then table=$file; break 2; fi; done'
    return [
        "table=",
        f"for second in $(seq {_TABLE_S}); do {look}; sleep 1; done",
        f'[ "$table" ] || fail "the platform wrote no {name} within {_TABLE_S} s"',
        'export "RANK_TABLE_FILE=$table" "MINDSPORE_HCCL_CONFIG_PATH=$table"',
    ]


def _start_ranks(spec: JobSpec, options: Options, folders: Folders, *, launches: bool) -> list[str]:
    urls = {"train_url": folders.outputs, **({"data_url": folders.data} if folders.data else {})}
    in_environment = urls if spec.urls_by == BY_ENVIRONMENT else {}
    arguments = spec.parameters if in_environment else {**spec.parameters, **urls}
    words = [shlex.quote(spec.entry), *(shlex.quote(f"--{name}={value}") for name, value in arguments.items())]
    exports = [shlex.quote(f"{name}={value}") for name, value in in_environment.items()]
    entry = " ".join([*(["env", *exports] if exports else []), '"$python"', *words])
    if options.launcher == "horovod" and not options.command:
        return _start_horovod(spec, options, folders, entry, launches=launches)
    folder = shlex.quote(f"{folders.scratch}/run") if options.workdir == "shared" else '"$mine/run"'
    if options.command:
        # The workload's own command starts the ranks: it gets the first rank's number, and its processes end with it.
        variables = f"TRAIN_URL={shlex.quote(folders.outputs)} DATA_URL={shlex.quote(folders.data)}"
        ranks = f"RANK_START=$((node * {spec.shape.devices})) SERVER_ID=$node"
        command = f"{shlex.quote(_LEADER)} {shlex.quote(options.command)}"
        run = f'( cd "$run" && {variables} {ranks} exec setsid bash -c {command} ) & pids=$!'
        executable = 'chmod -R u+x "$run"'  # a store keeps no permissions
        hosts = _one_node_hosts(spec) if spec.shape.nodes == 1 and "horovodrun" in options.command else []
        return [f"run={folder}/node-$node", *_copy_code(), executable, *hosts, run]
    one = f'( cd "$run" && DEVICE_ID=$i RANK_ID=$rank exec {entry} ) & pids="$pids $!"'
    rank = f"rank=$((node * {spec.shape.devices} + i)); run={folder}/rank-$rank"
    return [f"for i in $(seq 0 {spec.shape.devices - 1}); do {rank}; {'; '.join(_copy_code())}; {one}; done"]


def _one_node_hosts(spec: JobSpec) -> list[str]:
    """The port and the hosts that a command of the platform's guide gives to horovodrun, where the platform gives a job
    of one node none: an empty port would make `-p` take the next option for its value."""
    return [
        'export "DLWS_SD_worker0_SSH_PORT=${DLWS_SD_worker0_SSH_PORT:-${DLWS_SD_SELF_SSH_PORT:-22}}"',
        "hosts=/home/$DLWS_USER_NAME/ib_config",
        f'[ -s "$hosts" ] || echo localhost slots={spec.shape.devices} > "$hosts"',
    ]


def _check_rank_numbers(spec: JobSpec, options: Options) -> list[str]:
    """The function `numbered`, which fails, and says why, if a rank of this node has a number of another node.

    A workload's own command numbers its ranks itself. If it begins with 0 on every node, as in the platform's guide,
    all ranks wait for ranks that do not exist. `numbered` reads RANK_ID in the environments of this pod's processes.
    """
    if not options.command or spec.shape.nodes == 1 or spec.environment.get(SINGLE_SERVER_VARIABLE) == "True":
        return ["numbered() { :; }"]
    devices, world = spec.shape.devices, spec.shape.world
    ours = _processes(f"RANK_SIZE={world}")
    rank_ids = f"({ours} | xargs -r grep -hszx 'RANK_ID=[0-9][0-9]*' | tr '\\0' '\\n') 2>/dev/null"
    text = "RANK_ID is $rank on node $node, whose ranks are $first to $last: give card i RANK_ID=\\$((RANK_START + i))"
    wrong = f'if [ "$rank" -lt "$first" ] || [ "$rank" -gt "$last" ]; then why="{text}"; return 1; fi'
    look = f"for rank in $({rank_ids}); do rank=${{rank#RANK_ID=}}; {wrong}; done"
    return [
        f"looks=0; first=$((node * {devices})); last=$((first + {devices - 1}))",
        f"numbered() {{ looks=$((looks + 1)); {_seldom('looks')}; {look}; }}",
    ]


def _check_rank_folders(spec: JobSpec, options: Options, folders: Folders) -> list[str]:
    """The function `apart`, which fails, and says why, if ranks of two nodes run in one folder that the nodes share.

    A workload's own command may go to a folder of its own choice. If both nodes train in the same one, which the
    platform's guide warns of, they overwrite each other's files. Every node notes the folders of its ranks where all
    nodes see the notes.
    """
    if not options.command or spec.shape.nodes == 1:
        return ["apart() { :; }"]
    ranks = f"{_processes()} | xargs -r grep -lszx 'RANK_ID=[0-9][0-9]*'"
    # A program that the script runs between `export RANK_ID` and `cd` is no rank.
    python = "sed 's/environ$/comm/' | xargs -r grep -ls '^python' | sed 's/comm$/cwd/'"
    where = f"({ranks} | {python} | xargs -r readlink | sed 's/ (deleted)$//' | sort -u) 2>/dev/null"
    shared = " | ".join(f"{shlex.quote(each)}/*" for each in _shared_folders(folders))
    note = 'key=$(printf %s "$at" | cksum | tr " " -); mkdir -p "$notes/$key" && : > "$notes/$key/$node"'
    others = 'for other in "$notes/$key"/*; do other=${other##*/}'
    text = f"node $other and node $node run ranks in the same shared folder $at: {_OWN_FOLDERS}"
    clash = f'if [ "$other" != "$node" ]; then why="{text}"; return 1; fi'
    look = f"while read -r at; do case $at in {shared}) {note}; {others}; {clash}; done;; esac; done < <({where})"
    return [
        f"turns=0; notes={shlex.quote(folders.scratch)}/folders",
        f"apart() {{ turns=$((turns + 1)); {_seldom('turns')}; {look}; }}",
    ]


def _suspect_folder(spec: JobSpec, options: Options, folders: Folders) -> list[str]:
    """Where the command failed, say that it began in one shared folder on all nodes: the ranks may have ended before
    `apart` saw them. That is a suspicion, since the command may keep the nodes apart in that folder."""
    begun = next((match[1] for match in _GOES_TO.finditer(options.command)), "")
    if spec.shape.nodes == 1 or not begun.startswith(tuple(f"{each}/" for each in _shared_folders(folders))):
        return []
    text = f"all nodes ran the command in the same shared folder {begun}: {_OWN_FOLDERS}"
    return [f'[ "$rc" = 0 ] || [ "$why" ] || echo "{SUSPICION}{text}"']


def _shared_folders(folders: Folders) -> list[str]:
    return [each for each in dict.fromkeys((*_SHARED_FOLDERS, folders.mount)) if each]


def _seldom(count: str) -> str:
    """Leaves a function that was called often, most times."""
    return f'[ "${count}" -lt {_LOOKS} ] || [ $(({count} % {_RARE})) = 0 ] || return 0'


def _processes(*marks: str) -> str:
    """Lists the environments of this pod's processes that have these variables too, as files below /proc."""
    pod = ('"DLWS_JOB_ID=$DLWS_JOB_ID"', '"DLWS_ROLE_NAME=$DLWS_ROLE_NAME"', '"DLWS_ROLE_IDX=$node"')
    return " | ".join(["ls /proc/[0-9]*/environ", *(f"xargs -r grep -lszxF {mark}" for mark in (*pod, *marks))])


def _copy_code() -> list[str]:
    """Give each rank its own copy of the code: scripts write to their folder, and nodes may share the disk."""
    return ['rm -rf "$run" && mkdir -p "$run" && cp -R "$code/." "$run/" || fail "the code cannot be copied to $run"']


def _start_horovod(spec: JobSpec, options: Options, folders: Folders, entry: str, *, launches: bool) -> list[str]:
    """Start one launcher for all nodes; it finds them by the platform's `ib_config`."""
    count, network = spec.shape.world, ""
    if options.network_interface:
        network = f" --network-interface {shlex.quote(options.network_interface)}"
    if not launches:
        return ["run=$mine/run", *_copy_code(), f'( cd "$run" && exec horovodrun -np {count} {entry} ) & pids=$!']
    job = '"/job/ib_config-$DLWS_ROLE_NAME-$DLWS_ROLE_IDX" /job/ib_config'
    where = '-hostfile "$hosts" -p "$DLWS_SD_worker0_SSH_PORT"'
    homes = '"/home/$DLWS_USER_NAME/ib_config" "$HOME/ib_config" /job/hostfile'
    return [
        f'hosts=; for file in {job} {homes}; do if [ -s "$file" ]; then hosts=$file; break; fi; done',
        '[ "$hosts" ] || fail "the platform wrote no ib_config"',
        f"run={shlex.quote(folders.scratch)}/run",  # the workers run it too
        *_copy_code(),
        f'( cd "$run" && exec horovodrun -np {count} {where}{network} {entry} ) & pids=$!',
    ]


_OURS = uuid.UUID("5d0c5ac0-2f1c-5b0a-9e5e-0a4b9f1d6e77")  # of all names that we give
_FRAMEWORKS = {"mindspore", "tensorflow"}
_CARDS, _NODE = (1, 2, 4, 8), 8
# Read back from the platform, so that a run that takes the job over knows it too.
_LOGS, _UNTIL = "AIS_LOGS", "AIS_UNTIL"


@dataclass(frozen=True)
class JobFacts:
    """What the request of a job says, as the platform returns it."""

    nodes: int
    logs: StoreUrl | None  # where its logs belong
    until: str  # the beginning of the line that means success
    speakers: int  # the pods that print such a line


def job_id(name: str) -> str:
    """The id that we give a job of this name, so that a request sent twice makes one job."""
    return str(uuid.uuid5(_OURS, name))


def request_body(spec: JobSpec, access: ApulisAccess, share: str) -> dict[str, Any]:
    """`share` is the bucket of the shared folder; empty without one."""
    options = settings.read_options(spec.options)
    check_spec(spec, options)
    several = spec.shape.nodes > 1
    framework = {"frameworkType": spec.framework} if spec.framework in _FRAMEWORKS else {}
    kept = {_LOGS: str(spec.logs), **({_UNTIL: quote(options.done, safe="")} if options.done else {})}
    return {
        "jobId": job_id(spec.name),
        "jobName": spec.name,
        "description": spec.description,
        "userName": access.user,
        "vcName": access.vc,
        "team": access.vc,
        "jobType": "training",
        "jobtrainingtype": "PSDistJob" if several else "RegularJob",
        "gpuType": options.device_type,
        "resourcegpu": spec.shape.devices,  # of each node
        # Without numps the platform accepts the job, and cannot launch it.
        **({"numps": 1, "numpsworker": spec.shape.nodes} if several else {}),
        "preemptionAllowed": str(options.preemptible),
        "image": options.image,
        "containerUserId": 0,
        "hostNetwork": several,
        "isPrivileged": several,
        **dict.fromkeys(("workPath", "dataPath", "jobPath"), "./"),
        **{f"enable{path}": True for path in ("workpath", "datapath", "jobpath")},
        "env": [{"name": name, "value": value} for name, value in kept.items()],
        "interactivePorts": "",
        "plugins": {},
        **framework,
        **render_commands(spec, options, _folders(spec, options, access, share)),
        **({"endpoints": list(options.endpoints)} if options.endpoints else {}),
    }


def job_facts(parameters: Mapping[str, Any]) -> JobFacts:
    """Read the parameters that the platform shows of a job."""
    rows = parameters.get("env") or []
    given = {str(row.get("name")): str(row.get("value", "")) for row in rows if isinstance(row, dict)}
    nodes = int(parameters.get("numpsworker") or 1)
    master = str(parameters.get("masterCmd") or "")
    launches = "horovodrun" in master
    logs = given.get(_LOGS)
    return JobFacts(
        nodes=nodes if parameters.get("jobtrainingtype") == "PSDistJob" else 1,
        logs=StoreUrl.parse(logs) if logs else None,
        until=unquote(given.get(_UNTIL, "")),
        speakers=1 if launches or parameters.get("jobtrainingtype") != "PSDistJob" else nodes,
    )


def check_spec(spec: JobSpec, options: Options) -> None:
    check_job_name(spec.name, "Apulis")
    if options.is_npu:
        _check_cards(spec)
    check_parameter_names(spec.parameters, {"train_url", "data_url"})
    for name in spec.environment:
        check_variable_name(name)
        if name.startswith(("DLWS_", "DLTS_")):
            raise UsageFault(f"environment {name}: DLWS_ and DLTS_ are the platform's", advice="rename it")
    if options.launcher == "horovod" and options.command:
        raise UsageFault("[apulis] has both command and launcher", advice="remove launcher: the command starts all")
    if (
        spec.shape.nodes > 1
        and "horovodrun" in options.command
        and spec.environment.get(SINGLE_SERVER_VARIABLE) != "True"
    ):
        advice = "write launcher = 'horovod' instead of it: that starts horovodrun once, for all nodes"
        raise UsageFault("[apulis] command would start horovodrun on every node", advice=advice)
    if options.launcher == "horovod" and spec.environment.get(SINGLE_SERVER_VARIABLE) == "True":
        advice = "leave --aisbench-single-server out, or write launcher = 'ranks' in workload.toml"
        raise UsageFault("[apulis] launcher horovod joins all cards: no node trains alone", advice=advice)


def _check_cards(spec: JobSpec) -> None:
    nodes, devices = spec.shape.nodes, spec.shape.devices
    if nodes > 1 and devices != _NODE:
        advice = f"choose --aisbench-devices {_NODE}, or --nodes 1"
        raise UsageFault(f"shape {spec.shape}: on Apulis several nodes train with {_NODE} NPUs each", advice=advice)
    if devices not in _CARDS:
        advice = f"choose {', '.join(map(str, _CARDS))} devices"
        raise UsageFault(f"shape {spec.shape}: Apulis gives no {devices} NPUs of a node", advice=advice)


def _folders(spec: JobSpec, options: Options, access: ApulisAccess, share: str) -> Folders:
    mount = (access.share_in_pods or access.share).rstrip("/")

    def seen(url: StoreUrl) -> str:
        return f"{mount}/{url.key}" if url.bucket == share else str(url)

    above = StoreUrl(spec.outputs.bucket, spec.outputs.key.rstrip("/").rpartition("/")[0])
    data = options.data_dir or (seen(spec.inputs) if spec.inputs else "")
    scratch = seen(above / "work") if share else "/job/aisbench-work"
    return Folders(seen(spec.code), seen(spec.outputs), data, scratch, mount if share else "")
