"""No job is lost or doubled, whatever dies: rounds of `scripts/chaos`, chosen so that each kind of death is met."""

from __future__ import annotations

import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import chaos
import pytest
from chaos import Arena, World
from chaos_rounds import Round

if sys.platform != "linux":
    pytestmark = pytest.mark.skip(reason="looks for processes in /proc")


def survive(
    folder: Path,
    engine: str,
    rounds: Sequence[Round],
    wanted: dict[str, Any] | None = None,
    platform: str = "V2",
    *,
    failing: bool = False,
) -> None:
    """The rounds, then a run to the end: everything that was promised holds."""
    with World(folder, engine) as world:
        arena = Arena(world, wanted or {}, platform, failing=failing)
        for told in [*map(arena.play, rounds), arena.end()]:
            assert told.killed_after is not None or told.round.victim == "nobody", f"{told}: it ended before its death"
            assert not told.problems, "\n".join([str(told), *map(str, told.problems)])


@pytest.mark.slow(seconds=12)
def test_pytest_and_then_a_controller_of_xdist_are_killed(tmp_path: Path) -> None:
    rounds = [
        Round("pytest", "answer", nth=3, pause=0.2, weather="slow", seed=1),
        Round("controller", "judging", nth=2, pause=0.2, weather="unavailable", seed=2),
    ]
    survive(tmp_path / "arena", "simulated", rounds, chaos.undisturbed(tmp_path / "undisturbed", "simulated"))


@pytest.mark.slow(seconds=17)
def test_a_worker_of_xdist_is_killed_while_real_jobs_run(tmp_path: Path) -> None:
    rounds = [Round("worker", "judging", nth=2, pause=0.1, weather="cut short", seed=3)]
    survive(tmp_path / "arena", "processes", rounds, chaos.undisturbed(tmp_path / "undisturbed", "processes"))


@pytest.mark.slow(seconds=8)
def test_a_workload_that_failed_before_the_kill_is_not_run_again(tmp_path: Path) -> None:
    survive(tmp_path, "simulated", [Round("pytest", "reporting", nth=5, pause=0.1)], failing=True)


@pytest.mark.slow(seconds=6)
def test_what_a_run_was_stopping_when_it_was_killed_is_stopped(tmp_path: Path) -> None:
    survive(tmp_path, "simulated", [Round("pytest", "stopping", nth=1, pause=0.1)])


@pytest.mark.slow(seconds=12)
@pytest.mark.parametrize("platform", ["V1", "apulis"])
def test_a_cloud_is_killed_and_a_storm_strikes_a_run_that_takes_over(tmp_path: Path, platform: str) -> None:
    rounds = [
        Round("pytest", "answer", nth=3, pause=0.2),
        Round("cloud", "watching", nth=20, pause=0.1, weather="storm", seed=4),
    ]
    survive(tmp_path, "simulated", rounds, platform=platform)


@pytest.mark.slow(seconds=8)
def test_a_tester_is_killed_and_has_every_verdict_once(tmp_path: Path) -> None:
    survive(tmp_path, "simulated", [Round("tester", "judging", nth=4, pause=0.1, weather="request twice", seed=5)])
