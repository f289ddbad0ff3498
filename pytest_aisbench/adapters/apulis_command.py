"""What the pods of an Apulis job run: one line of bash, since the platform hands a command on as one variable. Pure.

A distributed job has a pod `ps` beside its workers, without a card. The platform runs the command there too, and what
becomes of it decides the job: so it waits, unless it is the launcher of Horovod.
"""

from __future__ import annotations

import shlex
from dataclasses import dataclass

from pytest_aisbench.adapters.apulis_options import Options
from pytest_aisbench.domain.job import JobSpec

ALONE = "SINGLESERVER_MODE"
"""In the environment of a job whose nodes train each for itself."""
DONE = "AISBENCH_DONE"
"""The line that a node says last: `AISBENCH_DONE node=1 rc=0`."""
IDLE = "AISBENCH_IDLE"
"""What a pod says that has nothing to do: where one pod says nothing, the platform keeps no log of any."""
_WAIT = f"echo {IDLE}; exec sleep infinity"
_TABLE_S = 600  # until the platform has written the rank table
_GRACE_S = 15
_ENDED = f"for wait in $(seq {5 * _GRACE_S}); do kill -0 $pids 2>/dev/null || break; sleep 0.2; done"
# Not `wait -n`, which may miss whoever ended before it was asked.
_WATCHED = (
    'why=; left=$pids; while [ "$left" ] && [ "$rc" = 0 ]; do sleep 0.2; still=; for pid in $left; do '
    'if kill -0 "$pid" 2>/dev/null; then still="$still $pid"; else wait "$pid" || rc=$?; fi; done; left=$still; '
    "numbered || rc=1; done"
)
_LOOKS, _RARE = 600, 10  # after so many looks at the ranks' numbers, every tenth will do
_FETCH = "import sys, moxing; moxing.file.copy_parallel(sys.argv[1], sys.argv[2])"


@dataclass(frozen=True)
class Places:
    """As the pods see them: paths, or urls of OBS."""

    code: str
    outputs: str
    data: str
    scratch: str  # a folder that all pods share


def commands(spec: JobSpec, options: Options, places: Places) -> dict[str, str]:
    """`cmd` of every job; `masterCmd` and `workerCmd` too of one with several nodes."""
    launches = options.launcher == "horovod"
    train = _line(spec, options, _script(spec, options, places))
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
    # The cards are root's. sudo drops the paths by which software is found, even with -E.
    kept = '"PATH=$PATH" "LD_LIBRARY_PATH=${LD_LIBRARY_PATH-}" "PYTHONPATH=${PYTHONPATH-}"'
    root = 'as=; [ "$(id -u)" = 0 ] || ! sudo -n true 2>/dev/null || as="sudo -n -E"'
    return f"{root}; exec $as env {kept} {run}"


def _script(spec: JobSpec, options: Options, places: Places) -> str:
    launches = options.launcher == "horovod" and spec.shape.nodes > 1
    idle = '[ "$DLWS_ROLE_NAME" != worker ]' if launches else '[ "$DLWS_ROLE_NAME" != ps ]'
    parts = [
        f"{idle} || {{ {_WAIT}; }}",  # a platform that knows no masterCmd gives every pod the same
        "node=${DLWS_ROLE_IDX:-0}",
        f'end() {{ rm -rf "$mine"; echo "{DONE} node=$node rc=$1"; exit "$1"; }}',
        'fail() { echo "aisbench: $1"; end 1; }',
        *_exports(spec),
        "python=$(command -v python || command -v python3)",
        'mine=${TMPDIR:-/tmp}/aisbench-$DLWS_JOB_ID/node-$node; rm -rf "$mine"; mkdir -p "$mine"',
        *_code(options, places),
        *([] if "://" in places.outputs else [f"mkdir -p {shlex.quote(places.outputs)}"]),
        *(_rank_table(spec) if options.is_npu and spec.shape.world > 1 else []),
        "pids=",
        'signal() { for pid in $pids; do kill "-$1" -- "$pid" "-$pid"; done 2>/dev/null; }',
        'stop() { exec 2>/dev/null; signal TERM; wait; rm -rf "$mine"; exit 143; }',
        "trap stop TERM INT",
        *_numbered(spec, options),
        *_started(spec, options, places, launches=launches),
        "rc=0",
        _WATCHED,
        # One rank that fails leaves the others waiting for it.
        f'if [ "$rc" != 0 ]; then signal TERM; {_ENDED}; signal KILL; fi',
        "wait",
        '[ -z "$why" ] || fail "$why"',
        'end "$rc"',
    ]
    return "; ".join(parts)


def _exports(spec: JobSpec) -> list[str]:
    """Here and not in the request's `env`: the platform writes that to a script, without quotes."""
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


def _code(options: Options, places: Places) -> list[str]:
    if options.code_dir:
        return [f"code={shlex.quote(options.code_dir)}", *_required("code_dir")]
    if "://" not in places.code:
        return [f"code={shlex.quote(places.code.rstrip('/'))}", *_required("share_in_pods")]
    fetch = f'"$python" -c {shlex.quote(_FETCH)} {shlex.quote(places.code)} "$mine/code"'
    advice = "the code did not come from OBS: the image needs moxing and keys, or name code_dir"
    return ["code=$mine/code", f'{fetch} || fail "{advice}"']


def _required(key: str) -> list[str]:
    return [f'[ -d "$code" ] || fail "there is no folder $code on this pod: check {key}"']


