#!/bin/bash
# The entry of V1's base images: brings the code of the job, then runs the command that it is given.
# The command's exit code is the job's; 127 where the code did not arrive.

home="$(cd "$(dirname "$0")" && pwd -P)"
jobs="$home/user-job-dir"
log="${TMPDIR:-/tmp}/dls-task-$DLS_TASK_INDEX.log"
export PYTHONPATH="$jobs:$PYTHONPATH" PYTHONUNBUFFERED=1

mox() {
    "$MA_SCRIPT_INTERPRETER" -c 'import sys, moxing; getattr(moxing.file, sys.argv[1])(*sys.argv[2:])' "$@"
}

echo "user: $(id)"
echo "app_url: $DLS_APP_URL"
echo "command:" "$@"

mkdir -p "$jobs" && cd "$jobs" || exit 127
app="${DLS_APP_URL%/}"
if ! mox copy_parallel "$DLS_APP_URL" "$jobs/${app##*/}"; then
    echo "App download error: $DLS_APP_URL"
    exit 127
fi

buffered=()
command -v stdbuf > /dev/null && buffered=(stdbuf -oL -eL)
"${buffered[@]}" "$@" 2>&1 | tee "$log"
code="${PIPESTATUS[0]}"

if [ -n "$DLS_USE_UPLOADER" ] && [ "$DLS_USE_UPLOADER" != 0 ]; then
    mox copy "$log" "${DLS_UPLOAD_LOG_OBS_DIR%/}/dls-log-$DLS_JOB_ID-$DLS_TASK_INDEX" || echo "Log upload error"
fi
exit "$code"
