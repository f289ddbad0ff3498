# What srun runs for each task: a rank, or a launcher that starts the ranks of its node. script.py writes the lines above.
# The log of a node is for the training: what Slurm and this shell say of its end, such as "Terminated", is not in it.
exec >> "$logs/worker-$SLURM_NODEID.log" 2>> "$work/slurm.log"
leave() {  # CODE: note it, and end
    cd / && rm -rf "$run"
    echo "$1 $(date +%s.%N) $SLURMD_NODENAME" > "$work/exits/part-$SLURM_PROCID"
    mv "$work/exits/part-$SLURM_PROCID" "$work/exits/$SLURM_PROCID"
    exit "$1"
}
fail() {
    echo "$diagnosis$1 on $SLURMD_NODENAME"
    leave "$no_folder"
}
told_to_end=
trap told_to_end=1 TERM  # Slurm signals the training too; its exit code is still to be noted

export DEVICE_ID=$SLURM_LOCALID VC_TASK_INDEX=$SLURM_NODEID
if [ "$alone" ]; then  # every node trains by itself, and nodes may share an address
    MASTER_ADDR=$(cut -d, -f$((SLURM_NODEID + 1)) <<< "$VC_WORKER_HOSTS")
    MASTER_PORT=$((MASTER_PORT + SLURM_NODEID))
fi
export MASTER_PORT MASTER_ADDR=${MASTER_ADDR:-$SLURM_LAUNCH_NODE_IPADDR}
[ ! "$one_per_card" ] || export RANK_ID=$SLURM_PROCID
python=${python:-$(command -v python || command -v python3)}

# Scripts write to their folder, so each has a copy of the code.
run=${run:-${SLURM_TMPDIR:-${TMPDIR:-/tmp}}/aisbench-$SLURM_JOB_ID}-$SLURM_PROCID
rm -rf "$run" && mkdir -p "$run" && cd "$run" || fail "there is no room at $run"
if [[ $code == *://* ]]; then
    "$python" -c "import sys, moxing; moxing.file.copy_parallel(sys.argv[1], '.')" "$code" ||
        fail "the code did not come from OBS: the nodes need moxing, and keys of their own"
else
    cp -R "$code/." . || fail "the code cannot be copied from $code: check share_on_nodes"
fi

# The ranks of a node share a log: each line is one write, so that no two mix.
exec 4> >(trap "" TERM INT HUP; exec sed -u "")
filter=$!
(train) >&4 2>&1
rc=$?
# A training that Slurm told to end, such as for a job of higher priority, may end with 0; it has not trained to its end.
[ ! "$told_to_end" ] || [ "$rc" != 0 ] || rc=$signalled
exec 4>&-
for ((wait = 0; wait < 50; wait++)); do
    kill -0 "$filter" 2>/dev/null || break
    sleep 0.1
done
leave "$rc"
