"""Settings come from four sources, and errors name the source."""

from __future__ import annotations

import dataclasses
from pathlib import Path
from typing import Any

import pytest

from pytest_aisbench import registry
from pytest_aisbench.config.loading import load_settings
from pytest_aisbench.config.options import OPTIONS
from pytest_aisbench.config.settings import Settings
from pytest_aisbench.errors import UsageFault


def frozen(root: Path, toml: str = "", **sources: Any) -> Settings:
    if toml:
        (root / "aisbench.toml").write_text(toml)
    given = {"command_line": {}, "ini": {}, "environment": {}, **sources}
    return load_settings(root=root, platforms=registry.of_commands(), **given)


def test_defaults(tmp_path: Path) -> None:
    settings = frozen(tmp_path)
    assert (settings.platform, settings.nodes, settings.devices) == ("local", (), None)
    assert settings.reports == tmp_path / "reports"
    assert settings.sources == {}


def test_the_command_line_wins_over_environment_over_ini_over_file(tmp_path: Path) -> None:
    toml = 'platform = "file"\nmax_jobs = 1\ndevices = 1\nnodes = [1, 2]\n'
    settings = frozen(
        tmp_path,
        toml,
        command_line={"platform": "line"},
        environment={"AISBENCH_PLATFORM": "env", "AISBENCH_MAX_JOBS": "2"},
        ini={"platform": "ini", "max_jobs": "3", "devices": "4"},
    )
    assert (settings.platform, settings.max_jobs, settings.devices, settings.nodes) == ("line", 2, 4, (1, 2))
    assert settings.sources["platform"] == "--aisbench-platform"
    assert settings.sources["max_jobs"] == "AISBENCH_MAX_JOBS"
    assert settings.sources["devices"] == "ini aisbench_devices"
    assert settings.sources["nodes"] == f"{tmp_path / 'aisbench.toml'}:4: nodes"


@pytest.mark.parametrize(
    ("toml", "message"),
    [
        ('platfrom = "local"', "aisbench.toml:1: unknown key 'platfrom'; did you mean 'platform'?"),
        ("\n\nmax_jobs = 0", "aisbench.toml:3: max_jobs: '0' is not a whole number of 1 or more"),
        ("nodes = [1, 0]", "aisbench.toml:1: nodes: '0' is not a whole number"),
        ('run_timeout = "soon"', "'soon' is not a length of time such as 45s"),
        ("max_jobs = true", "aisbench.toml:1: max_jobs cannot be a bool"),
        ("[access]\nregion = 'x'", "aisbench.toml:2: unknown key 'region' in [access]; did you mean 'region_name'?"),
        (
            "platform = 'modelarts'\n[access]\naccess_key = '${NOT_THERE}'",
            "aisbench.toml:3: access.access_key takes ${NOT_THERE}, which is not set; export NOT_THERE",
        ),
        ("[access]\nobs_endpoint = 'http://obs.example'", "would send keys over plain http; write https"),
        ("[access]\nobs_endpoint = 'obs.example'", "aisbench.toml:2: access.obs_endpoint is not an address"),
        ("[access]\nca_file = 'no.pem'", "access.ca_file: there is no file"),
        ("nodes = [1", "aisbench.toml: not valid TOML"),
    ],
)
def test_what_is_wrong_in_the_file_is_one_line_with_its_place(tmp_path: Path, toml: str, message: str) -> None:
    with pytest.raises(UsageFault) as caught:
        frozen(tmp_path, toml)
    assert message in str(caught.value)
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize(
    ("sources", "message"),
    [
        ({"command_line": {"nodes": "two"}}, "--nodes: 'two' is not a whole number"),
        ({"environment": {"AISBENCH_DEVICES": "-1"}}, "AISBENCH_DEVICES: '-1' is not"),
        ({"environment": {"AISBENCH_NODS": "2"}}, "AISBENCH_NODS: unknown environment variable; did you mean"),
        ({"environment": {"AISBENCH_TIMEOUT": "2"}}, "did you mean AISBENCH_RUN_TIMEOUT or AISBENCH_QUEUE_TIMEOUT?"),
        ({"environment": {"AISBENCH_FOO": "2"}}, "AISBENCH_FOO: unknown environment variable; unset it, or see"),
        ({"ini": {"queue_timeout": "0"}}, "ini aisbench_queue_timeout: '0' is not a length of time"),
        ({"ini": {"run_timeout": "9" * 400}}, "9' is not a length of time"),
        ({"ini": {"budget": "9" * 400}}, "9' is not a number of card-hours above 0"),
        ({"command_line": {"config": "/no/such/file.toml"}}, "--aisbench-config: /no/such/file.toml: there is no such"),
        ({"command_line": {"platform": "modelarts"}}, "--aisbench-platform: platform modelarts needs access_key,"),
        (
            {"command_line": {"platform": "modelarts", "cloud": "card"}},
            "--aisbench-cloud and --aisbench-platform contradict each other",
        ),
    ],
)
def test_what_is_wrong_elsewhere_names_its_source(tmp_path: Path, sources: dict[str, Any], message: str) -> None:
    with pytest.raises(UsageFault) as caught:
        frozen(tmp_path, **sources)
    assert message in str(caught.value)


def test_all_mistakes_of_the_settings_are_said_at_once(tmp_path: Path) -> None:
    environment = {"AISBENCH_NODS": "2", "AISBENCH_DEVICES": "-1"}
    with pytest.raises(UsageFault) as caught:
        frozen(tmp_path, "max_jobs = 0", command_line={"nodes": "two"}, environment=environment)
    assert len(caught.value.lines) == 4
    with pytest.raises(UsageFault) as caught:
        frozen(tmp_path, "nods = 1\nplatfrom = 'local'")
    assert [line.rpartition("; ")[2] for line in caught.value.lines] == [
        "did you mean 'nodes'?",
        "did you mean 'platform'?",
    ]


def test_loopback_may_be_plain_and_keys_come_from_the_environment(tmp_path: Path) -> None:
    toml = """[access]
access_key = "${AISBENCH_MY_AK}"
secret_access_key = "s3cret-value"
obs_endpoint = "http://127.0.0.1:9000"
"""
    settings = frozen(tmp_path, toml, environment={"AISBENCH_MY_AK": "ak-value"})
    assert settings.access.access_key.reveal() == "ak-value"
    for text in (repr(settings), str(settings.access), f"{settings.access.secret_access_key}", str(settings.public())):
        assert "ak-value" not in text
        assert "s3cret-value" not in text


def test_keys_that_nobody_uses_need_not_be_there(tmp_path: Path) -> None:
    assert not frozen(tmp_path, "[access]\naccess_key = '${NOT_THERE}'").access.access_key


def test_every_option_is_a_field_of_the_settings() -> None:
    fields = [field.name for field in dataclasses.fields(Settings)]
    assert [row.name for row in OPTIONS] == fields[: len(OPTIONS)]


def test_every_option_has_all_four_names() -> None:
    for row in OPTIONS:
        assert row.flag.startswith("--")
        assert row.help
        assert row.environment == f"AISBENCH_{row.name.upper()}"
        assert row.ini == f"aisbench_{row.name}"
