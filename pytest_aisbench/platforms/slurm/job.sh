# The script of a job, which Slurm runs on the first node. script.py writes the lines above: which folders, what srun
# gets, how many tasks, and `rank`, the text of rank.sh. The codes with which it ends by itself are in script.py too.
cd "$work" || exit "$no_folder"

# Slurm may start a job twice: a controller that crashed forgets its last seconds. And it may forget a cancellation.
mkdir once 2>/dev/null || { [ -d once ] && exit "$started_twice"; exit "$no_folder"; }
[ ! -e stop ] || exit "$stopped"

note() { cat > "$1.part" && mv "$1.part" "$1"; }  # a file that is there is whole

names=$(scontrol show hostnames "$SLURM_JOB_NODELIST" | paste -sd, -)
printf '%s\n' "job=$SLURM_JOB_ID" "started=$(date +%s.%N)" "nodes=$names" "logs=$logs" "store=$store" | note started
mkdir -p exits "$logs" || exit "$no_folder"
[[ $outputs == *://* ]] || mkdir -p "$outputs" || exit "$no_folder"

prologue

# Scripts that were written for ModelArts know these by its names.
addresses=$(scontrol -o show nodes "$SLURM_JOB_NODELIST" | sed -n 's/^NodeName=\([^ ]*\) .*NodeAddr=\([^ ]*\) .*/\1 \2/p')
VC_WORKER_HOSTS=$(for name in ${names//,/ }; do awk -v name="$name" '$1 == name { print $2 }' <<< "$addresses"; done | paste -sd, -)
MASTER_PORT=${MASTER_PORT:-$((20000 + SLURM_JOB_ID % 20000))}
export VC_WORKER_HOSTS MASTER_PORT work
environment

# The rank table: which ranks share a server, and on Ascend the address of each card, by each node's own hccn.conf.
if [ "$hccn_conf" ]; then
    mkdir -p hccn
    srun --export=ALL --mpi=none --ntasks="$nodes" --ntasks-per-node=1 bash -c '
        { echo "visible=$ASCEND_RT_VISIBLE_DEVICES" && cat "${1//%n/$SLURMD_NODENAME}"; } > "hccn/$SLURM_NODEID"
    ' hccn "$hccn_conf" || : > hccn/missing
fi
device() {  # NODE CARD: the card in the table
    local id=$2 ip= visible=
    if [ -f "hccn/$1" ]; then
        visible=$(sed -n 's/^visible=//p' "hccn/$1" | head -n 1)
        [ -z "$visible" ] || id=$(cut -d, -f$(($2 + 1)) <<< "$visible")
        ip=$(sed -n "s/^address_$id=//p" "hccn/$1" | head -n 1)
        [ "$ip" ] || : > hccn/missing
    fi
    printf '{"device_id": "%s", ' "$id"
    [ -z "$ip" ] || printf '"device_ip": "%s", ' "$ip"
    printf '"rank_id": "%s"}' $(($1 * devices + $2))
}
servers() {
    local node=0 card host
    for host in ${VC_WORKER_HOSTS//,/ }; do
        [ "$node" = 0 ] || printf ', '
        printf '{"server_id": "%s", "host_nic_ip": "reserve", "device": [' "$host"
        for ((card = 0; card < devices; card++)); do
            [ "$card" = 0 ] || printf ', '
            device "$node" "$card"
        done
        printf ']}'
        node=$((node + 1))
    done
}
printf '{"version": "1.0", "server_count": "%s", "server_list": [%s], "status": "completed"}\n' "$nodes" "$(servers)" |
    note rank_table.json
if [ -e hccn/missing ]; then
    echo "${diagnosis}a node has no addresses of $devices cards in $hccn_conf: correct hccn_conf" >> "$logs/worker-0.log"
    exit "$no_table"
fi
export RANK_TABLE_FILE=$work/rank_table.json

srun "${srun[@]}" bash -c "$rank"
rc=$?

# srun's own code is no evidence: it is 0 if no task could start, and 143 if the failure of one ended the others.
# A network file system may show what another node wrote a minute later; to write there makes it look again.
for ((look = 1; look <= 60; look++)); do
    ended=$( (cd exits && awk '{ print "rank=" FILENAME, $0 }' [0-9]*) 2>/dev/null)
    count=$(grep -c . <<< "$ended")
    if [ "$rc" = 0 ]; then
        [ "$count" != "$tasks" ] || break
    elif [ "$look" -gt 5 ] || awk '$2 != 0 { bad = 1 } END { exit !bad }' <<< "$ended"; then
        break
    fi
    : > exits/look && rm exits/look && sleep 1
done
bad=$(awk -v signalled="$signalled" '$2 != 0 && $2 != signalled { print $3, $2 }' <<< "$ended" | sort -n | awk '{ print $2; exit }')
if [ "$bad" ]; then
    rc=$bad
elif [ "$rc" = 0 ] && [ "$count" != "$tasks" ]; then
    rc=$no_ranks
fi
printf '%s\n' "job=$SLURM_JOB_ID" "tasks=$tasks" "rc=$rc" "ended=$(date +%s.%N)" "$ended" | note done
exit "$rc"
