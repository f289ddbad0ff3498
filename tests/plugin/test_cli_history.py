"""`aisbench history` and `aisbench references`, after a run whose case has a past."""

from __future__ import annotations

import json
import random
import shutil
import subprocess
from collections.abc import Callable
from contextlib import closing
from dataclasses import replace
from pathlib import Path

import pytest
from commands import AISBENCH, run
from past import remember
from yard import Yard

from pytest_aisbench.config import toml_document
from pytest_aisbench.judge.comparison import traits_key
from pytest_aisbench.ledger import history
from pytest_aisbench.ledger.ledger import Ledger
from pytest_aisbench.model.codec import dump, load
from pytest_aisbench.model.trial import Trial, TrialRecord
from pytest_aisbench.model.verdict import Ruling

DAY = 86400.0


class Printed:
    """What a command printed."""

    def __init__(self, done: subprocess.CompletedProcess[str]) -> None:
        self.code, self.out, self.err = done.returncode, done.stdout, done.stderr


Command = Callable[..., Printed]


@pytest.fixture
def aisbench(yard: Yard) -> Command:
    return lambda *arguments, folder=".": Printed(
        run(*AISBENCH, *arguments, folder=yard.folder / folder, environment=yard.environment())
    )


@pytest.fixture(scope="module")
def trained(tmp_path_factory: pytest.TempPathFactory, card: Path) -> Yard:
    """What one real run left, with thirty trials of the same kind before it, one percent apart."""
    yard = Yard(tmp_path_factory.mktemp("trained"), card)
    yard.suite(thresholds='[local."*"]\nthroughput = { at_least = 1 }  # a floor\naccuracy = { at_least = 0.5 }\n')
    assert yard.pytest("suites", "--nodes", "1").code == 0
    with closing(Ledger(yard.folder / "reports" / "ledger.db")) as ledger:
        past = history.History(ledger.database)
        last = past.all("toy-1x2")[-1]
        chance = random.Random(3)
        for number in range(30):
            value = chance.gauss(last.throughput, 0.01 * last.throughput)
            earlier = replace(
                last,
                trial=f"past/{number}",
                run=f"past-{number:02d}",
                at=last.at - (30 - number) * DAY,
                throughput=value,
                metrics={**last.metrics, "throughput": value},
            )
            history.add_record(ledger.database, earlier, past.traits(last.key))
    return yard


@pytest.fixture
def newest(yard: Yard, trained: Yard) -> TrialRecord:
    """A copy of it for each test, and what its run measured."""
    shutil.copytree(trained.folder, yard.folder, symlinks=True, dirs_exist_ok=True)
    with closing(Ledger(yard.folder / "reports" / "ledger.db")) as ledger:
        return history.History(ledger.database).all("toy-1x2")[-1]


def claims(yard: Yard) -> Path:
    return yard.folder / "suites" / "toy" / "thresholds.toml"


def test_a_case_tells_its_past(yard: Yard, newest: TrialRecord, aisbench: Command) -> None:
    output = aisbench("history", "toy-1x2", "--svg", "past.svg")
    assert output.code == 0, output.err
    assert "toy-1x2: 31 trials" in output.out
    assert "claimed at last: throughput >= 1 images/s" in output.out
    assert f"fingerprint {newest.key}: 31 trials" in output.out
    assert "31 that count: mean" in output.out
    assert "past-07" in output.out
    assert all(len(line) <= 80 for line in output.out.splitlines())
    assert (yard.folder / "past.svg").read_text(encoding="utf-8").startswith("<svg")
    machine = json.loads(aisbench("history", "toy-1x2", "--json", "--limit", "5").out)
    assert machine["schema"] == "aisbench-history/1"
    (only,) = machine["fingerprints"]
    assert [trial["run"] for trial in only["trials"]] == [*(f"past-{n}" for n in (26, 27, 28, 29)), newest.run]
    assert machine["trials"] == 31
    assert only["trials"][-1]["metrics"] == {"throughput": newest.throughput, "accuracy": newest.accuracy}
    assert only["traits"]["platform"] == "local"


