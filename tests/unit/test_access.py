"""Which keys a run uses, who else may read their file, and the addresses of names."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from pytest_aisbench import registry
from pytest_aisbench.config.loading import load_settings
from pytest_aisbench.config.settings import Settings
from pytest_aisbench.errors import UsageFault

TABLE = "platform = 'modelarts'\n[access]\nregion_name = 'r'\nbucket = 'b'\n"
KEYS = "access_key = 'file-ak'\nsecret_access_key = 'file-sk'\n"
VARIABLES: dict[str, Any] = {
    "HUAWEICLOUD_SDK_AK": "env-ak",
    "HUAWEICLOUD_SDK_SK": "env-sk",
    "HUAWEICLOUD_SDK_SECURITY_TOKEN": "env-token",
    "HUAWEICLOUD_SDK_PROJECT_ID": "env-project",
}
PROFILE = "[basic]\nak = profile-ak\nsk = profile-sk%\nsecurity_token = profile-token\nproject_id = profile-project\n"


@pytest.fixture
def home(tmp_path: Path) -> Path:
    """A home folder with the vendor's profile, which only its owner reads."""
    folder = tmp_path / "home" / ".huaweicloud"
    folder.mkdir(parents=True)
    (folder / "credentials").write_text(PROFILE)
    (folder / "credentials").chmod(0o600)
    return tmp_path / "home"


def frozen(root: Path, toml: str = TABLE, mode: int = 0o600, **environment: Any) -> Settings:
    (root / "aisbench.toml").write_text(toml)
    (root / "aisbench.toml").chmod(mode)
    return load_settings({}, {}, {key: str(value) for key, value in environment.items()}, root, registry.of_commands())


def keys(settings: Settings) -> tuple[str, str, str, str]:
    access = settings.access
    secrets = (access.access_key, access.secret_access_key, access.security_token)
    return (*(each.reveal() for each in secrets), access.project_id)  # type: ignore[return-value]


def test_the_file_comes_before_the_environment_and_that_before_the_profile(tmp_path: Path, home: Path) -> None:
    by_file = frozen(tmp_path, TABLE + KEYS, HOME=home, **VARIABLES)
    assert keys(by_file) == ("file-ak", "file-sk", "", "")  # a token of other keys would spoil them
    assert by_file.notes == ()
    by_variables = frozen(tmp_path, HOME=home, **VARIABLES)
    assert keys(by_variables) == ("env-ak", "env-sk", "env-token", "env-project")
    assert by_variables.notes == ("keys: HUAWEICLOUD_SDK_AK",)
    by_profile = frozen(tmp_path, HOME=home)
    assert keys(by_profile) == ("profile-ak", "profile-sk%", "profile-token", "profile-project")
    assert by_profile.notes == (f"keys: {home}/.huaweicloud/credentials",)
    assert list(home.rglob("*")) == [home / ".huaweicloud", home / ".huaweicloud/credentials"]  # nothing was written
    for settings in (by_file, by_variables, by_profile):
        assert [secret for secret in keys(settings)[:3] if secret and secret in repr(settings)] == []


def test_a_project_in_the_file_is_kept_and_a_named_profile_is_read(tmp_path: Path, home: Path) -> None:
    named = tmp_path / "another"
    named.write_text(PROFILE.replace("profile-ak", "named-ak"))
    settings = frozen(tmp_path, TABLE + "project_id = 'p'\n", HOME=home, HUAWEICLOUD_SDK_CREDENTIALS_FILE=named)
    assert keys(settings) == ("named-ak", "profile-sk%", "profile-token", "p")


def test_the_local_cloud_asks_nobody_for_keys(tmp_path: Path, home: Path) -> None:
    (home / ".huaweicloud/credentials").write_text("nonsense")
    assert keys(
        load_settings({}, {}, {"HOME": str(home), "HUAWEICLOUD_SDK_AK": "x"}, tmp_path, registry.of_commands())
    ) == ("", "", "", "")


def test_without_keys_all_three_ways_are_named_in_one_line(tmp_path: Path) -> None:
    with pytest.raises(UsageFault) as caught:
        frozen(tmp_path, HOME=tmp_path)
    message = str(caught.value)
    assert "needs access_key, secret_access_key;" in message
    for way in ("[access] in aisbench.toml", "HUAWEICLOUD_SDK_AK", "HUAWEICLOUD_SDK_SK", "~/.huaweicloud/credentials"):
        assert way in message
    assert "\n" not in message


@pytest.mark.parametrize(
    ("profile", "variables", "message"),
    [
        ("", {"HUAWEICLOUD_SDK_AK": "x"}, "HUAWEICLOUD_SDK_AK is set, and HUAWEICLOUD_SDK_SK is not"),
        ("", {"HUAWEICLOUD_SDK_CREDENTIALS_FILE": "/no/such"}, "FILE: there is no file /no/such"),
        ("[global]\nak = a\nsk = s3cret\n", {}, "credentials: [basic] has no ak and no sk"),
        ("[basic]\nak = a\n", {}, "credentials: [basic] has no sk"),
        ("sk = s3cret", {}, "credentials: not a profile file; write [basic]"),
        ("[basic]\ns3cret s3cret", {}, "credentials: not a profile file"),
        ("[basic]\nsk = s3cret\nsk = s3cret", {}, "credentials: not a profile file"),
        ("\udcff", {}, "credentials: not a profile file"),
    ],
)
def test_half_of_the_keys_is_one_line_that_shows_none(
    tmp_path: Path, home: Path, profile: str, variables: dict[str, Any], message: str
) -> None:
    (home / ".huaweicloud/credentials").write_bytes(profile.encode(errors="surrogateescape"))
    with pytest.raises(UsageFault) as caught:
        frozen(tmp_path, HOME=home, **variables)
    assert message in str(caught.value)
    assert "s3cret" not in str(caught.value)
    assert caught.value.__suppress_context__ or caught.value.__context__ is None


