#!/bin/bash
# The entry of every pod: runs the job's command, and leaves its exit code where the platform looks for it.
#     bootstrap.sh FOLDER N     where the N pods of the job meet before any of them begins

pod="$(cd "$(dirname "$0")/.." && pwd -P)"
running="$pod/running"
mkdir -p "$running"
echo "bootstrap: $DLWS_ROLE_NAME $DLWS_ROLE_IDX of job $DLWS_JOB_ID"
printf '%s\n' "$DLWS_LAUNCH_CMD" > "$pod/job_command.sh"
mkdir -p "$1" && touch "$1/$DLWS_ROLE_NAME-$DLWS_ROLE_IDX"
until [ "$(ls "$1" | wc -l)" -ge "$2" ]; do sleep 0.05; done
touch "$running/ROLE_READY"
bash "$pod/job_command.sh"
code=$?
echo "$(date) : $code" > "$running/EXIT_CODE"
exit "$code"
