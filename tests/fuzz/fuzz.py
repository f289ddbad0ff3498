"""Fuzz the way from result files to a verdict: made-up jobs, healthy and spoilt, against an oracle.

    python -m tests.fuzz --sets 100000 --from 0 --jobs 2

Each set has a number, from which everything about it is drawn; the same number is always the same set. A verdict that
the oracle (`oracle.py`, which knows nothing of our code) does not allow is printed with its number, and makes the exit
code 1. `--show NUMBER` prints one set.
"""

from __future__ import annotations

import argparse
import random
import time
from collections import Counter
from collections.abc import Callable, Iterable, Sequence
from concurrent.futures import ProcessPoolExecutor
from dataclasses import dataclass, field, replace
from pprint import pformat

from factories import make_trial, make_workload
from memory_store import MemoryStore
from oracle import FAILED, INCONCLUSIVE, PASSED, Claim, ResultSet, allowed

from pytest_aisbench.engine.collect import read_results
from pytest_aisbench.judge.evaluate import Evidence, Rules, evaluate
from pytest_aisbench.judge.values import case_values
from pytest_aisbench.model.case import Case, Mode, Shape
from pytest_aisbench.model.job import StoreUrl
from pytest_aisbench.model.metric import Metric
from pytest_aisbench.model.trial import TrialRecord
from pytest_aisbench.model.verdict import BOUND_KEYS, ExpectedFailure, Threshold, Verdict

CHUNK = 5000  # sets that a process judges before it reports
_MOST_PRINTED = 10
_DAYS = ("", "", "", "", "", "", "2027-01-14", "2027-01-15", "2028-01-01")  # expected failures end then


# Sets.


def make_set(number: int) -> ResultSet:
    """A healthy job with claims that it meets or misses; in about half of the sets something is spoilt."""
    dice = random.Random(number)
    alone, nodes, devices = dice.random() < 0.4, dice.choice((1, 1, 2, 2, 3, 4)), dice.choice((1, 1, 2, 2, 4, 8))
    unit = "" if dice.random() < 0.9 else "%"
    limits = [1e12 if dice.random() < 0.9 else 10 ** dice.uniform(1, 7) for _ in range(3)]
    metrics = {"throughput": ("images/s", limits[0]), "accuracy": (unit, limits[1])}
    if dice.random() < 0.3:
        metrics["loss"] = ("nats", limits[2])
    speed = 10 ** dice.uniform(-2, 5)
    nodes_at = [speed * _wobble(dice) for _ in range(nodes)]
    if nodes > 1 and dice.random() < 0.15:
        nodes_at[dice.randrange(nodes)] *= dice.choice((0.02, 0.3, 0.6, 0.9, 1.5))
    ranks = [node * dice.uniform(0.99, 1.01) for node in nodes_at for _ in range(devices)]
    others = {name: _check_values(dice, name, metrics[name][0], nodes if alone else 1) for name in [*metrics][1:]}
    files = _files(alone, devices, ranks, others)
    sums = [sum(ranks[at : at + devices]) for at in range(0, len(ranks), devices)]
    typical = sum(sums) / len(sums) if alone else sum(sums)
    claims = [_claim(dice, "throughput", typical, (1 if alone else nodes), devices)]
    claims += [_claim(dice, name, values[0], 1, 1) for name, values in others.items()]
    if dice.random() < 0.02:
        claims.pop(dice.randrange(2))
    history = [typical * dice.uniform(0.998, 1.002) for _ in range(dice.randrange(3, 12))]
    case = ResultSet(alone, nodes, devices, metrics, claims, files, max_trials=dice.choice((1, 1, 3)))
    case = replace(case, history=history if dice.random() < 0.2 else ())
    for _ in range(dice.choice((0, 0, 0, 1, 1, 2))):
        case = replace(case, files=dice.choice(SPOILS)(dice, case, dict(case.files)))
    return case


def _wobble(dice: random.Random) -> float:
    return dice.uniform(0.995, 1.005)


