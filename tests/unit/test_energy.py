"""Power over a job's window and the energy that it makes; the file that samples come from."""

from __future__ import annotations

import math
from dataclasses import replace
from pathlib import Path

import pytest
from factories import make_case, make_trial
from hypothesis import given
from hypothesis import strategies as st

from pytest_aisbench import Platform, Settings
from pytest_aisbench.engine.collect import PowerMeter, with_usage_and_power
from pytest_aisbench.errors import Unreachable, UsageFault
from pytest_aisbench.judge.standards import power_in_window
from pytest_aisbench.model.job import Power, Sample
from pytest_aisbench.model.metric import Curve
from pytest_aisbench.model.trial import Trial
from pytest_aisbench.platforms.power_file import PowerFile


def steady(node: str = "0", watts: float = 300.0, since: int = 0, until: int = 600, every: int = 6) -> list[Sample]:
    return [Sample(float(at), node, watts) for at in range(since, until + 1, every)]


def test_a_constant_power_makes_power_times_time() -> None:
    found = power_in_window(steady(), 30.0, 330.0, 1, "bmc")
    assert found == Power(300.0, 300.0, 90_000.0, "bmc")


def test_a_ramp_is_integrated_by_trapezoids_and_cut_at_the_windows_ends() -> None:
    ramp = [Sample(float(at), "0", 2.0 * at) for at in range(0, 101, 10)]
    found = power_in_window(ramp, 15.0, 85.0, 1, "bmc")
    assert found.energy_j == pytest.approx(85**2 - 15**2)
    assert found.max_w == pytest.approx(170.0)
    assert found.average_w == pytest.approx(100.0)


def test_nodes_add_up_and_the_highest_power_is_that_of_the_sum() -> None:
    first = [Sample(float(at), "0", 500.0 if at < 50 else 100.0) for at in range(0, 101, 5)]
    second = [Sample(at + 2.5, "1", 100.0 if at < 50 else 500.0) for at in range(-5, 101, 5)]
    found = power_in_window([*first, *second], 0.0, 100.0, 2, "bmc")
    assert found.energy_j is not None
    assert found.energy_j == pytest.approx(60_000.0, rel=0.05)
    assert found.max_w is not None
    assert found.max_w < 1000.0  # they are never at their highest together


def test_the_order_of_samples_does_not_matter() -> None:
    both = [*steady(), *steady("1", 200.0)]
    assert power_in_window(both, 30.0, 330.0, 2, "") == power_in_window(both[::-1], 30.0, 330.0, 2, "")


@pytest.mark.parametrize(
    ("samples", "nodes", "why"),
    [
        ([], 1, "there are samples of 0 nodes during the job, it has 1"),
        (steady(), 2, "there are samples of 1 nodes during the job, it has 2"),
        ([*steady(), *steady("9")], 1, "there are samples of 2 nodes during the job, it has 1"),
        (steady(since=1000, until=2000), 1, "there are samples of 0 nodes during the job, it has 1"),
        (steady(every=300), 1, "node 0 has only 2 samples during the job"),
        (steady(until=130), 1, "node 0 was not sampled for 68% of the job"),
        ([*steady(), Sample(100.0, "0", math.inf)][:2], 1, "node 0 has only 2 samples during the job"),
        ([*steady("0", 1.5e308), *steady("1", 1.5e308)], 2, "the samples are beyond every finite sum"),
    ],
)
def test_too_few_samples_are_no_power(samples: list[Sample], nodes: int, why: str) -> None:
    found = power_in_window(samples, 0.0, 400.0, nodes, "bmc")
    assert (found.energy_j, found.average_w, found.max_w) == (None, None, None)
    assert found.why == why


def test_a_gap_is_told() -> None:
    holed = [sample for sample in steady() if not 100 < sample.at < 190]
    found = power_in_window(holed, 6.0, 600.0, 1, "bmc")
    assert found.energy_j == pytest.approx(300.0 * 594)
    assert found.gaps == ("node 0: no sample for 96 s after 90 s",)


def test_a_window_without_time_has_no_power() -> None:
    assert power_in_window(steady(), 10.0, 10.0, 1, "").why == "the job has no time in which to draw power"


numbers = st.floats(allow_nan=True, allow_infinity=True)
any_samples = st.lists(st.builds(Sample, numbers, st.sampled_from(["0", "1"]), numbers))
near_samples = st.lists(st.builds(Sample, st.floats(0, 100), st.sampled_from(["0", "1"]), st.floats(0, 1e6)))


@given(any_samples | near_samples, st.integers(1, 2))
def test_no_samples_break_it_and_energy_lies_between_none_and_the_highest_power(
    samples: list[Sample], nodes: int
) -> None:
    found = power_in_window(samples, 10.0, 90.0, nodes, "")
    assert (found.energy_j is None) == bool(found.why)
    if found.energy_j is not None:
        assert found.max_w is not None
        assert found.average_w is not None
        assert found.energy_j >= 0
        assert found.average_w <= found.max_w * (1 + 1e-9)


# The file.

CSV = "time,node,watts\n" + "".join(f"{sample.at},0,{sample.watts}\n" for sample in steady())


def read(tmp_path: Path, text: str, job: str = "j") -> list[Sample]:
    file = tmp_path / "power.csv"
    file.write_text(text, encoding="utf-8")
    return list(PowerFile(Settings(power=file)).samples(job, 0.0, 4e9))


