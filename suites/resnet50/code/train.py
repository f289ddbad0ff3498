"""ResNet-50 on ImageNet with MindSpore.

``--data_url`` holds the folders ``train/`` and ``val/``, and each of them one folder of images for every class.
``--synthetic=N`` writes N generated images in this layout first, and trains on those instead.
"""

from __future__ import annotations

from pathlib import Path
from tempfile import mkdtemp
from typing import TYPE_CHECKING, Any

import network_arguments
import numpy as np
from collective import joined
from contract import ContractError, Job, run
from fitting import arguments, data_folder, generated, yes
from textures import textures

if TYPE_CHECKING:
    import argparse

MEAN, DEVIATION = [0.485, 0.456, 0.406], [0.229, 0.224, 0.225]
MARGIN = 256 / 224  # of an image that is judged by its centre
KINDS = 4  # of generated images
NOISE = 0.3  # of them; a training on CPU is short
HELD_OUT = 8  # a part of so many is kept to judge by


def data_set(job: Job) -> Path:
    """The folder of the data set."""
    if not job.arguments.synthetic:
        return Path(data_folder(job))
    folder = Path(mkdtemp(prefix="images-"))
    count = max(1, generated(job) // KINDS)
    for part, (seed, each) in {"train": (1, count), "val": (2, -(-count // HELD_OUT))}.items():
        generate(folder / part, [job.arguments.seed, seed], each)
    return folder


def generate(folder: Path, seed: list[int], each: int) -> None:
    """So many images of each kind, in a folder of its own: some of the miniature's textures."""
    from PIL import Image

    for kind in range(KINDS):
        place = folder / f"n{kind:08d}"
        place.mkdir(parents=True)
        waves = textures([*seed, kind], 4 * kind, each, NOISE)
        for index, pixels in enumerate(np.clip(waves * 40 + 128, 0, 255).astype(np.uint8)):
            Image.fromarray(pixels).save(place / f"{index}.png")


def classes_of(folder: Path) -> list[str]:
    """What there is to tell apart; the two parts of the data set must agree on it."""
    for part in ("train", "val"):
        if not (folder / part).is_dir():
            raise ContractError(f"{folder / part} is missing: ImageNet was expected, in the folders train and val")
    trained, judged = (sorted(p.name for p in (folder / part).iterdir() if p.is_dir()) for part in ("train", "val"))
    if len(trained) < 2:
        raise ContractError(f"{folder / 'train'} holds {len(trained)} folders of images; it must be one for each class")
    strangers = sorted(set(judged) - set(trained))
    if strangers:
        raise ContractError(f"{folder / 'val'} has the class {strangers[0]}, which {folder / 'train'} does not")
    return trained


def data(job: Job, folder: Path, classes: list[str]) -> tuple[Any, Any]:
    import mindspore.dataset as ds
    from images import batches, normalized, shard, vision

    size, workers = job.arguments.image_size, job.arguments.workers
    ready = normalized(MEAN, DEVIATION)
    whole = [vision.Decode(), vision.Resize((size, size))]
    cropped = [vision.RandomCropDecodeResize(size, (0.08, 1.0), (0.75, 4 / 3)), vision.RandomHorizontalFlip()]
    centred = [vision.Decode(), vision.Resize(round(size * MARGIN)), vision.CenterCrop(size)]
    steps = {"train": cropped, "val": centred} if job.arguments.augment else {"train": whole, "val": whole}
    indices = {name: index for index, name in enumerate(classes)}

    def part(name: str) -> Any:
        training = name == "train"
        files = ds.ImageFolderDataset(
            str(folder / name),
            num_parallel_workers=workers,
            shuffle=training,
            class_indexing=indices,
            **shard(job, alone=not training),
        )
        return batches(files, [*steps[name], *ready], job, training=training)

    return part("train"), part("val")


def main(job: Job) -> None:
    options = job.arguments
    with joined(job) as target:
        import classifying
        from resnet import ResNet

        folder = data_set(job)
        classes = classes_of(folder)
        network = ResNet(options.blocks, options.width, options.image_size, len(classes))
        classifying.train(job, target, network, data(job, folder, classes), len(classes))


def parser() -> argparse.ArgumentParser:
    options = arguments(epochs=90, batch_size=256, learning_rate=0.8)
    network_arguments.add(options, image_size=224)
    options.add_argument("--augment", type=yes, default=True, help="crop and mirror the images at random")
    return options


if __name__ == "__main__":
    run(parser(), main)
