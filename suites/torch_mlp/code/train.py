"""A perceptron with PyTorch's DistributedDataParallel; `launch.py` starts it for each card.

A rank generates the points of its own classes, so that the accuracy says whether the gradients were exchanged.
"""

from __future__ import annotations

import importlib.util
import os
import sys
import time
from pathlib import Path
from typing import TYPE_CHECKING, Any

from contract import ContractError, Job, answer_for, number, positive
from launching import read_rank
from points import CLASSES, FEATURES, held_out, shard
from telling import judge, report, tell_version, tell_weights
from training import arguments

if TYPE_CHECKING:
    import argparse
    from collections.abc import Mapping, Sequence

MODEL = "mlp.pt"
MOMENTUM = 0.9


def parser() -> argparse.ArgumentParser:
    options = arguments(epochs=6, learning_rate=0.1)
    options.add_argument("--hid_dim", type=positive, default=1280, help="of the two hidden layers")
    return options


def read(argv: Sequence[str], environment: Mapping[str, str]) -> Job:
    return read_rank(parser(), argv, environment, rank="RANK", size="WORLD_SIZE")


def require_torch() -> None:
    if importlib.util.find_spec("torch") is None:
        raise ContractError(f"torch is not installed for {sys.executable}")


def place(card: int) -> tuple[Any, str]:
    """The device of this rank, and how it exchanges with the others."""
    import torch

    if torch.cuda.is_available():
        torch.cuda.set_device(card)
        return torch.device("cuda", card), "nccl"
    if importlib.util.find_spec("torch_npu"):
        import torch_npu

        torch_npu.npu.set_device(card)
        return torch.device("npu", card), "hccl"
    return torch.device("cpu"), "gloo"


def main(job: Job) -> None:
    require_torch()
    import torch
    from torch import distributed
    from torch.nn.parallel import DistributedDataParallel

    tell_version(job, "torch", torch.__version__)
    options = job.arguments
    device, backend = place(number(os.environ, "LOCAL_RANK", 0))
    distributed.init_process_group(backend)
    torch.manual_seed(options.seed)
    network = perceptron(options.hid_dim).to(device)
    fit(job, DistributedDataParallel(network), tuple(torch.from_numpy(part).to(device) for part in shard(job)))
    distributed.destroy_process_group()
    tell_weights(weight.detach().cpu().numpy() for weight in network.parameters())
    if job.rank == 0:
        judge(job, accuracy(job, network, device))
        torch.save(network.state_dict(), Path(job.train_url) / MODEL)


def perceptron(hidden: int) -> Any:
    """Its weights start large enough for tanh to bend: what is odd all through cannot know a pattern's negative."""
    from torch import nn

    def linear(inputs: int, outputs: int, gain: float) -> Any:
        made = nn.Linear(inputs, outputs)
        nn.init.normal_(made.weight, std=gain * (2.0 / inputs) ** 0.5)
        nn.init.zeros_(made.bias)
        return made

    return nn.Sequential(
        *(linear(FEATURES, hidden, 0.7), nn.Tanh()),
        *(linear(hidden, hidden, 0.7), nn.Tanh()),
        linear(hidden, CLASSES, 0.1),
    )


def fit(job: Job, network: Any, data: tuple[Any, ...]) -> None:
    """Train, and write this rank's throughput: all its samples over all its seconds, waiting included."""
    import torch

    (inputs, labels), epochs = data, job.arguments.epochs
    batch, steps = inputs.shape[:2]
    optimizer = torch.optim.SGD(network.parameters(), job.arguments.learning_rate, momentum=MOMENTUM)
    rates = torch.optim.lr_scheduler.CosineAnnealingLR(optimizer, epochs * steps)
    torch.distributed.barrier()  # nobody's clock starts before everybody is there
    began, started = time.time(), time.perf_counter()
    for epoch in range(epochs):
        epoch_started = time.perf_counter()
        losses = []
        for step in range(steps):
            loss = torch.nn.functional.cross_entropy(network(inputs[:, step]), labels[:, step])
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
            rates.step()
            losses.append(loss.detach())
        last, mean = float(losses[-1]), float(torch.stack(losses).mean())
        cost = (time.perf_counter() - epoch_started) / steps
        print(f"Epoch: [{epoch}][{steps}/{steps}]\tTime {cost:.5f}\tLoss {last:.5f} ({mean:.5f})", flush=True)
    report(job, began, time.perf_counter() - started, steps=steps, batch=batch, epochs=epochs)


def accuracy(job: Job, network: Any, device: Any) -> float:
    import torch

    inputs, labels = held_out(job)
    with torch.no_grad():
        predicted = network(torch.from_numpy(inputs).to(device)).argmax(dim=-1).cpu().numpy()
    return float((predicted == labels).mean())


if __name__ == "__main__":
    answer_for(lambda: main(read(sys.argv[1:], os.environ)), os.environ.get("RANK", "0"))
