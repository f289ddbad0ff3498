"""ResNet-50 on CIFAR-10 with MindSpore, after its tutorial "Using MindSpore on the cloud".

``--data_url`` holds CIFAR-10's binary version in the folders ``train/`` and ``eval/``; one card trains on all of it,
several share it. ``--synthetic=N`` trains on N generated images of that format instead.
"""

from __future__ import annotations

from pathlib import Path
from tempfile import TemporaryDirectory
from typing import TYPE_CHECKING, Any

import network_arguments
from cifar10 import SIZE, eval_records, generate, train_records
from collective import joined
from contract import Job, run
from fitting import arguments, data_folder, generated, yes
from looks import CLASSES

if TYPE_CHECKING:
    import argparse

    from cifar10 import Records

FILES = 5  # of the train set
MEAN, DEVIATION = [0.4914, 0.4822, 0.4465], [0.2023, 0.1994, 0.2010]


def records(job: Job) -> tuple[Records, Records]:
    """To train on, and to judge by."""
    if not job.arguments.synthetic:
        folder = Path(data_folder(job))
        return train_records(folder), eval_records(folder)
    with TemporaryDirectory(prefix="cifar10-") as made:
        generate(Path(made), job.arguments.seed, -(-generated(job) // FILES), looks=1)
        return train_records(Path(made)), eval_records(Path(made))


def pictures(rows: Records) -> tuple[Any, Any]:
    """Images as (n, 32, 32, 3) of bytes, and their labels."""
    planes = rows[:, 1:].reshape(-1, 3, SIZE, SIZE)
    return planes.transpose(0, 2, 3, 1).copy(), rows[:, 0].astype("int32")


def data(job: Job) -> tuple[Any, Any]:
    from images import batches, normalized, slices, vision

    options = job.arguments
    train, held_out = records(job)
    augmented = [vision.RandomCrop(SIZE, 4), vision.RandomHorizontalFlip()] if options.augment else []
    sized = [vision.Resize((options.image_size, options.image_size))] if options.image_size != SIZE else []
    ready = [*sized, *normalized(MEAN, DEVIATION)]
    return (
        batches(slices(*pictures(train), job, training=True), [*augmented, *ready], job, training=True),
        batches(slices(*pictures(held_out), job, training=False), ready, job, training=False),
    )


def main(job: Job) -> None:
    options = job.arguments
    with joined(job) as target:
        import classifying
        from resnet import ResNet

        network = ResNet(options.blocks, options.width, options.image_size, CLASSES)
        classifying.train(job, target, network, data(job), CLASSES)


def parser() -> argparse.ArgumentParser:
    options = arguments(epochs=92, batch_size=32, learning_rate=0.1)
    network_arguments.add(options, image_size=224)
    options.add_argument("--augment", type=yes, default=True, help="crop and mirror the images at random")
    return options


if __name__ == "__main__":
    run(parser(), main)