def _check_values(dice: random.Random, name: str, unit: str, count: int) -> list[float]:
    if name == "loss":
        return [dice.choice((-1, 1)) * dice.uniform(0.1, 9) for _ in range(1)] * count
    values = [dice.uniform(0.6, 0.999) for _ in range(count)]
    if dice.random() < 0.1:
        values[dice.randrange(count)] *= dice.choice((0.1, 0.5, 0.9))
    return [value * 100 for value in values] if unit else values


def _files(alone: bool, devices: int, ranks: Sequence[float], others: dict[str, list[float]]) -> dict[str, bytes]:
    named = [
        (f"{rank // devices}/throughput_{rank % devices}" if alone else f"throughput_{rank}", value)
        for rank, value in enumerate(ranks)
    ]
    for name, values in others.items():
        named += [(f"{name}_{node}" if alone else name, value) for node, value in enumerate(values)]
    named += [("ranksize", len(ranks))]
    return {f"{name}.json": repr(value).encode() for name, value in named}


def _claim(dice: random.Random, metric: str, typical: float, nodes: int, devices: int) -> Claim:
    """Mostly a claim that the job meets by far, else one that it misses, or hardly meets."""
    where = dice.choice((0.5, 0.6, 0.7, 0.8, 0.5, 0.7, 0.97, 1.03, 1.5))
    per = dice.choice((None, None, "node", "device")) if metric == "throughput" else None
    times = {None: 1, "node": nodes, "device": nodes * devices}[per]
    until, kind = dice.choice(_DAYS), dice.random()
    bound = (typical * where if typical > 0 else typical / where) / times
    if kind < 0.5:
        return Claim(metric, at_least=bound, per=per, excused_until=until)
    if kind < 0.6:
        return Claim(metric, at_least=bound, at_most=bound + abs(bound) * 4, per=per, excused_until=until)
    lower, upper = -dice.choice((0.02, 0.05, 0.2)), dice.choice((None, 0.5 if bound < 0 else 3.0))
    reference = bound / (1 + lower) if bound > 0 else bound / (1 - lower)
    return Claim(metric, reference=reference, lower=lower, upper=upper, per=per, excused_until=until)


# What spoils a set. Some of it is harmless, and must not make a healthy job fail.

Files = dict[str, bytes]
Spoil = Callable[[random.Random, ResultSet, Files], Files]
_CONTENTS = (
    b"", b" ", b"nan", b"NaN", b"inf", b"-inf", b"Infinity", b"1e400", b"-1e400", b"None", b"null", b"True", b"1,5",
    b"1_000", b"0x10", b"[1.0]", b'"1.0"', b"1.0 2.0", b"1.0\n2.0", b"--1", b"1e", b"e5", b".", b"+", b"1.0f", b"{}",
    "１２".encode(), "\ufeff1.0".encode(), b"\xff\xfe", b"\x00", "−1".encode(), b"1\xa00", b"1.0;", b"0", b"-0.0",
    b"-5", b"1e-320", b"1e308", b"1e13", b"76.3", b"1.0000001", b"-0.1", b"1" * 257, b"1.0" + b" " * 300, b"9" * 300,
)  # fmt: skip
_STRANGERS = (
    "throughput_{n}.json", "throughput_-1.json", "throughput_+0.json", "throughput_00.json",
    "sub/throughput_0.json", "throughput_０.json", "{n}/throughput_0.json", "0/throughput_{n}.json",
    "0/throughput_0.json", "Throughput_0.json", "THROUGHPUT_1.JSON", "throughput_0.json", "accuracy_{n}.json",
    "accuracy_0.json", "accuracy_-1.json", "a/b/accuracy_1.json", "accuracy_１.json", "loss_0.json", "loss_{n}.json",
    "accuracy.json", "ranksize.json", "loss.json",
)  # fmt: skip
_HARMLESS = (
    "checkpoint_3.json", "throughput_history.json", "accuracy_best.json", "throughput.json", "throughput_.json",
    "summary_0.json", "throughput_0.txt", "ranksize_0.json", "sub/accuracy.json", "kernel_meta/x_1.json",
    "throughput_0.json.bak", "log_0.log", "throughput_0_1.json.tmp", "my_throughput_0.json", "throughput_0x1.json",
    "throughput-1.json", "throughput_0.json/readme.txt",
)  # fmt: skip