def test_without_a_name_it_lists_the_cases_with_counts_verdicts_and_a_spark_line(
    yard: Yard, newest: TrialRecord, aisbench: Command
) -> None:
    with closing(Ledger(yard.folder / "reports" / "ledger.db")) as ledger:
        for number, ruling in enumerate([Ruling.FAILED, Ruling.FAILED, Ruling.FAILED, Ruling.PASSED]):
            slow = replace(newest, trial=f"slow/{number}", case_id="slow-8x8", at=newest.at + number, ruling=ruling)
            history.add_record(ledger.database, slow, {})
    heading, first, toy = aisbench("history").out.splitlines()
    assert heading.split() == ["case", "trials", "verdicts", "newest", "throughput"]
    assert first.split()[:6] == ["slow-8x8", "4", "1", "PASSED,", "3", "FAILED"]
    assert toy.split()[:4] == ["toy-1x2", "31", "31", "PASSED"]
    assert f" {newest.throughput:g} images/s  " in toy
    assert len(toy.split()[-1]) > 10
    assert set(toy.split()[-1]) <= set("▁▂▃▄▅▆▇█")
    machine = json.loads(aisbench("history", "--json").out)
    assert machine["cases"] == ["slow-8x8", "toy-1x2"]
    assert machine["summaries"][0]["verdicts"] == {"FAILED": 3, "PASSED": 1}
    assert len(machine["summaries"][1]["throughput"]) == 31


def test_a_decline_is_held_against_the_beginning_however_few_trials_are_shown(
    yard: Yard, newest: TrialRecord, aisbench: Command
) -> None:
    chance = random.Random(2)
    slowly = [25.0 * (1 - 0.0004 * number) + chance.gauss(0.0, 0.05) for number in range(150)]
    remember(yard.folder / "reports" / "ledger.db", "toy-1x2", slowly, Ruling.INCONCLUSIVE)
    below = "throughput is 23.5", "from 24.9", "in all of the last 12 values"
    declined = "throughput has drifted to 23.5", "from the anchor 24.9"
    for limit, expected in (("12", below), ("150", declined)):
        output = aisbench("history", "toy-1x2", "--limit", limit).out
        assert [text for text in expected if text not in " ".join(output.split())] == []
        assert all(len(line) <= 80 for line in output.splitlines())
    assert "toy-1x2: the newest 100 of 150 trials" in aisbench("history", "toy-1x2").out


@pytest.mark.parametrize(
    ("arguments", "why"),
    [
        (["--svg", "past.svg"], "--svg draws the history of one case; name the CASE"),
        (["toy-1x2", "--limit", "1", "--svg", "past.svg"], "fewer than two trials of toy-1x2 count"),
        (["toy-1x2", "--svg", "nowhere/past.svg"], "nowhere/past.svg: No such file or directory"),
    ],
)
def test_a_picture_that_cannot_be_drawn_is_one_line(
    yard: Yard, newest: TrialRecord, aisbench: Command, arguments: list[str], why: str
) -> None:
    output = aisbench("history", *arguments)
    assert output.code == 4
    assert why in output.err
    assert (output.out, output.err.count("\n")) == ("", 1)
    assert not (yard.folder / "past.svg").exists()


def test_a_change_of_what_is_trained_opens_a_chapter_that_says_what_changed(
    yard: Yard, newest: TrialRecord, aisbench: Command
) -> None:
    with closing(Ledger(yard.folder / "reports" / "ledger.db")) as ledger:
        traits = {**history.History(ledger.database).traits(newest.key), "image": "mindspore-9"}
        later = replace(newest, trial="later", run="later", at=newest.at + DAY, key=traits_key(traits))
        history.add_record(ledger.database, later, traits)
    output = aisbench("history", "toy-1x2").out
    assert f"fingerprint {newest.key}: 31 trials" in output
    assert "  changed  image: none -> mindspore-9" in output
    assert "fingerprint" in output.rpartition("changed")[0].rpartition("past-29")[2]


