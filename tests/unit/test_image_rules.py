"""Custom images: we find the mistakes of the guides before anything costs, and propose the fix."""

from __future__ import annotations

import re
from dataclasses import replace

import pytest

from pytest_aisbench.errors import UsageFault
from pytest_aisbench.model.case import Shape
from pytest_aisbench.model.job import JobSpec, StoreUrl
from pytest_aisbench.platforms.modelarts import request
from pytest_aisbench.platforms.modelarts.image_rules import check_command, check_image, check_script

RUN = "bash /home/work/run_train.sh"


@pytest.mark.parametrize(
    ("version", "command"),
    [
        ("V1", f"{RUN} bash /home/work/user-job-dir/paddle/run.sh"),
        ("V1", f"{RUN} python /home/work/user-job-dir/paddle/train.py --lr=0.1"),
        ("V1", "/opt/train --all"),
        ("V2", "python $MA_JOB_DIR/paddle/train.py"),
        ("V2", "/home/ma-user/miniconda3/bin/python ${MA_JOB_DIR}/paddle/train.py --lr 0.1"),
        ("V2", "cd /home/ma-user/modelarts/user-job-dir/paddle && bash run.sh"),
        ("V2", "cd /home/ma-user/ddp_demo && sh run_ddp.sh"),
        ("V2", "python -m torch.distributed.run ${MA_JOB_DIR}/paddle/train.py"),
        ("V2", "bash ${MA_JOB_DIR}/paddle/run.sh python train.py"),
    ],
)
def test_commands_that_run(version: str, command: str) -> None:
    check_command(command, version=version, code="paddle")


@pytest.mark.parametrize(
    ("version", "command", "fix"),
    [
        # The guide's own: two mistakes, the first is named first.
        ("V1", f"{RUN} python /home/work/user-job-dir/run.sh", f"write '{RUN} bash /home/work/user-job-dir/run.sh'"),
        ("V1", f"{RUN} bash /home/work/user-job-dir/run.sh", "write /home/work/user-job-dir/paddle/run.sh"),
        ("V1", f"{RUN} bash /home/work/user-job-dir/paddle2/run.sh", "/home/work/user-job-dir/paddle/paddle2/run.sh"),
        ("V1", f"{RUN} bash $MA_JOB_DIR/paddle/run.sh", "write /home/work/user-job-dir/paddle/run.sh"),
        (
            "V1",
            "bash /home/work/user-job-dir/paddle/run.sh",
            f"write '{RUN} bash /home/work/user-job-dir/paddle/run.sh'",
        ),
        ("V1", "python /home/work/run_train.sh python /home/work/user-job-dir/paddle/a.py", f"write '{RUN} python"),
        ("V1", "sh /home/work/run_train.sh python /home/work/user-job-dir/paddle/a.py", f"write {RUN}"),
        ("V2", "python $MA_JOB_DIR/paddle/run.sh", "write 'bash $MA_JOB_DIR/paddle/run.sh'"),
        ("V2", "python3.7 -u $MA_JOB_DIR/paddle/run.sh", "write 'bash $MA_JOB_DIR/paddle/run.sh'"),
        ("V2", "bash ${MA_JOB_DIR}/paddle/train.py", "write 'python ${MA_JOB_DIR}/paddle/train.py'"),
        ("V2", "python ${MA_JOB_DIR}/train.py", "write ${MA_JOB_DIR}/paddle/train.py"),
        ("V2", "python /home/work/user-job-dir/paddle/a.py", "/home/ma-user/modelarts/user-job-dir/paddle/a.py"),
        ("V2", f"{RUN} python $MA_JOB_DIR/paddle/train.py", "run the script itself"),
        ("V2", "conda activate mine && python $MA_JOB_DIR/paddle/train.py", "miniconda3/envs/NAME/bin/python"),
        ("V2", "python $MA_JOB_DIR/paddle/train.py | tee log", "let the training script be the last command"),
        ("V2", "python $MA_JOB_DIR/paddle/train.py;", "let the training script be the last command"),
        ("V2", "cd $MA_JOB_DIR/paddle\npython train.py", "join them with &&"),
        ("V2", " ", "write what the container is to run"),
    ],
)
def test_commands_that_would_fail_on_the_platform(version: str, command: str, fix: str) -> None:
    with pytest.raises(UsageFault) as caught:
        check_command(command, version=version, code="paddle")
    assert fix in str(caught.value)
    assert "\n" not in str(caught.value)


def test_following_the_fixes_of_the_guides_command_ends_well() -> None:
    command = f"{RUN} python /home/work/user-job-dir/run.sh"
    for right in (f"{RUN} bash /home/work/user-job-dir/run.sh", f"{RUN} bash /home/work/user-job-dir/paddle/run.sh"):
        with pytest.raises(UsageFault):
            check_command(command, version="V1", code="paddle")
        command = right
    check_command(command, version="V1", code="paddle")


