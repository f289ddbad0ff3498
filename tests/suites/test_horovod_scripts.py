"""The Horovod script without Horovod: what it is told, how its ranks meet, what it reads."""

from __future__ import annotations

import gzip
import sys
from pathlib import Path
from typing import Any

import pytest
from commands import printed_json, run_python

SUITES = Path(__file__).parents[2] / "suites"
CODE = [SUITES / "horovod_mnist" / "code", SUITES / "miniature"]
BY_ENVIRONMENT = {"RANK_ID": "5", "RANK_SIZE": "6", "MASTER_ADDR": "127.0.0.2", "MASTER_PORT": "2222"}
# Both read the same environment, so that what one is told is what the other sees.
JOB = """
import json, sys, contract, meeting, train
try:
    job = contract.read_job(train.parser(), ["--train_url=/x", *{arguments!r}], {environment!r})
    print(json.dumps({told}))
except contract.ContractError as error:
    print(json.dumps("refused: " + str(error)))
"""


def said(program: str, *arguments: str) -> Any:
    return printed_json(CODE, program, *arguments)


def read(told: str, environment: dict[str, str], *arguments: str) -> Any:
    return said(JOB.format(arguments=list(arguments), environment=environment, told=told))


def test_a_batch_of_nothing_is_one_line_before_anybody_meets() -> None:
    program = """
import contextlib, io, json, train
said = io.StringIO()
with contextlib.suppress(SystemExit), contextlib.redirect_stderr(said):
    train.parser().parse_args(["--batch_size=0"])
print(json.dumps(said.getvalue().splitlines()[-1]))
"""
    assert said(program).endswith("argument --batch_size: '0' is not a whole number of 1 or more")


def variables(environment: dict[str, str]) -> Any:
    return read(f"meeting.variables(job, {environment!r})", environment)


def test_ranks_that_a_platform_started_are_told_what_a_launcher_would_say() -> None:
    told = variables({**BY_ENVIRONMENT, "DEVICE_NUM": "2"})
    places = {name: told[f"HOROVOD_{name}"] for name in ("RANK", "SIZE", "LOCAL_RANK", "LOCAL_SIZE")}
    assert places == {"RANK": "5", "SIZE": "6", "LOCAL_RANK": "1", "LOCAL_SIZE": "2"}
    assert (told["HOROVOD_CROSS_RANK"], told["HOROVOD_CROSS_SIZE"], told["HOROVOD_HOSTNAME"]) == ("2", "3", "node-2")
    assert told["HOROVOD_GLOO_RENDEZVOUS_ADDR"] == "127.0.0.2"
    assert told["HOROVOD_GLOO_RENDEZVOUS_PORT"] == "2222"
    assert told["HOROVOD_GLOO_IFACE"] == "lo"
    assert "HOROVOD_GLOO_IFACE" not in variables({**BY_ENVIRONMENT, "MASTER_ADDR": "10.0.0.7"})


def test_modelarts_says_how_many_cards_a_node_has() -> None:
    assert variables({**BY_ENVIRONMENT, "MA_NUM_GPUS": "3"})["HOROVOD_CROSS_RANK"] == "1"


def test_ranks_that_cannot_find_each_other_say_so() -> None:
    nowhere = {**BY_ENVIRONMENT, "MASTER_ADDR": ""}
    assert variables(nowhere) == "refused: 6 ranks need MASTER_ADDR and MASTER_PORT to find each other"


@pytest.mark.parametrize("launcher", ["HOROVOD", "OMPI_COMM_WORLD"])
def test_a_launchers_ranks_are_taken_as_they_are(launcher: str) -> None:
    """A platform that leaves the ranks to a launcher may say how many there are, and not who is who."""
    told = {f"{launcher}_RANK": "3", f"{launcher}_SIZE": "4", "RANK_SIZE": "4"}
    assert read(f"[job.rank, job.size, meeting.is_launched({told!r})]", told) == [3, 4, True]
    assert read(f"meeting.is_launched({BY_ENVIRONMENT!r})", BY_ENVIRONMENT) is False


def test_every_rank_has_as_many_images_as_the_others_and_none_twice() -> None:
    program = """
import json, argparse, numpy as np, train
from contract import Job
options = argparse.Namespace(batch_size=4)
split = np.arange(50).reshape(50, 1), np.arange(50)
shares = [train.share(Job(options, "", rank, 3, None, 3), split)[1].tolist() for rank in range(3)]
print(json.dumps(shares))
"""
    shares = said(program)
    assert [len(share) for share in shares] == [16, 16, 16]
    assert len({image for share in shares for image in share}) == 48