def test_an_unknown_case_names_those_that_are_known(yard: Yard, newest: TrialRecord, aisbench: Command) -> None:
    output = aisbench("history", "toy-9x9")
    assert output.code == 4
    assert output.err.count("\n") == 1
    assert "known: toy-1x2" in output.err


@pytest.mark.slow
def test_a_proposal_is_a_diff_that_applies_and_then_stands(yard: Yard, newest: TrialRecord, aisbench: Command) -> None:
    before = claims(yard).read_text(encoding="utf-8")
    output = aisbench("references", "propose")
    assert output.code == 0, output.err
    assert claims(yard).read_text(encoding="utf-8") == before
    assert "toy-1x2 throughput: >= 1 images/s -> >= " in output.err
    assert f"fingerprint {newest.key}" in " ".join(output.err.split())
    applied = subprocess.run(["git", "apply"], input=output.out, cwd=yard.folder, text=True, check=False)
    assert applied.returncode == 0
    text = claims(yard).read_text(encoding="utf-8")
    assert before.rstrip() in text
    assert "# From history: 31 trials " in text
    claim = toml_document.parse_or_empty(text)["local"]["1x2"]["throughput"]
    assert claim["reference"] == pytest.approx(newest.throughput, rel=0.01)
    assert -0.08 < claim["lower"] < -0.02
    again = aisbench("references", "propose")
    assert again.out == ""
    assert "stands: 31 trials" in again.err
    assert yard.pytest("suites", "--nodes", "1").code == 0


def test_the_proposal_is_written_where_one_asks_for_it(yard: Yard, newest: TrialRecord, aisbench: Command) -> None:
    assert aisbench("references", "propose", "--apply", "--case", "toy-1x2").code == 0
    assert "# From history" in claims(yard).read_text(encoding="utf-8")
    machine = json.loads(aisbench("references", "propose", "--json").out)
    assert {claim["metric"]: claim["proposed"] for claim in machine["claims"]}["throughput"] is None


def test_what_is_known_to_be_too_slow_is_no_reference(yard: Yard, newest: TrialRecord, aisbench: Command) -> None:
    late = '1000, expected_failure = { reason = "a slow switch", until = 2999-01-31 } }'
    claims(yard).write_text(claims(yard).read_text().replace("1 }  # a floor", late))
    output = aisbench("references", "propose")
    assert output.code == 0, output.err
    assert "+throughput" not in output.out
    assert "expected to fail until 2999-01-31: what it does meanwhile is no reference" in " ".join(output.err.split())


def test_a_looser_proposal_is_marked_and_written_only_if_asked_for(
    yard: Yard, newest: TrialRecord, aisbench: Command
) -> None:
    claims(yard).write_text(claims(yard).read_text().replace("at_least = 1 }", f"at_least = {newest.throughput} }}"))
    output = aisbench("references", "propose")
    assert output.code == 0
    assert "+throughput" not in output.out
    assert "LOOSER than today's claim by" in output.err
    assert "--allow-looser puts it into the diff" in " ".join(output.err.split())
    machine = json.loads(aisbench("references", "propose", "--allow-looser", "--json").out)
    speed = machine["claims"][0]
    assert (speed["metric"], speed["looser"], speed["withheld"]) == ("throughput", True, False)
    assert "looser than >= " in machine["diff"]


def test_trials_with_a_slow_card_are_no_baseline(yard: Yard, newest: TrialRecord, aisbench: Command) -> None:
    with closing(Ledger(yard.folder / "reports" / "ledger.db")) as ledger:
        ((record,),) = ledger.database.read("SELECT record FROM trials WHERE trial = ?", newest.trial)
        trial = load(Trial, json.loads(record))
        slow = [replace(each, value=each.value * (0.7 if each.rank == 1 else 1)) for each in trial.measurements]
        changed = json.dumps(dump(replace(trial, measurements=tuple(slow))))
        with ledger.database.transaction():
            ledger.database.write("UPDATE trials SET record = ? WHERE trial = ?", changed, newest.trial)
    output = aisbench("references", "propose")
    assert "+# From history: 30 trials" in output.out
    assert "not counted: 1 with a slow card or node" in " ".join(output.err.split())