def _rewritten(dice: random.Random, _: ResultSet, files: Files) -> Files:
    return files | {dice.choice([*files]): dice.choice(_CONTENTS)}


def _mutated(dice: random.Random, _: ResultSet, files: Files) -> Files:
    name = dice.choice([*files])
    content = bytearray(files[name] or b"1")
    for _byte in range(dice.choice((1, 1, 2))):
        content[dice.randrange(len(content))] = dice.choice(b"0123456789+-.eE ,\n\x00\xc3")
    return files | {name: bytes(content)}


def _padded(dice: random.Random, _: ResultSet, files: Files) -> Files:
    name = dice.choice([*files])
    before, after = dice.choice((b"\n", b"  ", b"\t", b"\r\n", b"+", b"0")), dice.choice((b"", b"\n"))
    return files | {name: before + files[name] + after}


def _removed(dice: random.Random, _: ResultSet, files: Files) -> Files:
    name = dice.choice([*files])
    return {file: content for file, content in files.items() if file != name}


def _scaled(dice: random.Random, case: ResultSet, files: Files) -> Files:
    """One rank is far slower or faster than the others, or just a straggler."""
    name = dice.choice([file for file in files if "throughput" in file] or [*files])
    times = dice.choice((1e-300, 1e-3, 0.005, 0.0099, 0.0101, 0.02, 0.5, 0.9, 1.2, 50.0, 99.0, 101.0, 1e4, 1e9))
    try:
        return files | {name: repr(float(files[name]) * times).encode()}
    except ValueError:
        return files


def _all_scaled(dice: random.Random, _: ResultSet, files: Files) -> Files:
    """Every rank is too fast or too slow by the same factor, as by a wrong clock."""
    times = dice.choice((1e-9, 1e-3, 0.3, 10.0, 1e6, 1e9, 1e13, 1e250))
    scaled = dict(files)
    for name in files:
        if "throughput" in name:
            try:
                scaled[name] = repr(float(files[name]) * times).encode()
            except ValueError:
                continue
    return scaled


def _with_stranger(dice: random.Random, case: ResultSet, files: Files) -> Files:
    name = dice.choice(_STRANGERS).format(n=dice.choice((case.nodes, case.world, 99)))
    return files | {name: dice.choice((b"0.9", b"100.0", b"{}"))}


def _with_node_beside(dice: random.Random, case: ResultSet, files: Files) -> Files:
    """The accuracy of one node, which may contradict that of all."""
    name = f"accuracy_{dice.randrange(case.nodes)}.json"
    return files | {name: dice.choice((files.get("accuracy.json", b"0.9"), b"0.01", b"0.95", b"99", b"nan", b"{}"))}


def _with_harmless(dice: random.Random, _: ResultSet, files: Files) -> Files:
    return files | {dice.choice(_HARMLESS): dice.choice((b"0.9", b"{}", b""))}


def _other_ranks(dice: random.Random, case: ResultSet, files: Files) -> Files:
    world = case.world
    sizes = (world, case.devices, case.nodes, world + 1, float(world), f"{world}.5", "", -world)
    return files | {"ranksize.json": str(dice.choice(sizes)).encode()}


SPOILS: tuple[Spoil, ...] = (
    *(_rewritten, _rewritten, _mutated, _mutated, _padded, _removed, _scaled, _scaled, _all_scaled),
    *(_with_node_beside, _with_stranger, _with_stranger, _with_harmless, _with_harmless, _other_ranks),
)


# Through our code.


def judged(case: ResultSet) -> Verdict:
    """The verdict that our code gives the files."""
    store, outputs = MemoryStore(), StoreUrl("bucket", "outputs/")
    for name, content in case.files.items():
        store.write(outputs / name, content)
    ours = _our_case(case)
    measurements, missing, _ = read_results(store, outputs, ours, store.objects(outputs))
    trial = make_trial(ours, measurements=tuple(measurements), missing_results=tuple(missing))
    evidence = Evidence(history=tuple(_record(case, ours, number) for number in range(len(case.history))))
    return evaluate(case_values(trial), evidence, Rules(max_trials=case.max_trials), case.today).verdict


