"""How long it takes to evaluate a trial with the history in a ledger, and to show that history.

    python tests/bench/evaluate.py

Ledgers of so many trials of one case, all comparable, and as many of another shape; the median of many rounds, in CPU
time. Beside it stands what reading the trials' own records would take, and what the whole command takes with Python's
start.
"""

from __future__ import annotations

import json
import os
import random
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from contextlib import closing
from dataclasses import replace
from pathlib import Path

from pytest_aisbench.cli import history as history_module
from pytest_aisbench.cli.history import read_history
from pytest_aisbench.engine.submit import new_trial
from pytest_aisbench.engine.trial import VerdictStep
from pytest_aisbench.judge.comparison import traits_key
from pytest_aisbench.judge.evaluate import Rules
from pytest_aisbench.judge.values import trial_record
from pytest_aisbench.ledger import history
from pytest_aisbench.ledger.history import NEWEST, History
from pytest_aisbench.ledger.ledger import Ledger
from pytest_aisbench.model import codec
from pytest_aisbench.model.case import Case, Shape, Workload
from pytest_aisbench.model.metric import Measurement, Metric
from pytest_aisbench.model.trial import Step, Trial
from pytest_aisbench.model.verdict import Ruling, Threshold, Verdict

ROUNDS = 50
METRICS = {"throughput": Metric("throughput", "images/s"), "accuracy": Metric("accuracy", "")}
CLAIMS = (
    Threshold("throughput", "images/s", reference=14151.0, lower=-0.05, per="node"),
    Threshold("accuracy", at_least=0.759),
    Threshold("scaling", at_least=0.9, base="1x8"),
)
TRAITS = {f"trait {number}": "x" * 20 for number in range(20)}


def trial(run: str, nodes: int, dice: random.Random) -> Trial:
    case = Case(Workload("resnet50", "", ("code",), "train.py", "mindspore", 8, METRICS), Shape(nodes, 8), CLAIMS)
    ranks = range(case.shape.world)
    found = [Measurement("throughput", dice.gauss(1768.9, 17.0), "images/s", f"{rank}", rank) for rank in ranks]
    found.append(Measurement("accuracy", dice.gauss(0.77, 0.0002), "", "accuracy.json"))
    made = replace(new_trial(run, case, 0.0), step=Step.JUDGE, measurements=tuple(found))
    return replace(made, traits={**TRAITS, "nodes": str(nodes)})


def fill(ledger: Ledger, count: int, dice: random.Random) -> None:
    with ledger.database.transaction():
        for number in range(count):
            for nodes in (1, 2):
                made = trial(f"run-{number}", nodes, dice)
                made = made.moved(Step.DONE, float(number), judged=Verdict(Ruling.PASSED, "well"))
                measure = trial_record(made)
                assert measure is not None
                history.add_record(ledger.database, measure, made.traits)
    ledger.begin("now", {}, 0.0)


def shown(file: Path, case_id: str) -> str:
    """What `aisbench history CASE` prints."""
    with closing(Ledger(file)) as ledger:
        return "\n".join(history_module.history_lines(read_history(ledger, case_id, NEWEST)))


def command_ms(file: Path, case_id: str) -> float:
    """CPU time of the whole command."""
    command = [sys.executable, "-m", "pytest_aisbench", "history", case_id, "--ledger", str(file)]
    took = []
    for _ in range(5):
        before = os.times()
        subprocess.run(command, check=True, stdout=subprocess.DEVNULL)
        after = os.times()
        took.append(after.children_user + after.children_system - before.children_user - before.children_system)
    return statistics.median(took) * 1000


def median_ms(act: Callable[[], object], rounds: int = ROUNDS) -> float:
    took = []
    for _ in range(rounds):
        began = time.process_time()
        act()
        took.append(time.process_time() - began)
    return statistics.median(took) * 1000


def main() -> None:
    dice = random.Random(1)
    newest = trial("now", 2, dice)
    record = json.dumps(codec.dump(newest))
    by_record = median_ms(lambda: codec.load(Trial, json.loads(record)))
    heads = ["comparable trials", "the newest 100, ms", "a whole evaluation, ms", "`aisbench history`, ms"]
    heads += ["the whole command, ms", "reading as many records, ms", "ledger, MiB"]
    print("| " + " | ".join(heads) + " |\n" + "|---" * len(heads) + "|")
    for count in (100, 1000, 10_000):
        with tempfile.TemporaryDirectory() as folder, closing(Ledger(Path(folder) / "ledger.db")) as ledger:
            fill(ledger, count, dice)
            known = History(ledger.database)
            verdict_step = VerdictStep(Rules(3), known)
            case_id, same = newest.case.id, traits_key(newest.traits)
            look_up = median_ms(lambda: known.of(case_id, same))  # noqa: B023
            whole = median_ms(lambda: verdict_step.evaluate(newest, ()))  # noqa: B023
            ledger.save_trial(newest, 0.0)
            story = median_ms(lambda: shown(ledger.path, case_id))  # noqa: B023
            command = command_ms(ledger.path, case_id)
            ledger.database.read("PRAGMA wal_checkpoint(TRUNCATE)")
            size = ledger.path.stat().st_size / 2**20
            cells = [f"{count:,}", f"{look_up:.2f}", f"{whole:.1f}", f"{story:.1f}", f"{command:.0f}"]
            print("| " + " | ".join([*cells, f"{by_record * count:,.0f}", f"{size:.1f}"]) + " |", flush=True)


if __name__ == "__main__":
    main()
