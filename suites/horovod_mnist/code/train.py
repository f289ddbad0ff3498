"""MNIST with Keras and Horovod, after the example in the Apulis platform's guide: one script for GPU and CPU.

``--data_url`` holds the files of MNIST as they are published; every rank trains on its share of them.
``--synthetic=N`` trains on N generated images of that format instead.
"""

from __future__ import annotations

import argparse
import os
import time
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import TYPE_CHECKING, Any

import numpy as np
from contract import ContractError, Job, positive, run
from looks import CLASSES
from meeting import meet
from mnist import EVAL, SIZE, TRAIN, generate, read
from telling import judge, report, tell_version, tell_weights

if TYPE_CHECKING:
    from mnist import Split


def data(job: Job) -> tuple[Split, Split]:
    """To train on, and to judge by."""
    options = job.arguments
    if not options.synthetic:
        if not options.data_url:
            raise ContractError("there are no data: give --data_url, or --synthetic=N for a generated set of N images")
        return read(Path(options.data_url), TRAIN), read(Path(options.data_url), EVAL)
    with TemporaryDirectory(prefix="mnist-") as folder:
        generate(Path(folder), options.seed, options.synthetic, max(CLASSES, options.synthetic // 4), looks=1)
        return read(Path(folder), TRAIN), read(Path(folder), EVAL)


def images_of(split: Split) -> tuple[Any, Any]:
    """As (n, 28, 28, 1) between 0 and 1, and their labels."""
    images, labels = split
    return images[..., None].astype(np.float32) / 255, labels.astype(np.int64)


def share(job: Job, split: Split) -> Split:
    """Every rank has as many as the others, or they would wait for each other in vain."""
    images, labels = split
    batch = job.arguments.batch_size
    count = len(labels) // job.size // batch * batch
    if not count:
        raise ContractError(
            f"{len(labels)} images are too few for {job.size} ranks with a batch of {batch}; lower --batch_size"
        )
    mine = slice(job.rank, count * job.size, job.size)
    return images[mine], labels[mine]


def use_own_device(tf: Any, card: int) -> None:
    gpus = tf.config.experimental.list_physical_devices("GPU")
    for gpu in gpus:
        tf.config.experimental.set_memory_growth(gpu, True)  # noqa: FBT003 (its only form)
    if gpus:
        tf.config.experimental.set_visible_devices(gpus[card], "GPU")
    elif "OMP_NUM_THREADS" in os.environ:  # the ranks of a node share its cores
        threads = int(os.environ["OMP_NUM_THREADS"])
        tf.config.threading.set_intra_op_parallelism_threads(threads)
        tf.config.threading.set_inter_op_parallelism_threads(threads)


def network(tf: Any, filters: int, hidden: int) -> Any:
    layers = tf.keras.layers
    return tf.keras.Sequential(
        [
            layers.Conv2D(filters, [3, 3], activation="relu", input_shape=(SIZE, SIZE, 1)),
            layers.Conv2D(2 * filters, [3, 3], activation="relu"),
            layers.MaxPooling2D(pool_size=(2, 2)),
            layers.Dropout(0.25),
            layers.Flatten(),
            layers.Dense(hidden, activation="relu"),
            layers.Dropout(0.5),
            layers.Dense(CLASSES, activation="softmax"),
        ]
    )


def learning_rate(options: argparse.Namespace, size: int, epoch: int) -> float:
    """That of one rank, times their number: reached step by step, since a large batch starts badly with it."""
    warm = min(1.0, (epoch + 1) / (options.warmup_epochs + 1))
    return float(options.learning_rate * (1 + (size - 1) * warm))


def callbacks(job: Job, hvd: Any, tf: Any) -> list[Any]:
    options, keras = job.arguments, tf.keras.callbacks
    chosen = [
        hvd.callbacks.BroadcastGlobalVariablesCallback(0),  # the ranks start from the same weights
        hvd.callbacks.MetricAverageCallback(),
        keras.LearningRateScheduler(lambda epoch: learning_rate(options, job.size, epoch)),
    ]
    if job.rank == 0 and options.checkpoints:
        Path(options.checkpoints).expanduser().mkdir(parents=True, exist_ok=True)
        chosen.append(keras.ModelCheckpoint(f"{Path(options.checkpoints).expanduser()}/checkpoint-{{epoch}}.h5"))
    if job.rank == 0 and options.tensorboard:
        chosen.append(keras.TensorBoard(str(Path(options.tensorboard).expanduser())))
    return chosen


def main(job: Job) -> None:
    options = job.arguments
    hvd = meet(job)
    import horovod
    import tensorflow as tf

    tell_version(job, "horovod", horovod.__version__)
    tell_version(job, "tensorflow", tf.__version__)
    use_own_device(tf, hvd.local_rank())
    tf.random.set_seed(options.seed + job.rank)
    everything, held_out = data(job)
    images, labels = images_of(share(job, everything))
    fed = tf.data.Dataset.from_tensor_slices((images, labels)).shuffle(len(labels), seed=options.seed)
    fed = fed.batch(options.batch_size, drop_remainder=True)
    model = network(tf, options.filters, options.hidden)
    # The rate is set by a callback, epoch by epoch.
    optimizer = hvd.DistributedOptimizer(tf.keras.optimizers.Adam(options.learning_rate))
    model.compile(loss="sparse_categorical_crossentropy", optimizer=optimizer, metrics=["accuracy"])

    hvd.allreduce(tf.constant(0.0), name="start")  # nobody's clock starts before everybody is there
    began, started = time.time(), time.perf_counter()
    model.fit(fed, epochs=options.epoch_size, callbacks=callbacks(job, hvd, tf), verbose=2 if job.rank == 0 else 0)
    wall, batch = time.perf_counter() - started, options.batch_size
    report(job, began, wall, steps=len(labels) // batch, batch=batch, epochs=options.epoch_size)
    tell_weights(model.get_weights())
    if job.rank == 0:
        _, accuracy = model.evaluate(*images_of(held_out), batch_size=256, verbose=0)
        judge(job, float(accuracy))


def parser() -> argparse.ArgumentParser:
    options = argparse.ArgumentParser(allow_abbrev=False)
    options.add_argument("--epoch_size", type=positive, default=24)
    options.add_argument("--batch_size", type=positive, default=128, help="of each rank")
    options.add_argument("--learning_rate", type=float, default=0.001, help="of each rank")
    options.add_argument("--warmup_epochs", type=int, default=3)
    options.add_argument("--seed", type=int, default=1)
    options.add_argument("--synthetic", type=int, default=0, help="train on so many generated images, not on data_url")
    options.add_argument(
        "--filters", type=positive, default=32, help="of the first convolution; the second has twice as many"
    )
    options.add_argument("--hidden", type=positive, default=128, help="neurons of the hidden layer")
    options.add_argument("--checkpoints", default="", help="folder for the weights after each epoch")
    board = "~/tensorboard/{}/logs".format(os.environ["DLWS_JOB_ID"]) if "DLWS_JOB_ID" in os.environ else ""
    options.add_argument("--tensorboard", default=board, help="folder of its curves; on Apulis where its page looks")
    return options


if __name__ == "__main__":
    run(parser(), main)
