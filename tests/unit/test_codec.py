"""Ledgers that were written before a field or a key was renamed are still read."""

from __future__ import annotations

from pytest_aisbench.engine.submit import new_trial
from pytest_aisbench.errors import Blame
from pytest_aisbench.model import codec
from pytest_aisbench.model.case import Case
from pytest_aisbench.model.metric import MissingResult
from pytest_aisbench.model.trial import Fault, Trial


def test_a_renamed_field_is_read_by_its_old_name_and_written_by_its_new() -> None:
    fault = codec.load(Fault, {"blame": "platform", "text": "lost", "passing": True})
    assert fault == Fault(Blame.PLATFORM, "lost", transient=True)
    assert codec.dump(fault) == {"blame": "platform", "text": "lost", "transient": True}
    assert codec.load(Fault, codec.dump(fault)) == fault


def test_a_renamed_key_of_a_mapping_is_read_by_its_old_name(case: Case) -> None:
    record = codec.dump(new_trial("run", case, 1.0))
    old = {**record, "times": {**record["times"], "spared": 9.0}}
    assert codec.load(Trial, old).times == {**record["times"], "retry_after": 9.0}
    assert codec.load(Trial, {**record, "unknown": 1}) == codec.load(Trial, record)


def test_a_trial_of_an_older_ledger_keeps_what_was_missing_and_what_was_due(case: Case) -> None:
    missing = [{"metric": "throughput", "text": "throughput_0.json is missing"}]
    record = codec.dump(new_trial("run", case, 1.0))
    old = {key: value for key, value in record.items() if key not in {"missing_results", "another_trial"}}
    trial = codec.load(Trial, {**old, "flaws": missing, "due": "noise"})
    assert trial.missing_results == (MissingResult("throughput", "throughput_0.json is missing"),)
    assert trial.another_trial == "noise"
