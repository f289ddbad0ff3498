"""A perceptron with PaddlePaddle and fleet, after the guide to ModelArts; `launch.py` starts it for each card.

The guide trains on labels drawn at random, of which nothing can be learnt. Here a rank generates the points of its own
classes, so that the accuracy says whether the gradients were exchanged.
"""

from __future__ import annotations

import importlib.util
import os
import sys
import time
from pathlib import Path
from typing import TYPE_CHECKING, Any

from contract import ContractError, Job, answer_for, positive
from launching import read_rank
from points import CLASSES, FEATURES, held_out, shard
from telling import judge, report, tell_version, tell_weights
from training import arguments

if TYPE_CHECKING:
    import argparse
    from collections.abc import Mapping, Sequence

MODEL = "mlp.pdparams"
MOMENTUM = 0.9


def parser() -> argparse.ArgumentParser:
    options = arguments(epochs=6, learning_rate=0.1)
    options.add_argument("--hid_dim", type=positive, default=1280, help="of the two hidden layers")
    return options


def read(argv: Sequence[str], environment: Mapping[str, str]) -> Job:
    return read_rank(parser(), argv, environment, rank="PADDLE_TRAINER_ID", size="PADDLE_TRAINERS_NUM")


def require_paddle() -> None:
    if importlib.util.find_spec("paddle") is None:
        raise ContractError(f"paddle is not installed for {sys.executable}")


def main(job: Job) -> None:
    require_paddle()
    import paddle
    from paddle.distributed import fleet

    tell_version(job, "paddle", paddle.__version__)
    options = job.arguments
    if os.environ.get("PADDLE_DISTRI_BACKEND") == "gloo":
        meet_once(job.size)
    fleet.init(is_collective=True)
    if fleet.worker_index() != job.rank or fleet.worker_num() != job.size:
        seen = f"{fleet.worker_index()} of {fleet.worker_num()}"
        raise ContractError(f"fleet counts this rank as {seen}, the launcher as {job.rank} of {job.size}")
    paddle.seed(options.seed)
    network = perceptron(options.hid_dim)
    inputs, labels = shard(job)
    steps = inputs.shape[1]
    rates = paddle.optimizer.lr.CosineAnnealingDecay(options.learning_rate, options.epochs * steps)
    optimizer = paddle.optimizer.Momentum(rates, MOMENTUM, parameters=network.parameters())
    trained = network
    if job.size > 1:  # for a rank alone fleet takes every model for a pipeline
        trained, optimizer = fleet.distributed_model(network), fleet.distributed_optimizer(optimizer)
    fit(job, trained, optimizer, rates, (paddle.to_tensor(inputs), paddle.to_tensor(labels)))
    tell_weights(parameter.numpy() for parameter in network.parameters())
    if job.rank == 0:
        judge(job, accuracy(job, network))
        paddle.save(network.state_dict(), str(Path(job.train_url) / MODEL))


def meet_once(size: int) -> None:
    """Let fleet use the group of all ranks that is there, where it would make another.

    PaddlePaddle 3.3 keeps the addresses of every gloo group by the same keys. Who comes first to a second group of the
    same ranks reads addresses of the first, is refused there or waits for ever: of ten trainings, three.
    """
    import paddle

    made = paddle.distributed.new_group

    def new_group(ranks: Any = None, *more: Any, **named: Any) -> Any:
        everybody = size > 1 and list(ranks or []) == list(range(size))
        return paddle.distributed.get_group(0) if everybody else made(ranks, *more, **named)

    paddle.distributed.new_group = new_group


def perceptron(hidden: int) -> Any:
    """Its weights start large enough for tanh to bend: what is odd all through cannot know a pattern's negative."""
    from paddle import nn

    def linear(inputs: int, outputs: int, gain: float) -> Any:
        spread = nn.initializer.Normal(std=gain * (2.0 / inputs) ** 0.5)
        return nn.Linear(inputs, outputs, weight_attr=spread)

    return nn.Sequential(
        *(linear(FEATURES, hidden, 0.7), nn.Tanh()),
        *(linear(hidden, hidden, 0.7), nn.Tanh()),
        linear(hidden, CLASSES, 0.1),
    )


def fit(job: Job, network: Any, optimizer: Any, rates: Any, data: tuple[Any, Any]) -> None:
    """Train, and write this rank's throughput: all its samples over all its seconds, waiting included."""
    import paddle

    (inputs, labels), epochs = data, job.arguments.epochs
    batch, steps = inputs.shape[:2]
    if job.size > 1:
        paddle.distributed.barrier()  # nobody's clock starts before everybody is there
    began, started = time.time(), time.perf_counter()
    for epoch in range(epochs):
        epoch_started = time.perf_counter()
        loss = paddle.zeros([])
        for step in range(steps):
            loss = paddle.nn.functional.cross_entropy(network(inputs[:, step]), labels[:, step])
            loss.backward()
            optimizer.step()
            optimizer.clear_grad()
            rates.step()
        cost = (time.perf_counter() - epoch_started) / steps
        print(
            f"[Train][Epoch {epoch + 1}/{epochs}][Iter: {steps}/{steps}]lr: {optimizer.get_lr():.5f}, "
            f"loss: {float(loss):.5f}, batch_cost: {cost:.5f}s, ips: {batch / cost:.5f} samples/sec",
            flush=True,
        )
    wall = time.perf_counter() - started
    report(job, began, wall, steps=steps, batch=batch, epochs=epochs)


def accuracy(job: Job, network: Any) -> float:
    import paddle

    network.eval()
    inputs, labels = held_out(job)
    predicted = network(paddle.to_tensor(inputs)).numpy().argmax(axis=-1)
    right = float((predicted == labels).mean())
    print(f"[Eval][Epoch {job.arguments.epochs}][Avg]top1: {right:.5f}", flush=True)
    return right


if __name__ == "__main__":
    answer_for(lambda: main(read(sys.argv[1:], os.environ)), os.environ.get("PADDLE_TRAINER_ID", "0"))