def _rank_table(spec: JobSpec) -> list[str]:
    """The platform's own, in the format of the framework: it is there once every worker has told its addresses."""
    name = "hccl_tf.json" if spec.framework == "tensorflow" else "hccl_ms.json"
    homes = f'"$HOME/.npu/$DLWS_JOB_ID/{name}" "/home/$DLWS_USER_NAME/.npu/$DLWS_JOB_ID/{name}"'
    look = f'for file in {homes}; do if grep -qs completed "$file"; then table=$file; break 2; fi; done'
    return [
        "table=",
        f"for second in $(seq {_TABLE_S}); do {look}; sleep 1; done",
        f'[ "$table" ] || fail "the platform wrote no {name} within {_TABLE_S} s"',
        'export "RANK_TABLE_FILE=$table" "MINDSPORE_HCCL_CONFIG_PATH=$table"',
    ]


def _started(spec: JobSpec, options: Options, places: Places, *, launches: bool) -> list[str]:
    arguments = {**spec.parameters, "train_url": places.outputs, **({"data_url": places.data} if places.data else {})}
    words = [shlex.quote(spec.entry), *(shlex.quote(f"--{name}={value}") for name, value in arguments.items())]
    entry = " ".join(['"$python"', *words])
    if options.launcher == "horovod" and not options.command:
        return _horovod(spec, options, places, entry, launches=launches)
    folder = shlex.quote(f"{places.scratch}/run") if options.workdir == "shared" else '"$mine/run"'
    if options.command:
        # A script of one's own starts its cards itself: it gets what it needs for that, and they end with it.
        told = f"TRAIN_URL={shlex.quote(places.outputs)} DATA_URL={shlex.quote(places.data)}"
        ranks = f"RANK_START=$((node * {spec.shape.devices})) SERVER_ID=$node"
        run = f'( cd "$run" && {told} {ranks} exec setsid bash -c {shlex.quote(options.command)} ) & pids=$!'
        executable = 'chmod -R u+x "$run"'  # a store does not keep who may be executed
        return [f"run={folder}/node-$node", *_copied(), executable, run]
    one = f'( cd "$run" && DEVICE_ID=$i RANK_ID=$rank exec {entry} ) & pids="$pids $!"'
    rank = f"rank=$((node * {spec.shape.devices} + i)); run={folder}/rank-$rank"
    return [f"for i in $(seq 0 {spec.shape.devices - 1}); do {rank}; {'; '.join(_copied())}; {one}; done"]


def _numbered(spec: JobSpec, options: Options) -> list[str]:
    """`numbered`: fails, and says why, once a rank of this node has a number of another node.

    A script of one's own numbers the ranks itself. Where it begins with 0 on every node, as that of the platform's
    guide does, all of them wait for the ranks that nobody is. What it told its ranks is seen from outside: in the
    environment of every process of this pod that is one of all ranks.
    """
    if not options.command or spec.shape.nodes == 1 or spec.environment.get(ALONE) == "True":
        return ["numbered() { :; }"]
    devices, world = spec.shape.devices, spec.shape.world
    marks = (
        '"DLWS_JOB_ID=$DLWS_JOB_ID"',
        '"DLWS_ROLE_NAME=$DLWS_ROLE_NAME"',
        '"DLWS_ROLE_IDX=$node"',
        f"RANK_SIZE={world}",
    )
    ours = " | ".join(["ls /proc/[0-9]*/environ", *(f"xargs -r grep -lszxF {mark}" for mark in marks)])
    told = f"({ours} | xargs -r grep -hszx 'RANK_ID=[0-9][0-9]*' | tr '\\0' '\\n') 2>/dev/null"
    text = "RANK_ID is $rank on node $node, whose ranks are $first to $last: give card i RANK_ID=\\$((RANK_START + i))"
    seldom = f'[ "$looks" -lt {_LOOKS} ] || [ $((looks % {_RARE})) = 0 ] || return 0'
    wrong = f'if [ "$rank" -lt "$first" ] || [ "$rank" -gt "$last" ]; then why="{text}"; return 1; fi'
    look = f"for rank in $({told}); do rank=${{rank#RANK_ID=}}; {wrong}; done"
    return [
        f"looks=0; first=$((node * {devices})); last=$((first + {devices - 1}))",
        f"numbered() {{ looks=$((looks + 1)); {seldom}; {look}; }}",
    ]


def _copied() -> list[str]:
    """Every rank has a folder of its own: scripts write where they stand, and nodes may share the disk."""
    return ['rm -rf "$run" && mkdir -p "$run" && cp -R "$code/." "$run/" || fail "the code cannot be copied to $run"']


def _horovod(spec: JobSpec, options: Options, places: Places, entry: str, *, launches: bool) -> list[str]:
    """One launcher for all nodes, which finds them by the platform's `ib_config`."""
    count, network = spec.shape.world, ""
    if options.network_interface:
        network = f" --network-interface {shlex.quote(options.network_interface)}"
    if not launches:
        return ["run=$mine/run", *_copied(), f'( cd "$run" && exec horovodrun -np {count} {entry} ) & pids=$!']
    job = '"/job/ib_config-$DLWS_ROLE_NAME-$DLWS_ROLE_IDX" /job/ib_config'
    where = '-hostfile "$hosts" -p "$DLWS_SD_worker0_SSH_PORT"'
    homes = '"/home/$DLWS_USER_NAME/ib_config" "$HOME/ib_config" /job/hostfile'
    return [
        f'hosts=; for file in {job} {homes}; do if [ -s "$file" ]; then hosts=$file; break; fi; done',
        '[ "$hosts" ] || fail "the platform wrote no ib_config"',
        f"run={shlex.quote(places.scratch)}/run",  # the workers run it too
        *_copied(),
        f'( cd "$run" && exec horovodrun -np {count} {where}{network} {entry} ) & pids=$!',
    ]
