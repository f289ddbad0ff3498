"""The layers that the miniatures are built from: numpy forward passes, with their gradients written by hand.

Every layer keeps what its backward pass needs between ``forward`` and ``backward``, and adds to the gradients of
its parameters. Arrays are float32, the features are the last axis.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Protocol

import numpy as np

if TYPE_CHECKING:
    from collections.abc import Sequence

    from numpy.typing import NDArray

    Array = NDArray[np.float32]
    Labels = NDArray[np.int64]


class Parameter:
    """Weights and their gradient, both of them views into the network's flat buffers (see ``flatten``)."""

    def __init__(self, value: Array) -> None:
        self.value = value
        self.grad = np.zeros_like(value)


class Layer(Protocol):
    def parameters(self) -> list[Parameter]: ...
    def forward(self, x: Array) -> Array: ...
    def backward(self, dy: Array) -> Array: ...


def flatten(parameters: Sequence[Parameter]) -> tuple[Array, Array]:
    """Lay all weights, and all gradients, end to end: one buffer to exchange, and one to update."""
    weights = np.concatenate([p.value.ravel() for p in parameters])
    gradients = np.zeros_like(weights)
    start = 0
    for p in parameters:
        shape, end = p.value.shape, start + p.value.size
        p.value, p.grad = weights[start:end].reshape(shape), gradients[start:end].reshape(shape)
        start = end
    return weights, gradients


def normal(rng: np.random.Generator, shape: tuple[int, ...], deviation: float) -> Parameter:
    return Parameter(rng.standard_normal(shape, dtype=np.float32) * np.float32(deviation))


class Linear:
    """``y = x W + b`` over the last axis; ``gain`` scales He's initialisation."""

    def __init__(self, rng: np.random.Generator, inputs: int, outputs: int, gain: float = 1.0) -> None:
        self.weight = normal(rng, (inputs, outputs), gain * (2.0 / inputs) ** 0.5)
        self.bias = Parameter(np.zeros(outputs, np.float32))

    def parameters(self) -> list[Parameter]:
        return [self.weight, self.bias]

    def forward(self, x: Array) -> Array:
        self.x = x.reshape(-1, x.shape[-1])
        y: Array = self.x @ self.weight.value + self.bias.value
        return y.reshape(*x.shape[:-1], -1)

    def backward(self, dy: Array) -> Array:
        flat = dy.reshape(-1, dy.shape[-1])
        self.weight.grad += self.x.T @ flat
        self.bias.grad += flat.sum(axis=0)
        dx: Array = flat @ self.weight.value.T
        return dx.reshape(*dy.shape[:-1], -1)


class LayerNorm:
    """Normalises the features of one position.

    The residual networks use it too, as ConvNeXt does, instead of batch norm: a batch's statistics would depend on
    how the batch is split over the ranks, and the same training would give another result at another shape.
    """

    def __init__(self, features: int) -> None:
        self.scale = Parameter(np.ones(features, np.float32))
        self.shift = Parameter(np.zeros(features, np.float32))

    def parameters(self) -> list[Parameter]:
        return [self.scale, self.shift]

    def forward(self, x: Array) -> Array:
        centred: Array = x - x.mean(axis=-1, keepdims=True)
        variance = np.square(centred).mean(axis=-1, keepdims=True)
        self.inverse: Array = 1 / np.sqrt(variance + np.float32(1e-5))
        self.normed: Array = centred * self.inverse
        y: Array = self.normed * self.scale.value + self.shift.value
        return y

    def backward(self, dy: Array) -> Array:
        lead = tuple(range(dy.ndim - 1))
        self.scale.grad += (dy * self.normed).sum(axis=lead)
        self.shift.grad += dy.sum(axis=lead)
        d = dy * self.scale.value
        along: Array = (d * self.normed).mean(axis=-1, keepdims=True)
        mean: Array = d.mean(axis=-1, keepdims=True)
        return (d - mean - self.normed * along) * self.inverse


class Relu:
    def parameters(self) -> list[Parameter]:
        return []

    def forward(self, x: Array) -> Array:
        self.positive = x > 0
        return x * self.positive

    def backward(self, dy: Array) -> Array:
        return dy * self.positive


class Tanh:
    def parameters(self) -> list[Parameter]:
        return []

    def forward(self, x: Array) -> Array:
        self.y: Array = np.tanh(x)
        return self.y

    def backward(self, dy: Array) -> Array:
        dx: Array = dy * (1 - self.y * self.y)
        return dx


class Gelu:
    """The Gaussian error linear unit in its tanh form, as BERT has it."""

    def parameters(self) -> list[Parameter]:
        return []

    def forward(self, x: Array) -> Array:
        self.x = x
        self.tanh: Array = np.tanh(np.float32(0.7978846) * x * (1 + np.float32(0.044715) * x * x))
        y: Array = np.float32(0.5) * x * (1 + self.tanh)
        return y

    def backward(self, dy: Array) -> Array:
        slope = np.float32(0.7978846) * (1 + np.float32(3 * 0.044715) * self.x * self.x)
        dx: Array = dy * np.float32(0.5) * (1 + self.tanh + self.x * (1 - self.tanh * self.tanh) * slope)
        return dx


def softmax(scores: Array) -> Array:
    weights: Array = np.exp(scores - scores.max(axis=-1, keepdims=True))
    weights /= weights.sum(axis=-1, keepdims=True)
    return weights


def cross_entropy(scores: Array, labels: Labels) -> tuple[float, Array]:
    """The loss summed, not averaged, over the samples, and its gradient: shards of any size then simply add up."""
    chances = softmax(scores)
    rows = np.arange(len(labels))
    loss = -np.log(chances[rows, labels] + np.float32(1e-12)).sum()
    chances[rows, labels] -= 1
    return float(loss), chances