@pytest.mark.parametrize(
    "text",
    [
        "time,node,watts\n1700000000.5,0,312.5\n",
        "1700000000.5,0,312.5\n",
        "# by ipmitool\n\nnode, watts, time\n0, 312.5, 1700000000.5\n",
        "watts,time,node\n312.5,1700000000.5,0\n",
        "2023-11-14T22:13:20.500000Z,0,312.5\n",
        "2023-11-15T06:13:20.500000+08:00,0,312.5\n",
        '{"time": 1700000000.5, "node": 0, "watts": 312.5}\n',
        '{"time": "2023-11-14T22:13:20.500000+00:00", "node": "0", "watts": "312.5"}\n',
        "1700000000.5,0,312.5,j\n1700000000.5,0,9999,another\n",
        "1700000000.5,0,312.5\n1700000006.5,0,31",  # the next is being written
    ],
)
def test_a_sample_may_be_written_in_several_ways(tmp_path: Path, text: str) -> None:
    assert read(tmp_path, text) == [Sample(1_700_000_000.5, "0", 312.5)]


@pytest.mark.parametrize(
    ("text", "why"),
    [
        ("time,node,watts\n1700000000,0,much\n", "power.csv:2: 'much' are no watts"),
        ("1700000000,0,-3\n", "power.csv:1: '-3' are no watts"),
        ("1700000000,0,nan\n", "power.csv:1: 'nan' are no watts"),
        ("1700000000,0\n", "power.csv:1: '1700000000,0' is not time,node,watts"),
        ("1700000000,,5\n", "power.csv:1: node is missing"),
        ("yesterday,0,5\n", "power.csv:1: Invalid isoformat string: 'yesterday'"),
        ("2023-11-14T22:13:20,0,5\n", "power.csv:1: '2023-11-14T22:13:20' has no zone: end it with Z or +08:00"),
        ('{"time": 1, "node": 0}\n', "power.csv:1: watts is missing"),
        ('{"time": [1], "node": 0, "watts": 5}\n', "power.csv:1: it is not a sample"),
        ("{\n", "power.csv:1: "),
    ],
)
def test_one_bad_line_spoils_the_file_and_is_named(tmp_path: Path, text: str, why: str) -> None:
    with pytest.raises(UsageFault) as caught:
        read(tmp_path, text)
    assert why in str(caught.value)
    assert "\n" not in str(caught.value)


def test_a_file_that_is_not_there_is_a_reason(tmp_path: Path) -> None:
    with pytest.raises(UsageFault, match=r"gone\.csv cannot be read: No such file"):
        list(PowerFile(Settings(power=tmp_path / "gone.csv")).samples("j", 0, 1))


# The meter.

TRIAL = make_trial(make_case("1x1"), job_id="j", times={"running": 30.0, "harvest": 330.0})


class Broken:
    def samples(self, job_id: str, start: float, end: float) -> list[Sample]:
        raise RuntimeError("the BMC does not answer")

    def close(self) -> None:
        pass


def test_the_first_source_that_knows_of_the_job_counts_and_a_broken_one_breaks_nothing(tmp_path: Path) -> None:
    file = tmp_path / "power.csv"
    file.write_text(CSV, encoding="utf-8")
    meter = PowerMeter({"bmc": Broken(), "file": PowerFile(Settings(power=file))})
    assert meter.power_of(TRIAL) == Power(300.0, 300.0, 90_000.0, "file, over the job")
    assert PowerMeter({"bmc": Broken()}).power_of(TRIAL) == Power(why="bmc: the BMC does not answer")
    elsewhere = replace(TRIAL, times={"running": 9000.0, "harvest": 9100.0})
    assert meter.power_of(elsewhere) == Power(why="bmc: the BMC does not answer; file: it has no sample of the job")
    assert PowerMeter({}).power_of(TRIAL) is None
    unseen = "the job was never seen running, and its log does not show when it trained"
    assert meter.power_of(replace(TRIAL, times={})) == Power(why=unseen)


def test_where_the_log_tells_when_training_was_the_window_is_that(tmp_path: Path) -> None:
    file = tmp_path / "power.csv"
    file.write_text(CSV, encoding="utf-8")
    trained = replace(TRIAL, curve=Curve(window=(60.0, 160.0)))
    assert PowerMeter({"file": PowerFile(Settings(power=file))}).power_of(trained) == Power(
        300.0, 300.0, 30_000.0, "file, over the training"
    )


class Nodes:
    """As much of a platform as is asked for its use."""

    def __init__(self, *nodes: dict[str, list[float]] | Exception) -> None:
        self.nodes = nodes

    def usage(self, job_id: str, node: int = 0) -> dict[str, list[float]]:
        found = self.nodes[node]
        if isinstance(found, Exception):
            raise found
        return found


def test_the_use_of_nodes_is_the_mean_over_time_and_nodes() -> None:
    two = replace(TRIAL, case=make_case("2x1"))
    nodes = Nodes({"npu": [90.0, 100.0], "cpu": [10.0]}, {"npu": [75.0], "cpu": []})
    assert _used(two, nodes) == {"npu": 85.0, "cpu": 10.0}
    assert _used(two, Nodes({"npu": [90.0], "cpu": [math.nan]}, {"npu": [90.0]})) == {"npu": 90.0}
    assert _used(two, Nodes({"npu": [90.0]}, Unreachable("gone"))) == {}
    assert _used(two, Nodes({"npu": [90.0]}, ValueError("what?"))) == {}


def test_power_that_was_asked_for_and_is_not_known_is_a_note_of_the_trial() -> None:
    platform: Platform = Nodes({})  # type: ignore[assignment]
    asked = with_usage_and_power(TRIAL, platform, PowerMeter({"bmc": Broken()}))
    assert asked.notes == ("power unknown: bmc: the BMC does not answer",)
    assert with_usage_and_power(TRIAL, platform, PowerMeter({})).notes == ()


def _used(trial: Trial, nodes: Nodes) -> dict[str, float]:
    platform: Platform = nodes  # type: ignore[assignment]
    return dict(with_usage_and_power(trial, platform, PowerMeter({})).usage)
