"""Pre-training of BERT with MindSpore.

``--data_url`` holds TFRecord or MindRecord files in the folders ``train/`` and ``val/``, and maybe a checkpoint to
start from. ``--synthetic=N`` writes N generated sentences as MindRecord first, and trains on those instead.
"""

from __future__ import annotations

import tempfile
from pathlib import Path
from typing import TYPE_CHECKING, Any

import enwiki
import model_zoo
import networks
from collective import ASCEND, joined
from contract import ContractError, Job, is_remote, positive, run
from fitting import arguments, data_folder, fit, learning_rates, steps_of, weights_of, yes
from telling import judge, tell_weights

if TYPE_CHECKING:
    import argparse

    from networks import Shape

CHECKPOINT = "ms_bert_large.ckpt"
DECAY = 0.01
OPTIMIZERS = ("Lamb", "AdamWeightDecay")


def parser() -> argparse.ArgumentParser:
    options = arguments(epochs=5, batch_size=24, learning_rate=4e-4)
    networks.add_arguments(options)
    options.add_argument("--train_steps", type=int, default=0, help="updates of the weights; comes before epoch_size")
    options.add_argument(
        "--accumulation_steps", type=positive, default=1, help="batches of one update; several train in full precision"
    )
    options.add_argument("--eval_batch_size", type=positive, default=16)
    options.add_argument("--optimizer", choices=OPTIMIZERS, default="", help="default: Lamb where there is one")
    options.add_argument("--do_shuffle", type=yes, default=True)
    options.add_argument("--enable_lossscale", type=yes, default=True, help="on Ascend, where halves may overflow")
    options.add_argument("--enable_data_sink", type=yes, default=True, help="on Ascend, which can fetch by itself")
    options.add_argument("--data_sink_steps", type=positive, default=100)
    options.add_argument("--enable_save_ckpt", type=yes, default=True)
    options.add_argument("--save_checkpoint_steps", type=int, default=1000)
    options.add_argument("--save_checkpoint_num", type=int, default=1)
    return options


def updates(options: argparse.Namespace, per_epoch: int) -> int:
    return int(options.train_steps or options.epoch_size * per_epoch)


def in_sinks(total: int, sink: int) -> tuple[int, int]:
    """How often the card fetches how many steps by itself; what is less than one time is left out."""
    sink = min(sink, total)
    return total // sink, sink


def optimizer_of(options: argparse.Namespace, *, on_ascend: bool) -> str:
    """Lamb is what the published figures were trained with; on CPU MindSpore has none."""
    if options.optimizer == "Lamb" and not on_ascend:
        raise ContractError("MindSpore has no Lamb on CPU; give --optimizer=AdamWeightDecay")
    return str(options.optimizer or ("Lamb" if on_ascend else "AdamWeightDecay"))


def data_set(job: Job, shape: Shape) -> Path:
    if not job.arguments.synthetic:
        return Path(data_folder(job))
    folder = Path(tempfile.mkdtemp(prefix="enwiki-"))
    enwiki.generate(folder, shape, job.arguments.seed, job.arguments.synthetic)
    return folder


def start_from(checkpoint: Path, bert: Any) -> None:
    """Ours, or one of model_zoo. Another network's would leave some weights as they are, and nobody would know."""
    from mindspore.train.serialization import load_checkpoint

    saved = load_checkpoint(str(checkpoint))
    weights = {weight.name: weight for weight in bert.trainable_params()}
    names = {name: name for name in weights if name in saved} or model_zoo.saved_names(weights, saved)
    missing = [name for name in weights if name not in names]
    if missing:
        raise ContractError(
            f"{checkpoint} is of another network: it lacks {len(missing)} weights, such as {missing[0]}"
        )
    for name, weight in weights.items():
        weight.set_data(fitted(saved[names[name]], weight, checkpoint))


