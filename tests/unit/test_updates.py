"""What a log says about a software update before the training."""

from __future__ import annotations

from pathlib import Path

import pytest
from factories import make_case, make_trial

from pytest_aisbench.engine.collect import update_errors
from pytest_aisbench.traininglog.failure import expected_versions, failed_updates, other_versions

# The files that the vendor's guide names.
RUN = (
    "Ascend-cann-nnae_5.0.2.1_linux-aarch64.run",
    "mindspore_ascend-1.3.0-cp37-cp37m-linux_aarch64.whl",
    "protobuf-3.20.1-cp37-cp37m-linux_aarch64.whl",
)
FAILED = (
    "replace origin mindspore packet!!! done ret:1 !!!",
    "replace origin CANN_RUN_PACKET!!!: /home/work/user-job-dir/code/run/Ascend-cann-nnae.run done ret:127 !!!",
    "ERROR: mindspore_ascend-1.3.0-cp37-cp37m-linux_aarch64.whl is not a supported wheel on this platform.",
    "ERROR: Could not install packages due to an OSError: [Errno 2] No such file or directory: '/run/protobuf*.whl'",
    "ERROR: No matching distribution found for protobuf>=3.13.0",
    "[Nnae] [20220712-12:19:43] [ERROR]: ERR_NO:0x0080;ERR_DES: the disk is full",
    "Upgrade done, ret = -1",
    "replace origin firmware!!! done RET:  2 !!!",
    "2022-07-12 12:19:43 ERROR: Could not find a version that satisfies the requirement protobuf>=3.13.0",
    "ERROR: Cannot uninstall 'PyYAML'. It is a distutils installed project and thus we cannot accurately determine",
    "ERROR: Command errored out with exit status 1: python setup.py bdist_wheel",
    "error: externally-managed-environment",
    "/usr/bin/python3.7: No module named pip",
    "/home/work/user-job-dir/code/ma-pre-start.sh: line 9: pip3.7: command not found",
    "sudo: /home/work/user-job-dir/code/run/Ascend-cann-nnae.run: command not found",
    "bash: ./run/Ascend-cann-nnae.run: Permission denied",
    "sudo: a password is required",
    "[Nnae] [20220712-12:19:43] [ERROR]: the installation stopped",
    "Error in MD5 checksums: 0cc175b9 is different from 92eb5ffe",
    "aisbench: a.whl was not installed: the job would train with other software than it should",
)
FINE = (
    "replace origin mindspore packet!!! done ret:0 !!!",
    "+ echo 'replace origin mindspore packet!!! done ret:1 !!!'",
    "ERROR: pip's dependency resolver does not currently take into account all the packages that are installed.",
    "[ERROR] ME(143:281473):2022-07-12 the training goes on",
    "ERROR: the loss is not finite",
    "ERROR: Could not open picture 17, which is left out",
    "mindspore 1.3.0 requires protobuf>=3.13, but you have protobuf 3.6 which is incompatible.",
    "nvidia-smi: command not found",
    "epoch 1 done, return 17.2",
    "ret:1",
)


@pytest.mark.parametrize("line", FAILED)
def test_a_step_that_failed_is_named_once(line: str) -> None:
    assert failed_updates(f"before\n{line}\nbetween\n{line}\n") == [line]


@pytest.mark.parametrize("line", FINE)
def test_other_lines_are_no_failed_updates(line: str) -> None:
    assert failed_updates(line) == []


def test_colours_do_not_hide_a_failure() -> None:
    assert failed_updates("\x1b[31mERROR: Could not install packages due to an OSError\x1b[0m\n") == [
        "ERROR: Could not install packages due to an OSError"
    ]


def test_versions_come_from_the_names_of_the_files() -> None:
    assert expected_versions(RUN) == {"cann": ("5.0.2.1", RUN[0]), "mindspore": ("1.3.0", RUN[1])}
    wheels = ("torch-1.8.1+ascend-cp37-cp37m-linux_aarch64.whl", "torch_npu-1.8.1-cp37-cp37m-linux_aarch64.whl")
    assert expected_versions(wheels) == {"torch": ("1.8.1+ascend", wheels[0])}


@pytest.mark.parametrize(
    ("log", "others"),
    [
        ("MindSpore version: 1.3.0", []),
        ("MindSpore version: 1.2.1", [("mindspore", "1.2.1", RUN[1])]),
        ("MindSpore version: 1.2.1\nMindSpore version: 1.3.0", []),  # before and after the update
        ("source /usr/local/Ascend/ascend-toolkit/5.0.2/set_env.sh", [("cann", "5.0.2", RUN[0])]),
        ("engine mindspore_1.2.0-cann_5.0.2-py_3.7-euler_2.8.3-aarch64", []),  # what the image had
        ("no version", []),
    ],
)
def test_a_version_that_no_file_brings_is_another(log: str, others: list[tuple[str, str, str]]) -> None:
    assert other_versions(log, expected_versions(RUN)) == others


def test_a_step_that_fails_after_a_long_installation_is_seen(tmp_path: Path) -> None:
    installed = "[Nnae] [20220712-12:19:43] [INFO]: a file of the package is in its place\n" * 5000
    (tmp_path / "worker-1.log").write_text(f"{installed}{FAILED[0]}\n")
    case = make_case(folder=str(tmp_path))
    (error,) = update_errors(make_trial(case, logs=("worker-1.log",)), tmp_path)
    assert "done ret:1" in error.text
    assert "worker-1.log" in error.text
