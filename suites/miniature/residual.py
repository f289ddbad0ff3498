"""A residual convolution network, ResNet-50's smallest relative: stem, residual blocks, pooling, classifier."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np
from layers import LayerNorm, Linear, Relu, cross_entropy

if TYPE_CHECKING:
    from layers import Array, Labels, Layer, Parameter


class Patches:
    """A convolution whose stride is its kernel: cut the image into patches and multiply each by the same weights."""

    def __init__(self, rng: np.random.Generator, size: int, inputs: int, outputs: int) -> None:
        self.size, self.inputs = size, inputs
        self.linear = Linear(rng, size * size * inputs, outputs)

    def parameters(self) -> list[Parameter]:
        return self.linear.parameters()

    def forward(self, x: Array) -> Array:
        n, h, w, c = x.shape
        self.shape, s = x.shape, self.size
        grid = x.reshape(n, h // s, s, w // s, s, c).transpose(0, 1, 3, 2, 4, 5)
        return self.linear.forward(grid.reshape(n, h // s, w // s, s * s * c))

    def backward(self, dy: Array) -> Array:
        (n, h, w, c), s = self.shape, self.size
        d = self.linear.backward(dy).reshape(n, h // s, w // s, s, s, c)
        dx: Array = d.transpose(0, 1, 3, 2, 4, 5).reshape(n, h, w, c)
        return dx


class Convolution:
    """3×3, zero padding of one, by im2col: gather the nine neighbours of each pixel, then one multiplication."""

    def __init__(self, rng: np.random.Generator, inputs: int, outputs: int, stride: int = 1) -> None:
        self.stride = stride
        self.linear = Linear(rng, 9 * inputs, outputs)

    def parameters(self) -> list[Parameter]:
        return self.linear.parameters()

    def _windows(self, padded: Array) -> list[Array]:
        """The nine shifted views of the padded image, each as large as the output."""
        s, (h, w) = self.stride, (padded.shape[1] - 2, padded.shape[2] - 2)
        return [padded[:, i : i + h : s, j : j + w : s] for i in range(3) for j in range(3)]

    def forward(self, x: Array) -> Array:
        n, h, w, c = x.shape
        padded = np.zeros((n, h + 2, w + 2, c), np.float32)
        padded[:, 1:-1, 1:-1] = x
        self.padded_shape = padded.shape
        return self.linear.forward(np.concatenate(self._windows(padded), axis=-1))

    def backward(self, dy: Array) -> Array:
        padded = np.zeros(self.padded_shape, np.float32)
        columns = np.split(self.linear.backward(dy), 9, axis=-1)
        for window, d in zip(self._windows(padded), columns, strict=True):
            np.add(window, d, out=window)
        return padded[:, 1:-1, 1:-1]


class Block:
    """``relu(x + f(x))``; where the shape changes, the shortcut is a projection with the same stride."""

    def __init__(self, rng: np.random.Generator, inputs: int, outputs: int, stride: int = 1) -> None:
        self.branch: list[Layer] = [
            Convolution(rng, inputs, outputs, stride),
            LayerNorm(outputs),
            Relu(),
            Convolution(rng, outputs, outputs),
            LayerNorm(outputs),
        ]
        self.branch[-1].parameters()[0].value *= np.float32(0.5)  # a tame branch trains well from the first step
        self.shortcut = None if stride == 1 and inputs == outputs else Linear(rng, inputs, outputs)
        self.stride, self.relu = stride, Relu()

    def parameters(self) -> list[Parameter]:
        projection = self.shortcut.parameters() if self.shortcut else []
        return [p for layer in self.branch for p in layer.parameters()] + projection

    def forward(self, x: Array) -> Array:
        self.shape, y = x.shape, x
        for layer in self.branch:
            y = layer.forward(y)
        s = self.stride
        return self.relu.forward(y + (self.shortcut.forward(x[:, ::s, ::s]) if self.shortcut else x))

    def backward(self, dy: Array) -> Array:
        dy = self.relu.backward(dy)
        dx = dy
        for layer in reversed(self.branch):
            dx = layer.backward(dx)
        if self.shortcut:
            s = self.stride
            dx[:, ::s, ::s] += self.shortcut.backward(dy)
        else:
            dx = dx + dy
        return dx


class ResidualNet:
    """Images (n, height, width, channels) in, class scores out."""

    def __init__(self, rng: np.random.Generator, patch: int, width: int, classes: int, channels: int = 3) -> None:
        self.layers: list[Layer] = [
            Patches(rng, patch, channels, width),
            LayerNorm(width),
            Relu(),
            Block(rng, width, width),
            Block(rng, width, 2 * width, stride=2),
        ]
        self.classifier = Linear(rng, 2 * width, classes, gain=0.1)

    def parameters(self) -> list[Parameter]:
        return [p for layer in [*self.layers, self.classifier] for p in layer.parameters()]

    def scores(self, images: Array) -> Array:
        x = images
        for layer in self.layers:
            x = layer.forward(x)
        self.pooled_from = x.shape
        return self.classifier.forward(x.mean(axis=(1, 2)))

    def step(self, images: Array, labels: Labels) -> float:
        """Add this batch's gradients to the parameters'; its loss, summed over the samples."""
        loss, dscores = cross_entropy(self.scores(images), labels)
        n, h, w, c = self.pooled_from
        pooled = self.classifier.backward(dscores) / np.float32(h * w)
        dx: Array = np.broadcast_to(pooled[:, None, None, :], (n, h, w, c))
        for layer in reversed(self.layers):
            dx = layer.backward(dx)
        return loss

    def accuracy(self, images: Array, labels: Labels) -> float:
        return float((self.scores(images).argmax(axis=-1) == labels).mean())