def test_a_claim_is_held_against_the_past(yard: Yard, newest: TrialRecord, aisbench: Command) -> None:
    floor = newest.throughput * 1.5
    claims(yard).write_text(
        f'[local."*"]\nthroughput = {{ at_least = {floor} }}\naccuracy = {{ at_least = 0.5 }}\n', encoding="utf-8"
    )
    output = aisbench("references", "check")
    assert output.code == 0, output.err
    assert "toy-1x2 throughput" in output.out
    assert "  31 runs: 0 met, 31 missed, first in past-00, 0 undecided; at worst " in output.out
    assert "toy-1x2 accuracy >= 0.5\n  31 runs: 31 met, 0 missed, 0 undecided; at worst 0.9\n" in output.out
    machine = json.loads(aisbench("references", "check", "--json").out)
    assert [(each["metric"], each["met"], each["missed"], each["first_missed"]) for each in machine["claims"]] == [
        ("throughput", 0, 31, "past-00"),
        ("accuracy", 31, 0, None),
    ]


def test_a_diff_of_suites_elsewhere_says_where_it_applies(yard: Yard, newest: TrialRecord, aisbench: Command) -> None:
    (yard.folder / "below").mkdir()
    output = aisbench("references", "propose", "../suites", "--reports", "../reports", folder="below")
    assert output.code == 0, output.err
    assert output.err.endswith(f"the diff applies in {yard.folder}\n")
    assert all(len(line) <= 80 for line in output.err.splitlines()[:-1])
    applied = subprocess.run(["git", "apply"], input=output.out, cwd=yard.folder, text=True, check=False)
    assert applied.returncode == 0
    assert "# From history" in claims(yard).read_text(encoding="utf-8")


def test_nobody_needs_the_keys_of_a_platform_to_look_at_what_it_did(
    yard: Yard, newest: TrialRecord, aisbench: Command
) -> None:
    (yard.folder / "aisbench.toml").write_text('platform = "modelarts"\n[access]\naccess_key = "${NOBODY_SET_THIS}"\n')
    with closing(Ledger(yard.folder / "reports" / "ledger.db")) as ledger:
        traits = {**history.History(ledger.database).traits(newest.key), "platform": "modelarts"}
        for number in range(9):
            run, at = f"later-{number}", newest.at + DAY * (1 + number)
            history.add_record(
                ledger.database, replace(newest, trial=run, run=run, at=at, key=traits_key(traits)), traits
            )
    claims(yard).write_text(f"{claims(yard).read_text()}{claims(yard).read_text().replace('local', 'modelarts')}")
    assert aisbench("history").out.splitlines()[1].startswith("toy-1x2 ")
    assert "9 runs: 9 met" in aisbench("references", "check").out
    assert "31 runs: 31 met" in aisbench("references", "check", "--platform", "local").out
    assert '+[modelarts."1x2"]' in aisbench("references", "propose").out


@pytest.mark.parametrize(
    ("arguments", "why"),
    [
        (["--platform", "modelarts"], "no judged trial of a case in suites on platform modelarts"),
        (["--case", "toy-1x2", "--case", "toy-9x9"], "no judged trial of toy-9x9 in suites; see"),
        (["--platform", "volcano"], "unknown platform 'volcano'; known: apulis, local, modelarts, slurm"),
        (["elsewhere"], "there is no folder elsewhere; name the folders of your suites"),
    ],
)
def test_what_history_does_not_have_is_one_line(
    yard: Yard, newest: TrialRecord, aisbench: Command, arguments: list[str], why: str
) -> None:
    output = aisbench("references", "check", *arguments)
    assert output.code == 4
    assert why in output.err
    assert output.err.count("\n") == 1
