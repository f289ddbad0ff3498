"""A MindSpore training as AIS-Bench measures it: its log lines, its throughput over the whole training."""

from __future__ import annotations

import argparse
import math
import time
from typing import TYPE_CHECKING, Any

import numpy as np
from collective import meet
from contract import ContractError, positive
from telling import report

if TYPE_CHECKING:
    from contract import Job

WARM_UP = 0.1
LEAST = 30  # steps of an epoch on generated data


def yes(text: str) -> bool:
    """A switch as hyper-parameters on ModelArts are written: `True`, `true`, `false`."""
    words = {"true": True, "1": True, "false": False, "0": False}
    if text.lower() not in words:
        raise argparse.ArgumentTypeError(f"{text!r} is neither true nor false")
    return words[text.lower()]


def arguments(epochs: int, batch_size: int, learning_rate: float) -> argparse.ArgumentParser:
    """What every one of these scripts may be told, with the defaults of this one."""
    parser = argparse.ArgumentParser(allow_abbrev=False)
    parser.add_argument("--epoch_size", type=positive, default=epochs)
    parser.add_argument("--batch_size", type=positive, default=batch_size, help="of each rank")
    parser.add_argument("--learning_rate", type=float, default=learning_rate, help="its peak")
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--synthetic", type=int, default=0, help="train on so many generated samples, not on data_url")
    parser.add_argument("--device_target", choices=["Ascend", "CPU"], default="", help="default: what the node has")
    return parser


def data_folder(job: Job) -> str:
    """Of the data set, where none is generated."""
    if not job.arguments.data_url:
        raise ContractError("there are no data: give --data_url, or --synthetic=N for a generated set of N samples")
    return str(job.arguments.data_url)


def generated(job: Job) -> int:
    """As many samples as told; or more, where many ranks would share them in too few steps to learn anything."""
    samples, batch = int(job.arguments.synthetic), int(job.arguments.batch_size)
    return samples if job.size == 1 else max(samples, LEAST * batch * job.size)


def steps_of(data: Any, job: Job) -> int:
    """Of an epoch; an epoch without one is the user's to mend."""
    steps = int(data.get_dataset_size())
    if not steps:
        batch, size = job.arguments.batch_size, job.size
        raise ContractError(f"the data set is too small for {size} ranks with a batch of {batch}; lower --batch_size")
    return steps


def learning_rates(peak: float, steps: int) -> np.ndarray[Any, np.dtype[np.float32]]:
    """For every step of the training: a short warm-up, then half a cosine."""
    done = np.arange(steps, dtype=np.float32) / steps
    rates = peak * np.minimum(1.0, done / WARM_UP + 0.01) * 0.5 * (1 + np.cos(math.pi * done))
    return np.asarray(rates, np.float32)


def fit(
    job: Job, model: Any, data: Any, epochs: int, callbacks: list[Any], *, sink: bool, steps: int, every: int = 0
) -> None:
    """Train, say how it went as AIS-Bench does, and write this rank's throughput.

    The clock runs from the first step to the last, compilation included. ``steps`` are those of an epoch, or of a sink;
    the loss is said after ``every`` so many, or after each epoch.
    """
    from mindspore.train.callback import LossMonitor, TimeMonitor

    callbacks = [TimeMonitor(data_size=steps), LossMonitor(per_print_times=every or steps), *callbacks]
    meet(job)  # nobody's clock starts before everybody is there
    began, started = time.time(), time.perf_counter()
    model.train(epochs, data, callbacks=callbacks, dataset_sink_mode=sink, sink_size=steps if sink else -1)
    batch = job.arguments.batch_size * getattr(job.arguments, "accumulation_steps", 1)
    report(job, began, time.perf_counter() - started, steps=steps, batch=batch, epochs=epochs)


def weights_of(network: Any) -> list[Any]:
    return [parameter.asnumpy() for parameter in network.trainable_params()]
