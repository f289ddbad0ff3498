"""Checks of a job against what ModelArts lists: a failure proposes what there is."""

from __future__ import annotations

from pytest_aisbench.model.ports import Health
from pytest_aisbench.platforms.modelarts import catalog

KAT = {f"modelarts.kat1.{size}xlarge": 16 for size in ("", "2", "4", "8")}


def test_a_flavor_that_is_not_offered_is_answered_with_those_that_are() -> None:
    check = catalog.check_flavor("modelarts.kat1.3xlarge", 1, KAT)
    assert (check.failed, check.text) == (True, "there is no flavor 'modelarts.kat1.3xlarge'")
    assert check.fix.startswith("set flavor in workload.toml to one of ")
    assert all(name in check.fix for name in KAT)


def test_of_a_long_list_those_most_alike_are_shown() -> None:
    many = {f"modelarts.local.{cards}": 64 for cards in range(1, 65)} | KAT
    fix = catalog.check_flavor("modelarts.kat1.9xlarge", 1, many).fix
    assert all(name in fix for name in KAT)
    assert fix.endswith(" and 56 more")


def test_more_nodes_than_a_job_may_have() -> None:
    assert catalog.check_flavor("modelarts.kat1.8xlarge", 16, KAT).health is Health.OK
    check = catalog.check_flavor("modelarts.kat1.8xlarge", 17, KAT)
    assert check.failed
    assert "a job may have 16" in check.text
    assert "--nodes 16 or fewer" in check.fix
    assert catalog.check_flavor("any", 1000, {"any": 0}).health is Health.OK  # it is not told how many


def test_an_engine_goes_by_name_and_version() -> None:
    offered = {"Ascend-Powered-Engine mindspore_1.3.0", "MPI mindspore_1.3.0"}
    assert catalog.check_engine("MPI mindspore_1.3.0", offered).health is Health.OK
    check = catalog.check_engine("MPI mindspore_1.3", offered)
    assert check.failed
    assert "framework_type and framework_version" in check.fix


def test_an_empty_list_condemns_nobody() -> None:
    assert catalog.check_flavor("any", 1, {}).health is Health.WARNING
    assert catalog.check_engine("any", ()).health is Health.WARNING


def test_a_quota_that_is_used_up_may_be_free_again_in_a_minute() -> None:
    assert catalog.check_quota(9, 10).health is Health.OK
    full = catalog.check_quota(10, 10)
    assert (full.failed, full.lasting) == (True, False)
