"""What a container of V1 knows about itself: no folders for data, but urls; DLS_ and BATCH_ variables."""

from __future__ import annotations

from typing import TYPE_CHECKING

from pytest_aisbench.localcloud.rendezvous import node_address

if TYPE_CHECKING:
    from pytest_aisbench.localcloud.launch import Launch

WORK_HOME = "/home/work"
JOB_DIR = f"{WORK_HOME}/user-job-dir"
ENTRY = "run_train.sh"
"""Of the vendor's base images: brings the code, then runs the command it is given."""


def environment(launch: Launch, index: int, port: int) -> dict[str, str]:
    """What the platform sets on one node, and no job may change."""
    hosts = [f"{node_address(node)}:{port}" for node in range(launch.nodes)]
    urls = {channel.name: channel.place.url for channel in (*launch.inputs, *launch.outputs)}
    variables = {
        "DLS_JOB_ID": launch.resource_id,
        "DLS_TASK_INDEX": str(index),
        "DLS_TASK_NUMBER": str(launch.nodes),
        "DLS_APP_URL": launch.code.url if launch.code else "",
        "DLS_DATA_URL": urls.get("data_url", ""),
        "DLS_TRAIN_URL": urls.get("train_url", ""),
        "BATCH_JOB_ID": launch.resource_id,
        "BATCH_CURRENT_HOST": node_address(index),
        "BATCH_CURRENT_PORT": str(port),
        "BATCH_TASK_CURRENT_INSTANCE": f"{launch.resource_id}-job-{launch.name}-{index}",
    }
    if launch.logs:
        variables |= {"DLS_USE_UPLOADER": "1", "DLS_UPLOAD_LOG_OBS_DIR": launch.logs.url}
    if launch.nodes == 1:
        return variables | {f"BATCH_{launch.name}.0_HOSTS": hosts[0]}
    return variables | {f"BATCH_CUSTOM{node}_HOSTS": host for node, host in enumerate(hosts)}
