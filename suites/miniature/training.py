"""Data-parallel training: the same global batch, and so the same result, however many ranks share it.

A global batch of B samples is made of B streams. A stream holds samples of one kind only (a class, a dialect) and gives
one of them per step. Rank r holds the r-th slice of the streams and nothing else: what the other kinds look like it can
only learn through the gradients of the others. Good accuracy is thus evidence that the exchange works.
"""

from __future__ import annotations

import argparse
import math
import time
from contextlib import closing
from statistics import median
from typing import TYPE_CHECKING, Any, Protocol

import numpy as np
from contract import ContractError, positive
from exchange import Exchange
from layers import flatten
from telling import judge, tell_miniature, tell_weights

if TYPE_CHECKING:
    from contract import Job
    from layers import Array, Labels, Parameter
    from numpy.typing import NDArray

    Inputs = NDArray[Any]
    Samples = tuple[Inputs, Labels]


MOMENTUM = np.float32(0.9)
WARM_UP = 0.1
LONGEST = 1.0
EVALUATED = 4  # of how many samples that are held out one is looked at after each epoch


class Network(Protocol):
    def parameters(self) -> list[Parameter]: ...

    def step(self, inputs: Inputs, labels: Labels) -> float:
        """Add the gradients of these samples; their loss. Both are sums over the samples."""
        ...

    def accuracy(self, inputs: Inputs, labels: Labels) -> float: ...


def arguments(epochs: int, learning_rate: float) -> argparse.ArgumentParser:
    """What every miniature may be told, with the defaults of this one."""
    parser = argparse.ArgumentParser(allow_abbrev=False)
    parser.add_argument("--epochs", type=positive, default=epochs)
    parser.add_argument("--batch_size", type=positive, default=64, help="of all ranks together")
    parser.add_argument("--learning_rate", type=float, default=learning_rate)
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--timeout", type=float, default=60.0, help="seconds to wait for another rank")
    return parser


def streams_of(job: Job) -> range:
    """The streams that this rank holds."""
    batch = job.arguments.batch_size
    if job.size > batch:
        raise ContractError(f"a batch of {batch} cannot be split over {job.size} ranks; raise --batch_size")
    return range(job.rank * batch // job.size, (job.rank + 1) * batch // job.size)


def train(job: Job, network: Network, shard: Samples, held_out: Samples) -> None:
    """Train on this rank's shard, arrays of (stream, sample, …); judge the network; write the results."""
    with closing(Exchange(job.rank, job.size, job.rendezvous, job.arguments.timeout)) as exchange:
        tell_miniature(job)
        job.write_throughput(descend(job, exchange, network, shard, held_out))
    if job.rank == 0:
        judge(job, network.accuracy(*held_out))


def descend(job: Job, exchange: Exchange, network: Network, shard: Samples, held_out: Samples) -> float:
    """Stochastic gradient descent with momentum; returns this rank's throughput.

    After each epoch a part of what is held out tells how far the training is; no clock of the throughput runs then.
    """
    options, streams, (inputs, labels) = job.arguments, streams_of(job), shard
    steps = inputs.shape[1]  # of an epoch: every stream gives one sample per step
    weights, gradients = flatten(network.parameters())
    velocity = np.zeros_like(weights)
    message = np.zeros(gradients.size + 1, np.float32)  # the loss travels with the gradients
    busy: list[float] = []
    wall = 0.0
    exchange.broadcast(weights)
    began, started = time.time(), time.perf_counter()
    for epoch in range(options.epochs):
        exchange.sum(np.zeros(1, np.float32))  # nobody's clock starts before everybody is there
        epoch_started = time.perf_counter()
        picks = np.stack([np.random.default_rng([options.seed, epoch, s]).permutation(steps) for s in streams])
        for step in range(steps):
            step_started = time.perf_counter()
            mine = np.arange(len(streams)), picks[:, step]
            gradients[:] = 0
            message[-1] = network.step(inputs[mine], labels[mine])
            message[:-1] = gradients
            busy.append(time.perf_counter() - step_started)
            exchange.sum(message)
            message /= np.float32(options.batch_size)
            done = (epoch + step / steps) / options.epochs
            velocity *= MOMENTUM
            velocity += clip(message[:-1])
            weights -= np.float32(options.learning_rate * schedule(done)) * velocity
        took = time.perf_counter() - epoch_started
        wall += took
        print(f"epoch: {epoch + 1} step: {steps}, loss is {message[-1]:.7g}")
        print(f"Train epoch time: {took * 1000:.3f} ms, per step time: {took * 1000 / steps:.3f} ms", flush=True)
        if job.rank == 0:
            learnt = network.accuracy(*(part[::EVALUATED] for part in held_out))
            elapsed = time.perf_counter() - started
            print(f"eval epoch: {epoch + 1}, accuracy: {learnt:.7g}, elapsed: {elapsed:.3f} s", flush=True)
    taken = options.epochs * steps  # steps, each with one sample of every stream
    rate = throughput(exchange, taken * options.batch_size / wall, len(streams) / median(busy))
    print(
        f"train done starttime:{began} endtime:{began + wall} stepsize:{steps} batchsize:{len(streams)} "
        f"epochsize:{options.epochs} alldatasum:{taken * len(streams)} single_throughput_rate:{rate}"
    )
    tell_weights([weights])
    return rate


def throughput(exchange: Exchange, cluster: float, speed: float) -> float:
    """This rank's part of the cluster's throughput, given its own speed; both in samples per second.

    In synchronous training everybody waits for the slowest: samples over wall time would be the same on all
    ranks, and would hide it. Samples over computing time would show it, but their sum would claim a rate that
    the cluster never had. So the cluster's true rate, all samples over wall time, is shared out by how fast each
    rank computes: the sum is honest, and a slow rank is seen. A rank's speed is that of its median step: where
    ranks outnumber cores, a mean would mostly tell who was preempted.
    """
    totals = np.array([cluster, speed], np.float32)
    exchange.sum(totals)
    clusters, speeds = float(totals[0]), float(totals[1])
    return clusters / exchange.size * (speed / speeds)  # the clocks differ a little: take their mean


def schedule(done: float) -> float:
    """The learning rate, as a part of its peak, over the training: a short warm-up, then half a cosine."""
    return min(1.0, done / WARM_UP + 0.1) * 0.5 * (1 + math.cos(math.pi * done))


def clip(gradient: Array) -> Array:
    """Shorten an outlier to the longest step that is taken in one go."""
    norm = float(np.linalg.norm(gradient))
    return gradient if norm <= LONGEST else gradient * np.float32(LONGEST / norm)
