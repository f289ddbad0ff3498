"""BERT and its two tasks of pre-training in MindSpore: to find masked words, and to tell whether a sentence follows."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import mindspore
import numpy as np
from mindspore import Parameter, Tensor, nn
from mindspore.common.initializer import TruncatedNormal, initializer
from mindspore.ops import composite as C
from mindspore.ops import functional as F
from mindspore.ops import operations as P

if TYPE_CHECKING:
    from networks import Shape

HIDDEN = -10000.0  # added to the score of what must not be looked at


def dense(shape: Shape, inputs: int, outputs: int) -> Any:
    return nn.Dense(inputs, outputs, weight_init=TruncatedNormal(shape.spread))


def embedding(shape: Shape, entries: int) -> Any:
    return nn.Embedding(entries, shape.hidden, embedding_table=TruncatedNormal(shape.spread))


def dropout(part: float) -> Any:
    try:
        return nn.Dropout(p=part)
    except TypeError:  # before version 2
        return nn.Dropout(1.0 - part)


class Attention(nn.Cell):
    def __init__(self, shape: Shape) -> None:
        super().__init__()
        self.heads, self.length, self.size = shape.heads, shape.length, shape.hidden
        self.query, self.key, self.value = (dense(shape, shape.hidden, shape.hidden) for _ in range(3))
        self.output = dense(shape, shape.hidden, shape.hidden)
        self.scale = (shape.hidden // shape.heads) ** -0.5
        self.reshape, self.transpose, self.softmax = P.Reshape(), P.Transpose(), P.Softmax()
        self.scores, self.mix = P.BatchMatMul(transpose_b=True), P.BatchMatMul()
        self.dropout = dropout(shape.dropout)

    def by_head(self, x: Any) -> Any:
        return self.transpose(self.reshape(x, (-1, self.length, self.heads, self.size // self.heads)), (0, 2, 1, 3))

    def construct(self, x: Any, unseen: Any) -> Any:
        query, key, value = self.by_head(self.query(x)), self.by_head(self.key(x)), self.by_head(self.value(x))
        looks = self.dropout(self.softmax(self.scores(query, key) * self.scale + unseen))
        mixed = self.transpose(self.mix(looks, value), (0, 2, 1, 3))
        return self.output(self.reshape(mixed, (-1, self.length, self.size)))


class Block(nn.Cell):
    def __init__(self, shape: Shape) -> None:
        super().__init__()
        self.attention = Attention(shape)
        self.inner, self.outer = dense(shape, shape.hidden, shape.inner), dense(shape, shape.inner, shape.hidden)
        self.after_attention, self.after_inner = nn.LayerNorm((shape.hidden,)), nn.LayerNorm((shape.hidden,))
        self.gelu, self.dropout = P.GeLU(), dropout(shape.dropout)

    def construct(self, x: Any, unseen: Any) -> Any:
        x = self.after_attention(x + self.dropout(self.attention(x, unseen)))
        return self.after_inner(x + self.dropout(self.outer(self.gelu(self.inner(x)))))


class Bert(nn.Cell):
    """Scores over the vocabulary at the masked positions, and over the two answers to whether the sentence follows."""

    def __init__(self, shape: Shape) -> None:
        super().__init__()
        self.length, self.size = shape.length, shape.hidden
        self.words = embedding(shape, shape.vocabulary)
        self.segments = embedding(shape, 2)
        self.positions = Parameter(
            initializer(TruncatedNormal(shape.spread), (1, shape.length, shape.hidden), mindspore.float32),
            name="positions",
        )
        self.norm, self.dropout = nn.LayerNorm((shape.hidden,)), dropout(shape.dropout)
        self.blocks = nn.CellList([Block(shape) for _ in range(shape.layers)])
        self.transform, self.gelu = dense(shape, shape.hidden, shape.hidden), P.GeLU()
        self.transformed = nn.LayerNorm((shape.hidden,))
        self.by_word, self.bias = (
            P.MatMul(transpose_b=True),
            Parameter(initializer("zeros", (shape.vocabulary,), mindspore.float32), name="vocabulary_bias"),
        )
        self.pool, self.tanh, self.follows = (
            dense(shape, shape.hidden, shape.hidden),
            P.Tanh(),
            dense(shape, shape.hidden, 2),
        )
        self.reshape, self.gather, self.cast = P.Reshape(), P.Gather(), P.Cast()
        self.asked = shape.asked
        starts = np.arange(shape.most_rows, dtype=np.int32)[:, None] * shape.length
        self.starts = Tensor(starts)

    def construct(self, words: Any, seen: Any, segments: Any, asked: Any) -> Any:
        x = self.dropout(self.norm(self.words(words) + self.segments(segments) + self.positions))
        unseen = (1.0 - self.reshape(self.cast(seen, mindspore.float32), (-1, 1, 1, self.length))) * HIDDEN
        for block in self.blocks:
            x = block(x, unseen)
        places = self.reshape(asked + self.starts[: asked.shape[0]], (-1,))
        masked = self.gather(self.reshape(x, (-1, self.size)), places, 0)
        masked = self.transformed(self.gelu(self.transform(masked)))
        scores = self.by_word(masked, self.words.embedding_table) + self.bias
        return scores, self.follows(self.tanh(self.pool(x[:, 0])))


class Loss(nn.Cell):
    """Of both tasks together, for one batch of the columns of `enwiki.COLUMNS`."""

    def __init__(self, bert: Bert) -> None:
        super().__init__(auto_prefix=False)
        self.bert = bert
        self.wrong = nn.SoftmaxCrossEntropyWithLogits(sparse=True, reduction="none")
        self.reshape, self.sum, self.mean, self.cast = P.Reshape(), P.ReduceSum(), P.ReduceMean(), P.Cast()

    def construct(
        self, words: Any, seen: Any, segments: Any, follows: Any, asked: Any, truth: Any, weights: Any
    ) -> Any:
        scores, next_scores = self.bert(words, seen, segments, asked)
        weights = self.reshape(weights, (-1,))
        masked = self.wrong(self.cast(scores, mindspore.float32), self.reshape(truth, (-1,)))
        following = self.wrong(self.cast(next_scores, mindspore.float32), self.reshape(follows, (-1,)))
        return self.sum(masked * weights) / (self.sum(weights) + 1e-5) + self.mean(following)


class Found(nn.Cell):
    """How many of the masked words are found, and how many there are."""

    def __init__(self, bert: Bert) -> None:
        super().__init__(auto_prefix=False)
        self.bert = bert
        self.best, self.equal, self.cast, self.sum = P.Argmax(), P.Equal(), P.Cast(), P.ReduceSum()
        self.reshape = P.Reshape()

    def construct(
        self, words: Any, seen: Any, segments: Any, follows: Any, asked: Any, truth: Any, weights: Any
    ) -> Any:
        scores, _ = self.bert(words, seen, segments, asked)
        right = self.cast(self.equal(self.best(scores), self.reshape(truth, (-1,))), mindspore.float32)
        weights = self.reshape(weights, (-1,))
        return self.sum(right * weights), self.sum(weights)


_sum = C.MultitypeFuncGraph("sum")


@_sum.register("Tensor", "Tensor")
def _sum_of_tensors(one: Any, other: Any) -> Any:
    return one + other


_share = C.MultitypeFuncGraph("share")


@_share.register("Tensor", "Tensor")
def _share_of_tensor(parts: Any, gradient: Any) -> Any:
    return gradient / parts


class AccumulatingStep(nn.Cell):
    """One update from a batch of several parts, whose gradients are added: only a part must fit the memory."""

    def __init__(self, loss: Loss, optimizer: Any, parts: int, ranks: int) -> None:
        super().__init__(auto_prefix=False)
        self.loss, self.optimizer, self.weights, self.parts = loss, optimizer, optimizer.parameters, parts
        self.loss.set_grad()
        self.gradients = C.GradOperation(get_by_list=True)
        self.split = P.Split(0, parts)
        self.map = C.HyperMap()
        self.count = Tensor(parts, mindspore.float32)
        self.reduces = ranks > 1
        self.reduce: Any = nn.DistributedGradReducer(self.weights, mean=True, degree=ranks) if self.reduces else None

    def part(self, columns: Any, index: int) -> Any:
        """Graphs are given tuples, not lists."""
        a, b, c, d, e, f, g = columns
        return a[index], b[index], c[index], d[index], e[index], f[index], g[index]

    def construct(
        self, words: Any, seen: Any, segments: Any, follows: Any, asked: Any, truth: Any, weights: Any
    ) -> Any:
        columns = (
            *(self.split(words), self.split(seen), self.split(segments), self.split(follows)),
            *(self.split(asked), self.split(truth), self.split(weights)),
        )
        part = self.part(columns, 0)
        loss, total = self.loss(*part), self.gradients(self.loss, self.weights)(*part)
        for index in range(1, self.parts):
            part = self.part(columns, index)
            loss = loss + self.loss(*part)
            total = self.map(_sum, total, self.gradients(self.loss, self.weights)(*part))
        total = self.map(F.partial(_share, self.count), total)
        if self.reduces:
            total = self.reduce(total)
        return F.depend(loss / self.count, self.optimizer(total))