def test_a_token_without_its_keys_is_refused(tmp_path: Path) -> None:
    with pytest.raises(UsageFault, match="security_token stands there without its keys"):
        frozen(tmp_path, TABLE + "security_token = 't'\n", **VARIABLES)


@pytest.mark.parametrize("mode", [0o640, 0o604, 0o600])
def test_a_file_with_keys_that_others_may_read_is_told_of(tmp_path: Path, home: Path, mode: int) -> None:
    file, profile = tmp_path / "aisbench.toml", home / ".huaweicloud/credentials"
    warning = f"{file} holds keys and others may read it: chmod 600 {file}"
    assert frozen(tmp_path, TABLE + KEYS, mode).notes == ((warning,) if mode != 0o600 else ())
    token = "[tester]\nurl = 'https://t.example'\ntoken = 'x'\n"
    assert frozen(tmp_path, token, mode).notes == ((warning,) if mode != 0o600 else ())
    names = "access_key = '${HUAWEICLOUD_SDK_AK}'\nsecret_access_key = '${HUAWEICLOUD_SDK_SK}'\n"
    assert frozen(tmp_path, TABLE + names, mode, **VARIABLES).notes == ()
    profile.chmod(mode)
    notes = frozen(tmp_path, mode=mode, HOME=home).notes
    assert [f"chmod 600 {profile}" in note for note in notes] == ([False, True] if mode != 0o600 else [False])


def test_so_is_a_file_of_the_predecessor_which_may_stand_beside_addresses(tmp_path: Path) -> None:
    old = tmp_path / "unpacked/code/config/modelarts_config.py"
    old.parent.mkdir(parents=True)
    old.write_text(
        "access_config = {'access_key': 'old-ak', 'secret_access_key': 'old-sk', 'region_name': 'r'}\n"
        "session_config_v2 = {'out_base_url': '/b/'}\n"
    )
    (old.parent / "config.sh").write_text("export MODELARTS_VERSION=V2\n")
    toml = "platform = 'modelarts'\npackage = 'unpacked'\n[hosts]\n'obs.x' = '192.0.2.7'\n"
    for mode in (0o644, 0o600):
        old.chmod(mode)
        settings = frozen(tmp_path, toml, **VARIABLES)
        assert keys(settings)[:3] == ("old-ak", "old-sk", "")
        assert settings.access.hosts.address("obs.x") == "192.0.2.7"
        assert any(f"chmod 600 {old}" in note for note in settings.notes) == (mode == 0o644)


def test_addresses_of_names(tmp_path: Path) -> None:
    table = "[hosts]\n'OBS.centre.example' = '192.0.2.7'\n'iam.centre.example' = '2001:db8::1'\n"
    settings = frozen(tmp_path, table)
    for hosts in (settings.access.hosts, settings.tester_access.hosts):
        assert hosts.address("obs.centre.example") == "192.0.2.7"
        assert hosts.address("iam.centre.example") == "2001:db8::1"
        assert hosts.address("modelarts.centre.example") == ""


@pytest.mark.parametrize(
    ("entry", "message"),
    [
        ('"obs.x" = "192.0.2"', "aisbench.toml:3: hosts: '192.0.2' is not an address; write one IPv4 or IPv6"),
        ('"obs.x" = "192.0.2.1:443"', "aisbench.toml:3: hosts: '192.0.2.1:443' is not an address"),
        ('"obs.x" = "other.example"', "aisbench.toml:3: hosts: 'other.example' is not an address"),
        ('"obs.x" = "0.0.0.0"', "aisbench.toml:3: hosts: '0.0.0.0' is not an address"),
        ('"obs.x" = 7', "aisbench.toml:3: hosts: 7 is not an address"),
        ('"https://obs.x" = "192.0.2.1"', "aisbench.toml:3: hosts: 'https://obs.x' is not the name of a host"),
        ('"obs.x:443" = "192.0.2.1"', "hosts: 'obs.x:443' is not the name of a host; write it without"),
        ('"192.0.2.2" = "192.0.2.1"', "hosts: '192.0.2.2' is not the name of a host"),
        ('"*.obs.x" = "192.0.2.1"', "aisbench.toml:3: hosts: '*.obs.x' is not a name; write the endpoint of OBS"),
        ('obs.x = "192.0.2.1"', 'is not a name in quotes; write "obs.centre.example" = "192.0.2.7"'),
        ('"obs.x" = "192.0.2.1"\n"OBS.x" = "192.0.2.1"', "aisbench.toml:4: hosts: OBS.x has two addresses"),
    ],
)
def test_what_is_wrong_with_an_address_is_told_with_its_line(tmp_path: Path, entry: str, message: str) -> None:
    with pytest.raises(UsageFault) as caught:
        frozen(tmp_path, f"devices = 1\n[hosts]\n{entry}\n")
    assert message in str(caught.value)


def test_hosts_is_a_table_and_signatures_are_three(tmp_path: Path) -> None:
    with pytest.raises(UsageFault, match=r"aisbench\.toml:1: hosts is a table"):
        frozen(tmp_path, "hosts = 'x'\n")
    with pytest.raises(UsageFault, match=r"aisbench\.toml:2: access\.obs_signature 'v3' is not known; .*obs, v2, v4"):
        frozen(tmp_path, "[access]\nobs_signature = 'v3'\n")