def _our_case(case: ResultSet) -> Case:
    metrics = {name: Metric(name, unit, limit) for name, (unit, limit) in case.metrics.items()}
    mode = Mode.SINGLE_SERVER if case.alone else Mode.CLUSTER
    thresholds = tuple(_threshold(each, metrics[each.metric].unit) for each in case.claims)
    return Case(make_workload(metrics=metrics), Shape(case.nodes, case.devices), thresholds, mode)


def _threshold(claim: Claim, unit: str) -> Threshold:
    expected = ExpectedFailure("the old driver", claim.excused_until) if claim.excused_until else None
    bounds = {key: getattr(claim, key) for key in BOUND_KEYS}
    return Threshold(claim.metric, unit, per=claim.per, expected_failure=expected, **bounds)


def _record(case: ResultSet, ours: Case, number: int) -> TrialRecord:
    return TrialRecord(
        trial=f"run-{number}/{ours.id}/1",
        run=f"run-{number}",
        case_id=ours.id,
        workload=ours.workload.name,
        shape=str(ours.shape),
        mode=ours.mode.value,
        key="key",
        family="family",
        at=float(number),
        throughput=case.history[number],
    )


# Counting.


@dataclass
class Counts:
    """How many sets got which verdict, and those whose verdict is wrong."""

    verdicts: Counter[str] = field(default_factory=Counter)
    wrong: list[tuple[int, str, str]] = field(default_factory=list)  # number, verdict, why not

    def add(self, other: Counts) -> None:
        self.verdicts.update(other.verdicts)
        self.wrong += other.wrong

    def of(self, verdict: str) -> int:
        """How many sets wrongly got this verdict."""
        return sum(each == verdict for _, each, _ in self.wrong)


def run(numbers: Iterable[int]) -> Counts:
    """Judge these sets, and compare each verdict with the oracle's."""
    counts = Counts()
    for number in numbers:
        case = make_set(number)
        right, why = allowed(case)
        verdict = judged(case)
        counts.verdicts[verdict.ruling.value] += 1
        if verdict.ruling.value not in right or not verdict.reason or "\n" in verdict.reason:
            told = f"{'/'.join(sorted(right))} is right: {why}; we say: {verdict.reason}"
            counts.wrong.append((number, verdict.ruling.value, told))
    return counts


def main() -> int:
    parser = argparse.ArgumentParser(prog="python -m tests.fuzz", description="Judge made-up result sets.")
    parser.add_argument("--sets", type=int, default=20_000, metavar="N")
    parser.add_argument("--from", type=int, default=0, metavar="NUMBER", dest="first")
    parser.add_argument("--jobs", type=int, default=1, metavar="K", help="processes")
    parser.add_argument("--show", type=int, metavar="NUMBER", help="print this set, and what becomes of it")
    options = parser.parse_args()
    if options.show is not None:
        _show(options.show)
        return 0
    started, counts = time.monotonic(), Counts()
    last = options.first + options.sets
    chunks = [range(start, min(start + CHUNK, last)) for start in range(options.first, last, CHUNK)]
    with ProcessPoolExecutor(options.jobs) as pool:
        for part in pool.map(run, chunks):
            counts.add(part)
            for number, verdict, why in part.wrong[:_MOST_PRINTED]:
                print(f"set {number}: {verdict}, but {why}")
    share = ", ".join(f"{count} {verdict}" for verdict, count in sorted(counts.verdicts.items()))
    print(f"{options.sets} sets from {options.first} on in {time.monotonic() - started:.0f} s: {share}")
    print(f"wrongly green {counts.of(PASSED)}, red {counts.of(FAILED)}, undecided {counts.of(INCONCLUSIVE)}")
    return 1 if counts.wrong else 0


def _show(number: int) -> None:
    case = make_set(number)
    print(pformat(case, width=120))
    print("right:", *allowed(case))
    print("ours: ", judged(case))