def test_a_command_without_arguments_may_end_as_it_likes() -> None:
    check_command("python $MA_JOB_DIR/paddle/a.py | tee log", version="V2", code="paddle", arguments=False)


GUIDE = """
for i in $(seq 0 $[DLS_TASK_NUMBER-1]); do
    env_key=BATCH_CUSTOM${i}_HOSTS
    node_hosts="${node_hosts},$(eval echo '$'$env_key)"
done
python -m paddle.distributed.launch --cluster_node_ips=${node_hosts} train_with_fleet.py
"""


def test_ports_in_lists_of_hosts_are_found() -> None:
    with pytest.raises(UsageFault, match=r"run.sh .* host:port; cut the port off"):
        check_script("run.sh", GUIDE)
    check_script("run.sh", GUIDE.replace("$(eval echo '$'$env_key)", "${!env_key%%:*}"))
    check_script("train.py", "print('no hosts here')")


@pytest.mark.parametrize(
    "image", ["swr.cn-north-4.myhuaweicloud.com/deep/paddle-gpu:latest", "org/img:1", "host:5000/org/img", "org/img"]
)
def test_addresses_of_images(image: str) -> None:
    check_image(image)


@pytest.mark.parametrize("image", ["https://swr.example/org/img:1", "paddle", "org/img:1 ", "org//img", ""])
def test_what_is_no_address_of_an_image(image: str) -> None:
    with pytest.raises(UsageFault, match="write"):
        check_image(image)


@pytest.mark.parametrize(("api", "home"), [("V2", "$MA_JOB_DIR"), ("V1", "/home/work/user-job-dir")])
def test_no_request_is_rendered_for_a_command_that_cannot_run(api: str, home: str) -> None:
    place = StoreUrl.parse("obs://bucket/aisbench/")
    run = f"{RUN} " if api == "V1" else ""
    options = {"image": "org/img:1", "command": f"{run}python {home}/train.py", "flavor": "modelarts.kat1.xlarge"}
    spec = JobSpec("mlp-1x1", Shape(1, 1), place / "code/0a1b/mlp/", "train.py", place / "out/", place / "log/")
    body = request.request_body_v2 if api == "V2" else request.request_body_v1
    spec = replace(spec, options=options)
    with pytest.raises(UsageFault, match=f"write {re.escape(home)}/mlp/train.py"):
        body(spec, request.placement(spec))
    spec = replace(spec, options=options | {"command": f"{run}python {home}/mlp/train.py"})
    assert f"{home}/mlp/train.py" in str(body(spec, request.placement(spec)))


@pytest.mark.parametrize(
    ("api", "entry", "command"),
    [
        ("V1", "launch.py", f"{RUN} python /home/work/user-job-dir/mlp/launch.py"),
        ("V1", "run.sh", f"{RUN} bash /home/work/user-job-dir/mlp/run.sh"),
        ("V2", "launch.py", "python ${MA_JOB_DIR}/mlp/launch.py"),
        ("V2", "run.sh", "bash ${MA_JOB_DIR}/mlp/run.sh"),
    ],
)
def test_an_image_alone_runs_the_entry_as_each_api_starts_it(api: str, entry: str, command: str) -> None:
    place = StoreUrl.parse("obs://bucket/aisbench/")
    spec = JobSpec("mlp-1x1", Shape(1, 1), place / "code/0a1b/mlp/", entry, place / "out/", place / "log/")
    spec = replace(spec, options={"image": "org/img:1", "flavor": "modelarts.kat1.xlarge"})
    if api == "V2":
        sent = request.request_body_v2(spec, request.placement(spec))["algorithm"]["command"]
    else:
        sent = request.request_body_v1(spec, request.placement(spec))["config"]["user_command"]
    assert sent == command


@pytest.mark.parametrize(
    ("options", "fault"),
    [({"image": "org/img:1"}, "'train' in workload.toml is neither Python nor shell"), ({"command": "x"}, "add image")],
)
def test_an_image_needs_something_to_run_and_a_command_something_to_run_in(options: dict[str, str], fault: str) -> None:
    place = StoreUrl.parse("obs://bucket/aisbench/")
    spec = JobSpec("mlp-1x1", Shape(1, 1), place / "code/0a1b/mlp/", "train", place / "out/", place / "log/")
    spec = replace(spec, options={"flavor": "modelarts.kat1.xlarge", "framework_version": "x", **options})
    with pytest.raises(UsageFault, match=fault):
        request.request_body_v2(spec, request.placement(spec))