def fitted(saved: Any, weight: Any, checkpoint: Path) -> Any:
    """Positions may be for longer sentences than ours; everything else must be as large as it is here."""
    import mindspore

    values = saved.asnumpy()
    if weight.name == "positions":
        values = values.reshape(-1, values.shape[-1])[: weight.shape[1]][None]
    if values.shape != tuple(weight.shape):
        raise ContractError(f"{checkpoint}: {saved.name} is {values.shape}, and the network has {tuple(weight.shape)}")
    return mindspore.Tensor(values.copy(), weight.dtype)


def main(job: Job) -> None:
    options = job.arguments
    shape = networks.shape_of(options)
    with joined(job) as target:
        folder = data_set(job, shape)
        pretrain(job, shape, folder, on_ascend=target == ASCEND)


def pretrain(job: Job, shape: Shape, folder: Path, *, on_ascend: bool) -> None:
    import mindspore
    from mindspore import nn
    from mindspore.train.model import Model
    from pretraining import AccumulatingStep, Bert, Found, Loss

    options = job.arguments
    sentences = enwiki.sentences(folder / "train", job, shape, training=True)
    per_epoch = steps_of(sentences, job)
    total = updates(options, per_epoch)
    bert = Bert(shape)
    if (folder / CHECKPOINT).is_file():
        start_from(folder / CHECKPOINT, bert)
    rates = mindspore.Tensor(learning_rates(options.learning_rate, total))
    optimizer = getattr(nn, optimizer_of(options, on_ascend=on_ascend))(
        bert.trainable_params(), rates, weight_decay=DECAY
    )
    loss = Loss(bert)
    if options.accumulation_steps > 1:
        model = Model(AccumulatingStep(loss, optimizer, options.accumulation_steps, job.size))
    else:
        model = Model(loss, optimizer=optimizer, **(precision(options) if on_ascend else {}))
    saved = Path(tempfile.mkdtemp(prefix="checkpoint-")) if is_remote(job.train_url) else Path(job.train_url)
    callbacks = checkpoints(options, saved) if job.rank == 0 and options.enable_save_ckpt else []
    endless = sentences.repeat(-(-total // per_epoch))
    if on_ascend and options.enable_data_sink:
        times, sink = in_sinks(total, options.data_sink_steps)
        fit(job, model, endless, times, callbacks, sink=True, steps=sink)
    else:
        every = min(total, options.data_sink_steps)
        fit(job, model, endless.take(total), 1, callbacks, sink=False, steps=total, every=every)
    tell_weights(weights_of(bert))
    if job.rank == 0:
        judge(job, accuracy(Found(bert), enwiki.sentences(folder / "val", job, shape, training=False), job))
        if callbacks and is_remote(job.train_url):
            import moxing

            moxing.file.copy_parallel(str(saved), job.train_url)


def precision(options: argparse.Namespace) -> dict[str, Any]:
    from mindspore.train.loss_scale_manager import DynamicLossScaleManager

    scaled = {"loss_scale_manager": DynamicLossScaleManager(65536, 2, 1000)} if options.enable_lossscale else {}
    return {"amp_level": "O2", **scaled}


def checkpoints(options: argparse.Namespace, folder: Path) -> list[Any]:
    from mindspore.train.callback import CheckpointConfig, ModelCheckpoint

    config = CheckpointConfig(
        save_checkpoint_steps=options.save_checkpoint_steps, keep_checkpoint_max=options.save_checkpoint_num
    )
    return [ModelCheckpoint(prefix="checkpoint_bert", directory=str(folder), config=config)]


def accuracy(counter: Any, sentences: Any, job: Job) -> float:
    """Which part of the masked words is found."""
    steps_of(sentences, job)
    counter.set_train(False)
    right = asked = 0.0
    for row in sentences.create_dict_iterator(num_epochs=1):
        counts = counter(*[row[name] for name in enwiki.COLUMNS])
        right, asked = right + float(counts[0].asnumpy()), asked + float(counts[1].asnumpy())
    print(f"Accuracy is:  {right / asked}", flush=True)
    return right / asked


if __name__ == "__main__":
    run(parser(), main)
