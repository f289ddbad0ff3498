"""A transformer encoder, BERT's smallest relative: embeddings, self-attention, feed-forward, masked-token scores."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np
from layers import Gelu, LayerNorm, Linear, cross_entropy, normal, softmax

if TYPE_CHECKING:
    from layers import Array, Labels, Layer, Parameter


class Attention:
    """Multi-head self-attention: every position of a sentence may look at every other, in both directions."""

    def __init__(self, rng: np.random.Generator, features: int, heads: int) -> None:
        self.heads = heads
        self.project_in = Linear(rng, features, 3 * features, gain=0.7)
        self.project_out = Linear(rng, features, features, gain=0.7)

    def parameters(self) -> list[Parameter]:
        return self.project_in.parameters() + self.project_out.parameters()

    def forward(self, x: Array) -> Array:
        n, length, features = x.shape
        self.scale = np.float32((features // self.heads) ** -0.5)
        split = self.project_in.forward(x).reshape(n, length, 3, self.heads, -1)
        self.q, self.k, self.v = split.transpose(2, 0, 3, 1, 4)  # each (n, heads, length, features of a head)
        self.looks = softmax(self.q @ self.k.swapaxes(-1, -2) * self.scale)
        mixed = (self.looks @ self.v).swapaxes(1, 2)
        return self.project_out.forward(mixed.reshape(n, length, features))

    def backward(self, dy: Array) -> Array:
        n, length, features = dy.shape
        dmixed = self.project_out.backward(dy).reshape(n, length, self.heads, -1).swapaxes(1, 2)
        dv = self.looks.swapaxes(-1, -2) @ dmixed
        dlooks = dmixed @ self.v.swapaxes(-1, -2)
        dscores = self.looks * (dlooks - (dlooks * self.looks).sum(axis=-1, keepdims=True)) * self.scale
        dq, dk = dscores @ self.k, dscores.swapaxes(-1, -2) @ self.q
        dsplit = np.stack([dq, dk, dv]).transpose(1, 3, 0, 2, 4)
        return self.project_in.backward(dsplit.reshape(n, length, 3 * features))


class Residual:
    """``x + f(norm(x))``: the norm stands before the branch, which trains without a long warm-up."""

    def __init__(self, features: int, *branch: Layer) -> None:
        self.branch: list[Layer] = [LayerNorm(features), *branch]

    def parameters(self) -> list[Parameter]:
        return [p for layer in self.branch for p in layer.parameters()]

    def forward(self, x: Array) -> Array:
        y = x
        for layer in self.branch:
            y = layer.forward(y)
        return x + y

    def backward(self, dy: Array) -> Array:
        dx = dy
        for layer in reversed(self.branch):
            dx = layer.backward(dx)
        return dx + dy


class Encoder:
    """Sentences (n, length) of token numbers in, with some masked; scores over the vocabulary for those out."""

    def __init__(
        self, rng: np.random.Generator, *, vocabulary: int, length: int, features: int, heads: int, depth: int
    ) -> None:
        self.tokens = normal(rng, (vocabulary, features), 1.0)
        self.positions = normal(rng, (length, features), 1.0)
        self.layers: list[Layer] = []
        for _ in range(depth):
            self.layers.append(Residual(features, Attention(rng, features, heads)))
            inner = (Linear(rng, features, 2 * features), Gelu(), Linear(rng, 2 * features, features, gain=0.5))
            self.layers.append(Residual(features, *inner))
        self.layers.append(LayerNorm(features))
        self.output = Linear(rng, features, vocabulary, gain=0.1)

    def parameters(self) -> list[Parameter]:
        inner = [p for layer in [*self.layers, self.output] for p in layer.parameters()]
        return [self.tokens, self.positions, *inner]

    def scores(self, sentences: Labels, asked: tuple[Labels, ...]) -> Array:
        x: Array = self.tokens.value[sentences] + self.positions.value
        for layer in self.layers:
            x = layer.forward(x)
        return self.output.forward(x[asked])

    def step(self, sentences: Labels, labels: Labels) -> float:
        """Labels are -1 but at the masked tokens; the loss of a sentence is the mean over its masked tokens."""
        asked = np.nonzero(labels >= 0)
        loss, dscores = cross_entropy(self.scores(sentences, asked), labels[asked])
        per_sentence = np.float32(len(sentences) / len(dscores))
        dx = np.zeros((*sentences.shape, self.tokens.value.shape[1]), np.float32)
        dx[asked] = self.output.backward(dscores * per_sentence)
        for layer in reversed(self.layers):
            dx = layer.backward(dx)
        self.positions.grad += dx.sum(axis=0)
        np.add.at(self.tokens.grad, sentences, dx)
        return float(loss * per_sentence)

    def accuracy(self, sentences: Labels, labels: Labels) -> float:
        """Which part of the masked tokens is found."""
        asked = np.nonzero(labels >= 0)
        return float((self.scores(sentences, asked).argmax(axis=-1) == labels[asked]).mean())
