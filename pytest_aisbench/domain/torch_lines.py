"""What trainings say that torchrun starts. It adds the rank at most: the lines are those of PyTorch's own examples,
of torchvision's reference scripts, and of the Trainer of Transformers."""

from __future__ import annotations

import math
import re

from pytest_aisbench.domain.told import COUNT, NUMBER, Told, finite, milliseconds

# `Epoch: [0][ 10/5005]` of the ImageNet example, `Epoch: [0]  [  10/5005]` of torchvision: both count epochs from 0.
_BATCH = re.compile(rf"Epoch: \[{COUNT}\]\s{{0,8}}\[\s{{0,12}}{COUNT}/\d+\]")
# `Loss 2.2982e+00 (2.3368e+00)`, `loss: 2.2951 (2.3368)`: the newest, then its mean.
_METER = re.compile(rf"(?<!\S)(time|loss|img/s):?\s{{1,8}}{NUMBER}(?!\S)", re.IGNORECASE)
_TOP_1 = re.compile(rf"(?:\*|Test:)\s{{0,8}}(?:\w+\s{{0,8}})?(?:Acc|Prec)@1\s{{1,8}}{NUMBER} ")
_MNIST = re.compile(rf"Train Epoch: {COUNT} \[{COUNT}/\d+ \(\s*\d+%\)\]\s{{1,8}}Loss: {NUMBER}")
_MNIST_TEST = re.compile(rf"Test set: Average loss: \S+ Accuracy: {COUNT}/{COUNT} ")
# `{'loss': 10.61, 'epoch': 0.5}`, with quotes around the numbers since Transformers 5.
_LOGGED = re.compile(r"\{'(?:loss|eval_\w{1,40}|train_runtime)': ")
_ITEM = re.compile(rf"'(\w{{1,40}})': '?{NUMBER}(?=['}},])")
_MOST_EPOCHS = 100_000


def read(line: str) -> Told | None:
    if found := _BATCH.match(line):
        return _batch(int(found[1]) + 1, int(found[2]), line[found.end() :])
    if found := _TOP_1.match(line):
        percent = finite(found[1])
        return Told(accuracy=None if percent is None else percent / 100)
    if found := _MNIST.match(line):
        return Told(int(found[1]), int(found[2]), finite(found[3]), has_loss=True)
    if found := _MNIST_TEST.match(line):
        return Told(accuracy=int(found[1]) / int(found[2])) if int(found[2]) else None
    if found := _LOGGED.search(line):  # two ranks may write on one line
        return _logged({item[1]: finite(item[2]) for item in _ITEM.finditer(line, found.start())})
    return None


def _batch(epoch: int, step: int, text: str) -> Told:
    meters = {found[1].lower(): finite(found[2]) for found in reversed(list(_METER.finditer(text)))}
    return Told(
        epoch,
        step,
        meters.get("loss"),
        has_loss="loss" in meters,
        ms_per_step=milliseconds(meters.get("time")),
        throughput=meters.get("img/s"),
    )


def _logged(items: dict[str, float | None]) -> Told:
    """Of the first rank, for all of them; an epoch that is half done is `0.5`."""
    if "train_runtime" in items:
        return Told(total=items.get("train_samples_per_second"), final=True)
    number = items.get("epoch")
    epoch = max(1, math.ceil(number)) if number is not None and 0 <= number < _MOST_EPOCHS else None
    if "loss" in items:
        return Told(epoch, loss=items["loss"], has_loss=True)
    return Told(accuracy=items.get("eval_accuracy"))