def test_too_few_images_are_said() -> None:
    program = """
import json, argparse, numpy as np, train
from contract import ContractError, Job
try:
    train.share(Job(argparse.Namespace(batch_size=32), "", 0, 2, None, 2), (np.zeros((40, 1)), np.zeros(40)))
except ContractError as error:
    print(json.dumps(str(error)))
"""
    assert said(program) == "40 images are too few for 2 ranks with a batch of 32; lower --batch_size"


def test_the_learning_rate_grows_to_that_of_all_ranks() -> None:
    program = """
import json, train
options = train.parser().parse_args(["--learning_rate=0.5", "--warmup_epochs=1"])
print(json.dumps([train.learning_rate(options, 4, epoch) for epoch in range(3)]))
"""
    assert said(program) == [1.25, 2.0, 2.0]


def test_generated_files_are_mnists_own_packed_or_not(tmp_path: Path) -> None:
    program = """
import json, pathlib, sys, mnist
folder = pathlib.Path(sys.argv[1])
mnist.generate(folder, 1, 40, 20)
images, labels = mnist.read(folder, mnist.TRAIN)
print(json.dumps([images.shape, labels.shape, sorted(set(labels.tolist())), int(images[3].sum())]))
"""
    told = said(program, str(tmp_path))
    assert told[:3] == [[40, 28, 28], [40], list(range(10))]
    packed = (tmp_path / "train-images-idx3-ubyte.gz").read_bytes()
    content = gzip.decompress(packed)
    assert content[:16] == bytes([0, 0, 8, 3, 0, 0, 0, 40, 0, 0, 0, 28, 0, 0, 0, 28])
    assert len(content) == 16 + 40 * 784
    (tmp_path / "train-images-idx3-ubyte").write_bytes(content)
    (tmp_path / "train-images-idx3-ubyte.gz").unlink()
    assert said(program.replace("mnist.generate(folder, 1, 40, 20)", ""), str(tmp_path)) == told


@pytest.mark.parametrize(
    ("name", "content", "complaint"),
    [
        ("train-images-idx3-ubyte.gz", None, "is missing: MNIST's files were expected"),
        ("train-images-idx3-ubyte.gz", b"plain", "cannot be unpacked: Not a gzipped file"),
        (
            "train-labels-idx1-ubyte.gz",
            gzip.compress(b"\0\0\x08\1\0\0\0\x28", mtime=0),
            "or not a whole one: it has 8 bytes",
        ),
        ("train-labels-idx1-ubyte.gz", gzip.compress(b"", mtime=0), "is not an IDX file of bytes"),
        ("train-labels-idx1-ubyte.gz", gzip.compress(b"\0\0\x08\1\0\0\0\1\0", mtime=0), "has images of (40, 28, 28)"),
        (
            "train-labels-idx1-ubyte.gz",
            gzip.compress(b"\0\0\x08\1\0\0\0\x28" + b"\x0a" * 40, mtime=0),
            "has a label 10",
        ),
    ],
)
def test_a_wrong_file_is_one_clear_line(tmp_path: Path, name: str, content: bytes | None, complaint: str) -> None:
    program = """
import json, pathlib, sys, mnist
from contract import ContractError
folder = pathlib.Path(sys.argv[1])
mnist.generate(folder, 1, 40, 20)
file = folder / sys.argv[2]
file.unlink()
if sys.argv[3] != "missing":
    file.write_bytes(bytes.fromhex(sys.argv[3]))
try:
    mnist.read(folder, mnist.TRAIN)
except ContractError as error:
    print(json.dumps(str(error)))
"""
    told = said(program, str(tmp_path), name, "missing" if content is None else content.hex())
    assert complaint in told
    assert "\n" not in told


@pytest.mark.parametrize("launched", [{}, {"HOROVOD_RANK": "1", "HOROVOD_SIZE": "2"}])
def test_without_horovod_a_job_ends_with_one_line(tmp_path: Path, launched: dict[str, str]) -> None:
    done = run_python(CODE, CODE[0] / "train.py", f"--train_url={tmp_path}", "--synthetic=64", **launched)
    assert done.returncode == 1
    (line,) = done.stderr.splitlines()
    assert line.endswith(f"horovod with TensorFlow is not installed for {sys.executable}")
    assert not list(tmp_path.iterdir())
