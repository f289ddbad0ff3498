"""ResNet of bottlenecks in MindSpore: (3, 4, 6, 3) blocks of width 64 are ResNet-50, fewer and narrower fit a CPU."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from mindspore import nn, ops
from mindspore.common.initializer import HeNormal

if TYPE_CHECKING:
    from collections.abc import Sequence

EXPANSION = 4  # of a bottleneck's outputs, in its widths
LARGE = 64  # pixels from which an image is reduced by the stem, as ImageNet's are


def convolution(inputs: int, outputs: int, kernel: int, stride: int = 1) -> Any:
    initial = HeNormal(mode="fan_out", nonlinearity="relu")
    return nn.Conv2d(inputs, outputs, kernel, stride, pad_mode="same", weight_init=initial)


class Bottleneck(nn.Cell):
    def __init__(self, inputs: int, width: int, stride: int) -> None:
        super().__init__()
        outputs = EXPANSION * width
        self.branch = nn.SequentialCell([
            *(convolution(inputs, width, 1), nn.BatchNorm2d(width), nn.ReLU()),
            *(convolution(width, width, 3, stride), nn.BatchNorm2d(width), nn.ReLU()),
            # A branch that begins as nothing lets the gradients of a deep network through from the start.
            *(convolution(width, outputs, 1), nn.BatchNorm2d(outputs, gamma_init="zeros")),
        ])  # fmt: skip
        self.changes = stride != 1 or inputs != outputs
        self.shortcut: Any = None
        if self.changes:
            self.shortcut = nn.SequentialCell([convolution(inputs, outputs, 1, stride), nn.BatchNorm2d(outputs)])
        self.relu = nn.ReLU()

    def construct(self, x: Any) -> Any:
        kept = self.shortcut(x) if self.changes else x
        return self.relu(self.branch(x) + kept)


class ResNet(nn.Cell):
    def __init__(self, blocks: Sequence[int], width: int, image_size: int, classes: int) -> None:
        super().__init__()
        if image_size >= LARGE:
            stem = [convolution(3, width, 7, 2), nn.BatchNorm2d(width), nn.ReLU(), nn.MaxPool2d(3, 2, "same")]
        else:
            stem = [convolution(3, width, 3), nn.BatchNorm2d(width), nn.ReLU()]
        inputs, stages = width, []
        for stage, count in enumerate(blocks):
            for block in range(count):
                stages.append(Bottleneck(inputs, width << stage, 2 if stage and not block else 1))
                inputs = EXPANSION * (width << stage)
        self.features = nn.SequentialCell(stem + stages)
        self.pool = ops.ReduceMean(keep_dims=False)
        self.scores = nn.Dense(inputs, classes)

    def construct(self, x: Any) -> Any:
        return self.scores(self.pool(self.features(x), (2, 3)))
