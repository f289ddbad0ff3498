"""The data set of pre-training: sentences in TFRecord or MindRecord files, prepared as BERT's own tools do.

A data set is a folder with ``train/`` and ``val/``, and maybe ``ms_bert_large.ckpt`` to start from. Every sentence has
the columns below; which words are masked was decided when it was prepared.
"""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Any

import language
import numpy as np
from contract import ContractError
from language import LENGTH, MASKED

if TYPE_CHECKING:
    from contract import Job
    from networks import Shape

COLUMNS = [
    *("input_ids", "input_mask", "segment_ids", "next_sentence_labels"),
    *("masked_lm_positions", "masked_lm_ids", "masked_lm_weights"),
]
MINDRECORD = (".mindrecord", ".mind")
DIALECTS = 2  # of the generated language


def record_files(folder: Path) -> tuple[list[str], bool]:
    """The files of one part of the data set, and whether they are MindRecord's; all must be of one kind."""
    if not folder.is_dir():
        raise ContractError(f"{folder} is missing: enwiki was expected, in the folders train and val")
    files = sorted(path for path in folder.rglob("*") if path.is_file() and path.suffix not in {".db", ".json"})
    ours = [path for path in files if path.name.endswith(MINDRECORD)]
    if not files or len(ours) not in {0, len(files)}:
        raise ContractError(f"{folder} holds {len(ours)} MindRecord and {len(files) - len(ours)} other files; "
                            "it must be all MindRecord, or all TFRecord")  # fmt: skip
    return [str(path) for path in files], bool(ours)


def sentences(folder: Path, job: Job, shape: Shape, *, training: bool) -> Any:
    """In batches, ready for the network."""
    import mindspore
    import mindspore.dataset as ds
    from images import shard, transforms

    options = job.arguments
    files, mindrecord = record_files(folder)
    part = shard(job, alone=not training)
    shuffle = training and options.do_shuffle
    if mindrecord:
        data = ds.MindDataset(files, columns_list=COLUMNS, shuffle=shuffle, num_parallel_workers=1, **part)
    else:
        lengths = dict(zip(COLUMNS, [*[shape.length] * 3, 1, *[shape.asked] * 3]))
        schema = ds.Schema()
        for name in COLUMNS:
            kind = mindspore.float32 if name == "masked_lm_weights" else mindspore.int64
            schema.add_column(name, de_type=kind, shape=[lengths[name]])
        mode = ds.Shuffle.GLOBAL if shuffle else False
        data = ds.TFRecordDataset(files, schema, COLUMNS, shuffle=mode, shard_equal_rows=bool(part), **part)
    for name in COLUMNS:
        kind = mindspore.float32 if name == "masked_lm_weights" else mindspore.int32
        data = data.map(operations=transforms.TypeCast(kind), input_columns=[name])
    rows = options.batch_size * options.accumulation_steps if training else options.eval_batch_size
    return data.batch(rows, drop_remainder=True)


def generate(folder: Path, shape: Shape, seed: int, count: int) -> None:
    """Write MindRecord files of the language that the miniature learns, with next sentences that are in its dialect."""
    from mindspore.mindrecord import FileWriter

    kinds = {name: {"type": "int32", "shape": [-1]} for name in COLUMNS}
    kinds["masked_lm_weights"] = {"type": "float32", "shape": [-1]}
    for number, (part, rows) in enumerate({"train": count, "val": max(count // 8, 64)}.items()):
        (folder / part).mkdir()
        writer = FileWriter(str(folder / part / "enwiki.mindrecord"), 1)
        writer.add_schema(kinds, "sentences of a made-up language")
        writer.write_raw_data(made(shape, [seed, number], rows))
        writer.commit()


def made(shape: Shape, seed: list[int], rows: int) -> list[dict[str, Any]]:
    """Sentences as rows of the data set. The token 0 fills what a sentence leaves."""
    if shape.length < LENGTH or shape.asked < MASKED:
        raise ContractError(
            f"generated sentences need --seq_length of {LENGTH} and --max_predictions_per_seq of {MASKED}"
        )
    filled = []
    for dialect in range(DIALECTS):
        texts, labels = language.sentences([*seed, dialect], dialect, -(-rows // DIALECTS))
        for text, label in zip(texts, labels):
            asked = np.nonzero(label >= 0)[0]
            half = np.arange(LENGTH) >= LENGTH // 2
            filled.append({
                "input_ids": fill(text, shape.length),
                "input_mask": fill(np.ones(LENGTH), shape.length),
                "segment_ids": fill(half, shape.length),
                "next_sentence_labels": np.array([dialect % 2], np.int32),
                "masked_lm_positions": fill(asked, shape.asked),
                "masked_lm_ids": fill(label[asked], shape.asked),
                "masked_lm_weights": fill(np.ones(len(asked)), shape.asked).astype(np.float32),
            })  # fmt: skip
    order = np.random.default_rng(seed).permutation(len(filled))[:rows]
    return [filled[index] for index in order]


def fill(values: Any, length: int) -> Any:
    row = np.zeros(length, np.int32)
    row[: len(values)] = values
    return row
