"""Why a job failed: the first error of the rank that failed first, in texts that frameworks really printed."""

from __future__ import annotations

from pathlib import Path

import pytest

from pytest_aisbench.traininglog.failure import first_error, read_errors

LOGS = Path(__file__).parents[1] / "data" / "failures"


def reason(text: str) -> str:
    return str(read_errors(text.splitlines()).best() or "")


@pytest.mark.parametrize(
    ("name", "told"),
    [
        (
            "mindspore_data",
            (
                "RuntimeError: Exception thrown from dataset pipeline. Invalid cifar10 file, failed to read data from: "
                "cifar/data_batch_1.bin, re-download dataset(make sure it is CIFAR-10 binary version)."
            ),
        ),
        (
            "mindspore_function",
            (
                "RuntimeError: Exception thrown from user defined Python function in dataset. "
                "ValueError: Unable to avoid copy while creating an array as requested."
            ),
        ),
        (
            "mindspore_graph",
            "RuntimeError: For 'MatMulExt' op, shape1[-1] must be equal to shape2[-2], but got 3 and 2.",
        ),
        (
            "cann_ranktable",
            (
                "RuntimeError: Ascend collective communication initialization failed. EI0004: The ranktable is invalid,"
                "Reason:[Use a rank ID that exceeds the rank size in the ranktable.]. Please check the configured "
                'ranktable. [{"server_count":"1","server_list":[]}]'
            ),
        ),
        ("cann_inner", "E39999: Inner Error! TsdOpen failed. devId=0, tdt error=31"),
        (
            "cann_run_task",
            (
                "RuntimeError: Run task error! EE9999: Inner Error, Please contact support engineer! Task execute "
                "failed, base info: device_id=0, stream_id=2, task_id=3, flip_num=0, task_type=3."
            ),
        ),
        (
            "hccl_socket",
            (
                "RuntimeError: InnerRunOpApi:torch_npu/csrc/framework/OpParamMaker.cpp:281 OPS function error: "
                "HcclAllreduce, error code is 6: EI0006: Getting socket times out. Reason: Remote Rank did not send "
                "the data in time. Please check the reason for the rank being stuck"
            ),
        ),
        (
            "hccl_socket_named",
            (
                "Get_Socket_Timeout(EI0006): Getting socket times out. Reason: 1. The remote does not initiate a "
                "connect request. some NPUs in the cluster are abnormal."
            ),
        ),
        ("horovodrun", "RuntimeError: worker absolutely refuses to be rank 2"),
        ("mpirun", "FileNotFoundError: [Errno 2] No such file or directory: 'train.npz'"),
        ("torchrun_exception", "FileNotFoundError: no images in /data/train"),
        ("torchrun_recorded", "ValueError: batch_size 7 does not divide 100 samples"),
        ("torchrun_signal", "rank 1: Signal 9 (SIGKILL) received by PID 26180"),
    ],
)
def test_the_reason_is_the_first_error_of_the_rank_that_failed_first(name: str, told: str) -> None:
    assert reason((LOGS / f"{name}.log").read_text()) == told


@pytest.mark.parametrize(
    ("text", "told"),
    [
        # Another rank prints between the lines of a traceback, and after it.
        (
            "Traceback (most recent call last):\nrank 1 of 2\n  File \"a.py\", line 1\nEpoch: 3\nKeyError: 'x'\nbye",
            "KeyError: 'x'",
        ),
        ("[ERROR] rank 1: RANK_ID is 4, which is no rank among RANK_SIZE=4\nrank 0 of 4", "[ERROR] rank 1: RANK_ID is"),
        ("usage: train.py [-h]\ntrain.py: error: unrecognized arguments: --x\nend", "train.py: error: unrecognized"),
        ("error: DATASET_PATH=/tmp/x is not a directory\ndone", "error: DATASET_PATH=/tmp/x is not a directory"),
        ("run.sh: line 5:   123 Killed                  python train.py\nend", "run.sh: line 5:   123 Killed"),
        (
            '  File "/home/work/train.py", line 3\n    x = = 1\n        ^\nSyntaxError: invalid syntax\nrank 1 of 2',
            "SyntaxError: invalid syntax",
        ),
        ("python: error while loading shared libraries: libhccl.so: cannot open\nend", "python: error while loading"),
        (
            (
                "C++ Traceback (most recent call last):\n--------------------------------------\n0   paddle::TraceOp\n"
                "----------------------\nError Message Summary:\n----------------------\nResourceExhaustedError: \n\n"
                "Out of memory error on GPU 0. Cannot allocate 2.0GB memory on GPU 0\nend"
            ),
            "ResourceExhaustedError: Out of memory error on GPU 0.",
        ),
        (
            "slurmstepd: error: Detected 1 oom-kill event(s) in StepId=7.0\nend",
            "slurmstepd: error: Detected 1 oom-kill",
        ),
        ("cp: error writing '/cache/x': No space left on device\nend", "cp: error writing '/cache/x': No space left"),
        ("terminate called after throwing an instance of 'std::bad_alloc'\n  what():  std::bad_alloc\n", "terminate "),
        ("subprocess.TimeoutExpired: not in a traceback\nend", ""),
        ("epoch 1: error rate 0.5, errors: 3\nErrors so far: none\nend", ""),
    ],
)
def test_other_errors_are_told_from_other_lines(text: str, told: str) -> None:
    assert reason(text).startswith(told)
    assert bool(reason(text)) == bool(told)


RAISED = 'Traceback (most recent call last):\n  File "a.py", line 1, in <module>\n    f()\n'


def test_of_chained_exceptions_the_cause_counts_and_a_handled_one_does_not() -> None:
    caused = "\nThe above exception was the direct cause of the following exception:\n\n"
    handled = "\nDuring handling of the above exception, another exception occurred:\n\n"
    assert reason(f"{RAISED}OSError: first\n{caused}{RAISED}ValueError: second\n") == "OSError: first"
    assert reason(f"{RAISED}KeyError: 'a'\n{handled}{RAISED}ValueError: second\n") == "ValueError: second"


def test_an_exception_without_a_message_takes_none_from_the_next_line() -> None:
    assert reason(f"{RAISED}AssertionError\nbye\n") == "AssertionError"


def test_a_rank_that_trains_on_has_survived_its_error() -> None:
    survived = "".join(f"[0]<stderr>:{line}\n" for line in f"{RAISED}OSError: slow disk".splitlines())
    goes_on = "[0]<stdout>:epoch: 1 step: 10, loss is 2.5\n"
    fatal = "".join(f"[0]<stderr>:{line}\n" for line in f"{RAISED}ValueError: no data".splitlines())
    assert reason(survived + goes_on + fatal) == "ValueError: no data"
    assert reason(survived + fatal) == "OSError: slow disk"


def test_the_node_with_the_cause_is_named_rather_than_one_that_waited_for_it() -> None:
    waited = read_errors((LOGS / "hccl_socket.log").read_text().splitlines())
    broken = read_errors((LOGS / "cann_ranktable.log").read_text().splitlines())
    chosen = first_error([("worker-0.log", waited), ("worker-1.log", broken)])
    assert chosen
    assert chosen[0] == "worker-1.log"
    assert first_error([("worker-0.log", read_errors(["all is well"]))]) is None
