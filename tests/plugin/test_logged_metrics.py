"""Scripts that nobody adapted: they print their figures, refuse unknown arguments, and write no file."""

from __future__ import annotations

import pytest
from yard import Yard, submitted

pytestmark = pytest.mark.slow

# Prints the lines of ResNet in MindSpore's model zoo, and of PyTorch's MNIST example.
SCRIPT = """
import argparse, os
parser = argparse.ArgumentParser()
parser.add_argument("--epochs", type=int)
parser.add_argument("--batch-size", type=int)
args = parser.parse_args()
ms = 100.0 * (1 + int(os.environ["RANK_ID"]))
for epoch in range(1, args.epochs + 1):
    for step in (100, 200, 300):
        print(f"2026-11-18 10:00:00,123:INFO:epoch: [{epoch}/{args.epochs}] step: [{step}/312], loss: 2.3, lr: 0.1, "
              f"per step time: {ms + (900 if epoch == 1 and step == 100 else 0):.3f} ms")
    print(f"\\nTest set: Average loss: 0.0281, Accuracy: {9000 + 100 * epoch}/10000 (9{epoch}%)\\n")
"""
WORKLOAD = r"""name = "{name}"
code = ["code"]
entry = "train.py"
devices = 2
urls_by = "environment"
parameters = { epochs = 3, batch-size = 32 }
[metrics.throughput]
unit = "images/s"
pattern = 'per step time: (\S+) ms'
take = "median"
printed_by = "rank"
scale = 0.001
samples = "batch-size"
[metrics.accuracy]
unit = ""
pattern = 'Test set: .* Accuracy: (?P<value>\d+)/(?P<of>\d+)'
take = "last"
printed_by = "job"
times = "epochs"
"""


def test_its_log_is_all_that_it_takes(yard: Yard) -> None:
    yard.suite(script=SCRIPT, workload=WORKLOAD)
    ended = yard.pytest("suites", "--nodes", "2")
    assert ended.code == 0, ended.out
    (case,) = ended.results["cases"]
    assert case["verdict"] == "PASSED"
    speed, learnt = case["metrics"]["throughput"], case["metrics"]["accuracy"]
    ranks = [32 / 0.1, 32 / 0.2, 32 / 0.3, 32 / 0.4]  # the step that compiled is no median
    assert case["trials"][0]["throughput_by_rank"] == pytest.approx(ranks)
    assert speed["value"] == pytest.approx(sum(ranks))
    assert speed["source"] == (
        "log proc-rank-0-device-0.txt and 3 more: median of the lines that match 'per step time: (\\S+) ms'"
    )
    assert learnt["value"] == 0.93
    assert learnt["source"].startswith("log proc-rank-0-device-0.txt: last of the lines that match 'Test set: ")


@pytest.mark.parametrize(
    ("line", "changed", "reason"),
    [
        # It ends well, and did not do all of its epochs.
        ("range(1, args.epochs + 1)", "range(1, args.epochs)", "accuracy: 2 lines of proc-rank-0-device-0.txt match"),
        # The pattern is for digits; the epoch before had a good value.
        ("{9000 + 100 * epoch}/", "{9000 if epoch < 3 else 'nan'}/", "proc-rank-0-device-0.txt prints no number"),
        ('print(f"2026', 'os.environ["RANK_ID"] == "1" or print(f"2026', "throughput: rank 1 prints no line that"),
    ],
)  # fmt: skip
def test_what_the_log_does_not_show_is_never_green(yard: Yard, line: str, changed: str, reason: str) -> None:
    assert line in SCRIPT
    yard.suite(script=SCRIPT.replace(line, changed), workload=WORKLOAD)
    ended = yard.pytest("suites", "--nodes", "1")
    assert ended.code == 1, ended.out
    (case,) = ended.results["cases"]
    assert case["verdict"] == "FAILED"
    assert reason in case["reason"]


def test_a_speed_of_the_whole_job_has_no_ranks(yard: Yard) -> None:
    """The pages and files that show ranks do without."""
    table = 'unit = "images/s"\nsamples = ["epochs", 6000]\n'
    start, end = WORKLOAD.index('unit = "images/s"'), WORKLOAD.index("[metrics.accuracy]")
    yard.suite(script=SCRIPT, workload=WORKLOAD[:start] + table + WORKLOAD[end:])
    ended = yard.pytest("suites", "--nodes", "2", "--aisbench-single-server")
    assert ended.code == 0, ended.out
    (case,) = ended.results["cases"]
    trial = case["trials"][0]
    assert case["metrics"]["throughput"]["value"] == pytest.approx(3 * 6000 / trial["ran_s"])
    assert trial["throughput_by_rank"] == []
    assert trial["throughput_by_server"] == [pytest.approx(3 * 6000 / trial["ran_s"])] * 2
    assert case["metrics"]["throughput"]["source"] == "epochs × 6000 samples in the time that the job ran"
    assert (ended.reports / "report.html").stat().st_size > 1000


def test_a_pattern_that_cannot_be_right_costs_nothing(yard: Yard) -> None:
    yard.suite(workload=WORKLOAD.replace(r"time: (\S+) ms", r"time: \S+ ms"), script=SCRIPT)
    before = submitted(yard.card)
    ended = yard.pytest("suites", "--nodes", "1")
    assert ended.code == 4, ended.out
    assert "workload.toml:9: metrics.throughput.pattern: 'per step time: \\\\S+ ms': it does not have" in ended.out
    assert submitted(yard.card) == before
