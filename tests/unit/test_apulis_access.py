"""Mistakes in the table [apulis]: one line each, before anything costs."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

import pytest

from pytest_aisbench import registry
from pytest_aisbench.config.loading import load_settings
from pytest_aisbench.config.settings import Settings
from pytest_aisbench.errors import UsageFault
from pytest_aisbench.platforms.apulis.settings import apulis_access

WAY = '[apulis]\nendpoint = "https://apulis.example"\nuser = "u"\nvc = "v"\n'
PLAIN = WAY.replace("https", "http")


def told(folder: Path, table: str, platform: str = "apulis", environment: Mapping[str, str] | None = None) -> Settings:
    (folder / "aisbench.toml").write_text(table)
    return load_settings({"platform": platform}, {}, environment or {}, folder, registry.of_commands())


def test_a_whole_table_is_read(tmp_path: Path) -> None:
    (tmp_path / "share").mkdir()
    table = WAY + 'password = "${WORD}"\nshare = "share"\nshare_in_pods = "/data/ais"\n'
    apulis = apulis_access(told(tmp_path, table, environment={"WORD": "secret-word"}))
    assert (apulis.user, apulis.password.reveal()) == ("u", "secret-word")
    assert apulis.share == str(tmp_path / "share"), "relative to the file"
    assert not apulis.by_obs
    assert "secret-word" not in repr(apulis)


def test_the_api_by_name_alone_may_go_without_tls(tmp_path: Path) -> None:
    assert apulis_access(told(tmp_path, PLAIN + f'share = "{tmp_path}"')).endpoint == "http://apulis.example"


def test_other_platforms_do_not_mind_it(tmp_path: Path) -> None:
    assert told(tmp_path, WAY + 'token = "${NOT_SET}"\nshare = "/nowhere"', "local").platform == "local"


def test_keys_of_obs_are_not_asked_for_beside_a_share(tmp_path: Path) -> None:
    told(tmp_path, WAY + f'share = "{tmp_path}"\n[access]\naccess_key = "${{NOT_SET}}"')
    with pytest.raises(UsageFault, match="access_key takes"):
        told(tmp_path, WAY + 'results = "obs"\n[access]\naccess_key = "${NOT_SET}"')


@pytest.mark.parametrize(
    ("table", "message"),
    [
        ("", "platform apulis needs endpoint, user, vc"),
        (WAY.replace("https://", ""), "apulis.endpoint is not an address"),
        (
            PLAIN + 'password = "p"',
            "apulis.endpoint would send secrets over plain http; write https, or leave password",
        ),
        (PLAIN + 'token = "t"', "apulis.endpoint would send secrets over plain http; write https, or leave token out"),
        (PLAIN + 'send_obs_keys = "yes"', "would send secrets over plain http; write https, or leave send_obs_keys"),
        (WAY, "neither a shared folder nor a bucket"),
        (WAY + 'results = "obs"', "neither a shared folder nor a bucket"),
        (WAY + 'share = "nowhere"', "apulis.share: there is no"),
        (WAY + 'pasword = "p"', "did you mean 'password'"),
        (WAY + 'token = "${NOT_SET}"', "which is not set; export NOT_SET"),
        (WAY + 'results = "email"', "write one of share, obs"),
        (WAY + 'share_in_pods = "data"', "not an absolute path"),
        (WAY + 'send_obs_keys = "true"', "neither yes nor no"),
        (WAY.replace('"v"', "3"), "apulis.vc is not text"),
        (WAY + 'api = "apis"', "not a path"),
        ("apulis = 3", "apulis is a table"),
    ],
)
def test_what_is_wrong_is_one_line(tmp_path: Path, table: str, message: str) -> None:
    with pytest.raises(UsageFault, match=message) as fault:
        told(tmp_path, table)
    assert "\n" not in str(fault.value)
