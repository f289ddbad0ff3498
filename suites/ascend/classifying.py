"""The training of an image classifier, whatever the images: mixed precision on Ascend, plain numbers on CPU."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import mindspore
from collective import ASCEND
from fitting import fit, learning_rates, steps_of, weights_of
from mindspore import nn
from mindspore.ops import operations as P
from mindspore.train.loss_scale_manager import FixedLossScaleManager
from mindspore.train.model import Model
from telling import judge, tell_weights

if TYPE_CHECKING:
    from contract import Job

MOMENTUM = 0.9
LOSS_SCALE = 1024.0


class SmoothedCrossEntropy(nn.Cell):
    """``smoothing`` of the truth is spread over the other classes."""

    def __init__(self, classes: int, smoothing: float) -> None:
        super().__init__()
        self.classes = classes
        self.one_hot = P.OneHot()
        self.right = mindspore.Tensor(1.0 - smoothing, mindspore.float32)
        self.wrong = mindspore.Tensor(smoothing / (classes - 1), mindspore.float32)
        self.cross_entropy = nn.SoftmaxCrossEntropyWithLogits(sparse=False, reduction="mean")

    def construct(self, scores: Any, labels: Any) -> Any:
        return self.cross_entropy(scores, self.one_hot(labels, self.classes, self.right, self.wrong))


def train(job: Job, target: str, network: Any, data: tuple[Any, Any], classes: int) -> None:
    """``data``: the shard of this rank, and what the network is judged by; both in batches."""
    options, (shard, held_out) = job.arguments, data
    on_ascend = target == ASCEND
    steps = steps_of(shard, job)
    rates = learning_rates(options.learning_rate, options.epoch_size * steps)
    plain = (".gamma", ".beta", ".bias")
    groups = [
        {
            "params": [p for p in network.trainable_params() if not p.name.endswith(plain)],
            "weight_decay": options.weight_decay,
        },
        {"params": [p for p in network.trainable_params() if p.name.endswith(plain)]},
    ]
    scale = LOSS_SCALE if on_ascend else 1.0
    optimizer = nn.Momentum(groups, mindspore.Tensor(rates), MOMENTUM, loss_scale=scale)
    mixed = {
        "amp_level": "O2",
        "keep_batchnorm_fp32": False,
        "loss_scale_manager": FixedLossScaleManager(LOSS_SCALE, drop_overflow_update=False),
    }
    loss = SmoothedCrossEntropy(classes, options.label_smoothing)
    model = Model(network, loss, optimizer, metrics={"accuracy"}, **(mixed if on_ascend else {}))
    fit(job, model, shard, options.epoch_size, [], sink=on_ascend, steps=steps)
    tell_weights(weights_of(network))
    if job.rank == 0:
        judge(job, float(model.eval(held_out, dataset_sink_mode=False)["accuracy"]))
