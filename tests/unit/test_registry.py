"""Platforms, reporters and power sources by name."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from pytest_aisbench import registry
from pytest_aisbench.config.loading import load_settings
from pytest_aisbench.config.settings import PlatformKind, Settings
from pytest_aisbench.errors import UsageFault
from pytest_aisbench.registry import REPORTERS, Registry


class Plain:
    """A reporter or platform that says nothing of itself."""

    def __init__(self, *given: object) -> None:
        self.given = given


class Busy(Plain):
    order, on_workers, once = 7, True, True
    options = frozenset({"partition"})


class VolcanoKind(PlatformKind):
    name = "volcano"
    options = frozenset({"partition"})
    table_keys, table_secrets = ("endpoint", "password"), ("password",)

    def connect(self, settings: Settings) -> Busy:
        return Busy(settings)

    def uses_access(self, table: Any, *, on_local_cloud: bool) -> bool:
        return False

    def check(self, settings: Settings) -> None:
        if not settings.tables.get(self.name):
            raise UsageFault("volcano needs its table")


VOLCANO = {"volcano": f"{__name__}:VolcanoKind", "local": registry.PLATFORMS["local"]}


def settings_of(folder: Path, toml: str, **environment: str) -> Settings:
    (folder / "aisbench.toml").write_text(toml)
    return load_settings({}, {}, environment, folder, Registry(VOLCANO))


def test_a_platform_that_is_named_by_its_class_has_the_defaults() -> None:
    offered = Registry({"plain": f"{__name__}:Plain", "busy": f"{__name__}:Busy"})
    settings = Settings()

    assert offered.kind("busy").options == {"partition"}
    plain = offered.kind("plain")
    assert (plain.name, plain.options, plain.emulation) == ("plain", frozenset(), False)
    assert plain.uses_access(None, on_local_cloud=False)
    assert plain.missing_framework("mindspore", settings) == ""
    assert plain.connect(settings).given == (settings,)


class Old(Plain):
    """A platform that was written when `platform_id` was called `place`."""

    place = "old https://head"


def test_a_platform_of_another_version_is_still_told_from_others() -> None:
    assert Registry({"old": f"{__name__}:Old"}).kind("old").connect(Settings()).platform_id == "old https://head"


def test_a_platform_brings_its_own_table_of_settings(tmp_path: Path) -> None:
    toml = 'platform = "volcano"\n[volcano]\nendpoint = "https://head"\npassword = "${AISBENCH_WORD}"\n'
    settings = settings_of(tmp_path, toml, AISBENCH_WORD="hush")

    assert settings.tables["volcano"]["endpoint"] == "https://head"
    assert settings.tables["volcano"]["password"].reveal() == "hush"
    assert "hush" not in repr(settings)


def test_the_table_of_a_platform_that_is_not_chosen_may_lack_values_but_has_no_unknown_key(tmp_path: Path) -> None:
    unset = '[volcano]\nendpoint = "${NOT_SET}"\n'
    assert settings_of(tmp_path, unset).tables == {"volcano": {"endpoint": ""}}
    with pytest.raises(UsageFault, match=r"volcano.endpoint takes \$\{NOT_SET\}, which is not set"):
        settings_of(tmp_path, f'platform = "volcano"\n{unset}')
    with pytest.raises(UsageFault, match=r"unknown key 'pasword' in \[volcano\]; did you mean 'password'"):
        settings_of(tmp_path, '[volcano]\npasword = "x"\n')


def test_a_platform_checks_the_settings_it_is_chosen_by(tmp_path: Path) -> None:
    settings_of(tmp_path, "max_jobs = 1\n")
    with pytest.raises(UsageFault, match="volcano needs its table"):
        settings_of(tmp_path, 'platform = "volcano"\n')


def test_a_secret_that_stands_in_the_file_is_mentioned(tmp_path: Path) -> None:
    table = '[volcano]\nendpoint = "https://head"\n'
    (tmp_path / "aisbench.toml").touch(0o644)
    assert settings_of(tmp_path, table).notes == ()
    assert "aisbench.toml" in settings_of(tmp_path, f'{table}password = "spelt out"\n').notes[0]


def test_a_table_of_no_platform_is_an_unknown_key(tmp_path: Path) -> None:
    with pytest.raises(UsageFault, match="unknown key 'volcnao'; did you mean 'volcano'"):
        settings_of(tmp_path, '[volcnao]\nendpoint = "x"\n')
    with pytest.raises(UsageFault, match="unknown key 'local'"):  # it has no table
        settings_of(tmp_path, '[local]\nendpoint = "x"\n')


def test_a_reporter_says_what_it_needs_and_has_defaults_for_the_rest() -> None:
    offered = Registry({}, {"plain": f"{__name__}:Plain", "busy": f"{__name__}:Busy"})

    assert offered.reporter("plain")[1:] == (Plain, 0, False, False)
    assert offered.reporter("busy")[1:] == (Busy, 7, True, True)


def test_each_built_in_reporter_has_an_order_of_its_own() -> None:
    offered = registry.of_commands()
    orders = {name: offered.reporter(name).order for name in REPORTERS}

    assert len(set(orders.values())) == len(REPORTERS)
    assert min(orders.values()) > 0  # those of others, which have 0, are told first
    assert max(orders, key=lambda name: orders[name]) == "transcript"  # pytest's hooks call it before the others


def test_installed_plugins_are_looked_at_only_for_a_name_that_is_not_built_in() -> None:
    looked: list[str] = []

    def more() -> dict[str, str]:
        looked.append("once")
        return {"plain": f"{__name__}:Plain"}

    offered = Registry({"busy": f"{__name__}:Busy"}, more_platforms=more)

    assert isinstance(offered.kind("busy").connect(Settings()), Busy)
    assert not looked
    assert isinstance(offered.kind("plain").connect(Settings()), Plain)
    with pytest.raises(UsageFault, match="unknown platform 'other'; known: busy, plain"):
        offered.require_platform("other")
    assert looked == ["once"]


def test_a_class_that_is_not_there_is_a_fault_that_names_it() -> None:
    with pytest.raises(UsageFault, match="reporter 'gone' cannot be loaded from 'no_such:Gone'"):
        Registry({}, {"gone": "no_such:Gone"}).reporter("gone")
