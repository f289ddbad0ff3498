"""Versions that a log tells."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from pytest_aisbench.traininglog.activity import software_versions

SAID = {
    "| npu-smi 21.0.4                   Version: 21.0.4     |": {"driver": "21.0.4"},
    "| npu-smi 26.0.rc1                            Version: 26.0.rc1     |": {"driver": "26.0.rc1"},
    "        Software Version               : 22.0.4": {"driver": "22.0.4"},
    "        Firmware Version               : 1.84.15.1.230": {"firmware": "1.84.15.1.230"},
    "| NVIDIA-SMI 470.57.02    Driver Version: 470.57.02    CUDA Version: 11.4     |": {
        "cuda": "11.4",
        "driver": "470.57.02",
    },
    "[WARNING] ME(1049852:281473041023008,MainProcess):2024-12-06-12:23:11.112.000 "
    "[mindspore/run_check/_check_version.py:357] MindSpore version 2.3.1 and Ascend AI software package "
    "(Ascend Data Center Solution)version 7.5 does not match, the version of software package expect one of "
    "['7.2', '7.3'].": {"ascend package": "7.5", "mindspore": "2.3.1"},
    "MindSpore version: 2.10.0": {"mindspore": "2.10.0"},
    "MindSpore version:  1.8.1": {"mindspore": "1.8.1"},
    "engine mindspore_1.3.0-cann_5.0.2-py_3.7-euler_2.8.3-aarch64": {"cann": "5.0.2", "mindspore": "1.3.0"},
    "export PATH=/usr/local/Ascend/ascend-toolkit/5.1.RC1/bin:/usr/bin": {"cann": "5.1.RC1"},
    "source /usr/local/Ascend/cann-8.5.0/set_env.sh": {"cann": "8.5.0"},
    "CANN version: 7.0.RC1.3": {"cann": "7.0.RC1.3"},
    "[0]<stdout>:TensorFlow version: 2.12.1": {"tensorflow": "2.12.1"},
    "PaddlePaddle version: 3.3.1": {"paddle": "3.3.1"},
    "[2022/04/04 17:51:12] root INFO: paddle version is 2.4.0-rc0": {"paddle": "2.4.0-rc0"},
    "Horovod v0.28.1:": {"horovod": "0.28.1"},
    "PyTorch version: 2.1.0+cpu": {"torch": "2.1.0+cpu"},
}
SILENT = (
    "| npu-smi xxx.xxx.xxx                Version: xxx.xxx.xxx               |",
    "source /usr/local/Ascend/ascend-toolkit/latest/set_env.sh",
    "Requirement already satisfied: mindspore>=1.3.0",
    "Please make sure Ascend AI software package (Ascend Data Center Solution) version is supported.",
    "the version of software package expect one of ['7.2', '7.3']",
    "MindSpore version is not known",
    "rank table version: 1.0",
    "TensorFlow version: nightly",
    "epoch: 1 step: 195, loss is 1.9601055",
    "we upgraded the driver version 21",
)


@pytest.mark.parametrize(("line", "expected"), SAID.items(), ids=range(len(SAID)))
def test_a_line_that_names_the_software_and_its_version_is_understood(line: str, expected: dict[str, str]) -> None:
    assert software_versions(line) == expected


@pytest.mark.parametrize("line", SILENT)
def test_a_line_that_only_looks_like_it_is_not(line: str) -> None:
    assert software_versions(line) == {}


def test_ranks_that_say_the_same_count_once_and_those_that_differ_all_show() -> None:
    assert software_versions("MindSpore version: 1.3.0\n" * 3) == {"mindspore": "1.3.0"}
    assert software_versions("MindSpore version: 1.5.0\nMindSpore version: 1.3.0\n") == {"mindspore": "1.3.0, 1.5.0"}


@given(st.text())
def test_any_text_may_be_asked(text: str) -> None:
    assert all(expected for expected in software_versions(f"version {text}").values())


def test_a_long_line_costs_no_more_than_its_beginning() -> None:
    assert software_versions("MindSpore version: 1.3.0 " + "version 1." * 1_000_000) == {"mindspore": "1.3.0"}
    assert software_versions("cann " * 1_000_000 + "CANN version: 7.0.1") == {}
