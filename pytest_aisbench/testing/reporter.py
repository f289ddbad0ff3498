"""What every Reporter must do."""

from __future__ import annotations

import pytest

from pytest_aisbench.domain.entry import SCHEMA, CaseEntry, RunEntry, TrialEntry, Value
from pytest_aisbench.domain.metric import ACCURACY, THROUGHPUT
from pytest_aisbench.domain.ports import Reporter
from pytest_aisbench.domain.verdict import Finding, Outcome, Ruling

HOSTILE = "<script>alert('x')</script> ]]> \x1b[31m \u202e \ud800 & 训练"


def case_entry(ruling: Ruling | None, reason: str = "as it was judged", measured: float | None = 1200.0) -> CaseEntry:
    """A case of two nodes with two cards, one rank missing where nothing was measured."""
    name = ruling.value.lower() if ruling else "unjudged"
    outcome = Outcome.MET if ruling is Ruling.PASSED else Outcome.UNMEASURED if measured is None else Outcome.MISSED
    finding = Finding(THROUGHPUT, outcome, measured, ">= 1000 images/s", f"{THROUGHPUT}: {reason}")
    share = None if measured is None else measured / 4
    trial = TrialEntry(
        trial=1,
        job_id="0b6c4f4e-0000-4000-8000-000000000001",
        platform_phase="Completed",
        phase="SUCCEEDED",
        queued_s=1.5,
        ran_s=60.0,
        throughput_by_rank=(300.0, 300.0, 300.0, share),
        throughput_by_server=(600.0, None if share is None else 300.0 + share),
        accuracy_by_server=(0.76,),
        stragglers=(),
        logs=(f"logs/{name}-2x2/1/worker-0.log",),
        stage=f"obs://bucket/aisbench/trials/run/{name}-2x2/1/",
        times={"stage": 1_700_000_000.0, "done": 1_700_000_060.0},
        notes=(reason,),
    )
    return CaseEntry(
        id=f"{name}-2x2",
        workload=name,
        nodes=2,
        devices_per_node=2,
        mode="cluster",
        verdict=ruling,
        reason=reason,
        card_hours=0.066667,
        metrics={THROUGHPUT: Value(measured, "images/s"), ACCURACY: Value(0.76, "")},
        findings=(finding,) if ruling else (),
        trials=(trial,) if ruling else (),
    )


class ReporterContract:
    """Needs a fixture `reporter`, built as the plugin would build it."""

    @pytest.fixture
    def reporter(self) -> Reporter:
        raise AssertionError("the test class that inherits ReporterContract has a fixture `reporter`")

    def run_of(self, *cases: CaseEntry, exit_code: int | None) -> RunEntry:
        finished = None if exit_code is None else "2023-11-14T22:14:20.000Z"
        settings = {"platform": "local", "nodes": [2]}
        return RunEntry(SCHEMA, "run", "2023-11-14T22:13:20.000Z", finished, exit_code, settings, cases)

    @pytest.mark.parametrize("ruling", [*Ruling, None])
    def test_every_verdict_is_taken(self, reporter: Reporter, ruling: Ruling | None) -> None:
        entry = case_entry(ruling)
        reporter.case(entry)
        reporter.run(self.run_of(entry, exit_code=0))

    def test_what_was_not_measured_is_taken(self, reporter: Reporter) -> None:
        entry = case_entry(Ruling.FAILED, "throughput_3.json is missing", measured=None)
        reporter.case(entry)
        reporter.run(self.run_of(entry, exit_code=1))

    def test_text_that_a_job_wrote_is_taken(self, reporter: Reporter) -> None:
        entry = case_entry(Ruling.FAILED, HOSTILE)
        reporter.case(entry)
        reporter.run(self.run_of(entry, exit_code=1))

    def test_a_case_may_end_twice(self, reporter: Reporter) -> None:
        """Another test of the same case failed after the first had passed."""
        reporter.case(case_entry(Ruling.PASSED))
        reporter.case(case_entry(Ruling.FAILED))
        reporter.run(self.run_of(case_entry(Ruling.FAILED), exit_code=1))

    def test_a_run_may_end_without_a_case_or_in_its_middle(self, reporter: Reporter) -> None:
        reporter.run(self.run_of(exit_code=None))
        reporter.run(self.run_of(case_entry(None), exit_code=2))
