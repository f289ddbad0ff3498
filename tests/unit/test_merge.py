"""The runs of CI shards as one: verdicts and exit code are those of one run, and what is twice is named."""

from __future__ import annotations

import pytest
from factories import make_case_entry, make_run_entry

from pytest_aisbench.judge.merge import merge_runs
from pytest_aisbench.model.results import Executor, RunEntry
from pytest_aisbench.model.verdict import Ruling

P, F, B, I = Ruling.PASSED, Ruling.FAILED, Ruling.BROKEN, Ruling.INCONCLUSIVE  # noqa: E741


def shard(name: str, code: int | None, **verdicts: Ruling | None) -> RunEntry:
    cases = (make_case_entry(workload=case, verdict=verdict) for case, verdict in verdicts.items())
    started = f"2024-01-01T00:00:0{name}Z"
    return make_run_entry(*cases, run=name, exit_code=code, started=started, finished=f"2024-01-01T01:00:0{name}Z")


@pytest.mark.parametrize(
    ("shards", "code"),
    [
        ([shard("1", 0, a=P), shard("2", 0, b=P)], 0),
        ([shard("1", 0, a=P), shard("2", 1, b=F)], 1),
        ([shard("1", 1, a=P), shard("2", 0, b=P)], 1),  # an ordinary test failed
        ([shard("1", 12, a=B), shard("2", 13, b=I)], 12),
        ([shard("1", 13, a=I), shard("2", 0, b=P)], 13),
        ([shard("1", 5), shard("2", 0, b=P)], 0),
        ([shard("1", 5), shard("2", 5, b=None)], 5),
        ([shard("1", 1, a=F), shard("2", 143, b=P)], 143),
        ([shard("1", 2, a=P), shard("2", 1, b=F)], 2),
        ([shard("1", None, a=P), shard("2", 0, b=P)], 143),  # it was killed
        ([shard("1", 11, a=P), shard("2", 0, b=P)], 11),
    ],
)
def test_the_exit_code_is_that_of_one_run(shards: list[RunEntry], code: int) -> None:
    assert merge_runs(shards, "merged").entry.exit_code == code


def test_a_manifest_decides_what_is_missing_from_all_shards_together() -> None:
    shards = [shard("1", 11, a=P), shard("2", 11, b=P)]
    assert merge_runs(shards, "merged", ("a-1x1", "b-1x1")).entry.exit_code == 0
    merged = merge_runs(shards, "merged", ("a-1x1", "c-1x1"))
    assert merged.entry.exit_code == 11
    assert merged.notes == ("c-1x1 is required, and no run judged it",)


@pytest.mark.parametrize(
    ("one", "other", "counts"), [(P, F, F), (F, P, F), (P, I, I), (B, P, P), (None, P, P), (None, B, B), (B, F, F)]
)
def test_of_a_case_in_several_runs_the_worst_verdict_on_the_cluster_counts(
    one: Ruling | None, other: Ruling | None, counts: Ruling
) -> None:
    merged = merge_runs([shard("1", 0, a=one), shard("2", 0, a=other)], "merged")
    (case,) = merged.entry.cases
    assert case.verdict is counts
    words = [verdict.value if verdict else "not judged" for verdict in (one, other)]
    assert merged.notes == (f"a-1x1 is in several runs: {words[0]} in 1, {words[1]} in 2; {counts.value} counts",)


def test_settings_that_differ_are_named_and_the_times_are_those_of_all() -> None:
    one = make_run_entry(run="1", started="2024-01-01T00:00:00Z", finished="2024-01-01T01:00:00Z", exit_code=0,
                         settings={"platform": "local", "nodes": [1]}, executor=Executor(commit="aaaa"))  # fmt: skip
    two = make_run_entry(run="2", started="2024-01-01T00:30:00Z", finished="2024-01-01T02:00:00Z", exit_code=0,
                         settings={"platform": "slurm", "nodes": [2]}, executor=Executor(commit="bbbb"))  # fmt: skip
    merged = merge_runs([two, one], "merged")
    assert merged.notes == (
        "the runs differ by platform: slurm in 2, local in 1",
        "the runs differ by commit: bbbb in 2, aaaa in 1",
    )
    assert (merged.entry.started, merged.entry.finished) == ("2024-01-01T00:00:00Z", "2024-01-01T02:00:00Z")
    assert merged.entry.settings["nodes"] == [1, 2]
