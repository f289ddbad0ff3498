"""No secret leaves: not in the terminal, the reports, the requests, the ledger, or what a job can see."""

from __future__ import annotations

import base64
import json
from pathlib import Path
from urllib.parse import quote

import pytest
from centre import DOMAIN, SERVICES, Authority, front_of, temporary_keys
from yard import SCRIPT, THRESHOLDS, WORKLOAD, Yard

PEEK = SCRIPT + "\nprint(dict(os.environ), open('/proc/self/cmdline').read(), flush=True)\n"
# A test that fails with everything it can reach in its frame, and locals shown.
CURIOUS = """import pytest

pytestmark = pytest.mark.workload("{name}", nodes=[1])


def test_trains(trial, modelarts_session, obs, request):
    settings = [value for value in request.config.stash._storage.values()]
    everything = (trial, modelarts_session, obs, vars(modelarts_session), vars(obs), settings)
    print(everything, request.config.option)
    assert everything == 1
"""

# The same on a computing centre, and it ends in the frame that sends what is signed.
SENDING = """
    modelarts_session.endpoint = "https://127.0.0.1:1"
    try:
        modelarts_session.call("POST", "/v2/{project_id}/training-job-searches", {"limit": 1})
    except Exception as error:
        raise RuntimeError("so that all frames are shown") from error
"""
MODELARTS = """
[modelarts]
framework_type = "Ascend-Powered-Engine"
framework_version = "python-local"
flavor = "modelarts.kat1.2xlarge"
"""
VARIABLES = ("HUAWEICLOUD_SDK_AK", "HUAWEICLOUD_SDK_SK", "HUAWEICLOUD_SDK_SECURITY_TOKEN")


def forms(secret: str) -> list[bytes]:
    return [secret.encode(), base64.b64encode(secret.encode())[:-4], quote(secret, safe="").encode()]


@pytest.mark.parametrize("workers", [[], ["-n", "2"]], ids=["single", "xdist"])
def test_the_keys_are_nowhere(yard: Yard, card: Path, workers: list[str]) -> None:
    keys = json.loads(card.read_text())
    yard.suite(script=PEEK, test=CURIOUS)
    ended = yard.pytest("suites", "-vv", "--showlocals", *workers)
    assert ended.code == 1
    written = {file: file.read_bytes() for file in (yard.folder / "reports").rglob("*") if file.is_file()}
    assert len(written) > 8
    for form in forms(keys["secret_key"]):
        assert form not in ended.out.encode()
        assert [str(file) for file, data in written.items() if form in data] == []
    log = next(data for file, data in written.items() if file.name == "worker-0.log")
    assert b"RANK_ID" in log
    assert keys["access_key"].encode() not in log


@pytest.mark.parametrize("source", ["file", "environment"])
def test_nor_are_temporary_keys_and_their_token(yard: Yard, card: Path, tmp_path: Path, source: str) -> None:
    """All the way through a computing centre: https by its own authority, names that only [hosts] knows."""
    cloud = json.loads(card.read_text())
    keys = temporary_keys(cloud)
    authority = Authority(tmp_path)
    yard.suite(
        script=PEEK,
        test=CURIOUS.replace("    assert everything == 1\n", SENDING),
        workload=WORKLOAD + MODELARTS,
        thresholds=THRESHOLDS.replace("local", "modelarts"),
    )
    with front_of(authority, cloud).serving() as front:
        lines = [f'{name}_endpoint = "https://{name}.{DOMAIN}:{front.port}"' for name in SERVICES]
        lines += ['region_name = "local-1"', f'bucket = "{cloud["bucket"]}"', 'ca_file = "ca.pem"']
        env = dict(zip(VARIABLES, keys.values(), strict=False))
        if source == "file":
            names = ("access_key", "secret_access_key", "security_token")
            lines += [f'{name} = "{env[variable]}"' for name, variable in zip(names, VARIABLES, strict=True)]
            env = {}
        hosts = [f'"{name}.{DOMAIN}" = "127.0.0.1"' for name in SERVICES]
        (yard.folder / "centre.toml").write_text("\n".join(["[access]", *lines, "[hosts]", *hosts]))
        where = ("--aisbench-platform", "modelarts", "--aisbench-config", "centre.toml")
        ended = yard.pytest("suites", "-vv", "--showlocals", *where, cloud=False, env=env)
    assert ended.code == 1, ended.out
    assert ended.results["cases"][0]["metrics"]["throughput"]["value"] == 25.0
    assert "nobody listens there" in ended.out
    assert "request    = " in ended.out  # the frame that holds the headers
    assert ("chmod 600" in ended.out) == (source == "file")
    assert ("keys: HUAWEICLOUD_SDK_AK" in ended.out) == (source == "environment")
    assert set(front.asked) == {f"iam.{DOMAIN}", f"modelarts.{DOMAIN}", f"{cloud['bucket']}.obs.{DOMAIN}"}
    written = {file: file.read_bytes() for file in (yard.folder / "reports").rglob("*") if file.is_file()}
    for secret in (keys["secret"], keys["securitytoken"]):
        for form in forms(secret):
            assert form not in ended.out.encode()
            assert [str(file) for file, data in written.items() if form in data] == []


def test_a_centre_whose_authority_is_not_trusted_is_one_line(yard: Yard, card: Path, tmp_path: Path) -> None:
    cloud = json.loads(card.read_text())
    Authority(tmp_path, "stranger")
    yard.suite(workload=WORKLOAD + MODELARTS, thresholds=THRESHOLDS.replace("local", "modelarts"))
    with front_of(Authority(tmp_path), cloud).serving() as front:
        lines = [f'{name}_endpoint = "https://{name}.{DOMAIN}:{front.port}"' for name in SERVICES]
        lines += ['region_name = "local-1"', 'bucket = "b"', 'ca_file = "stranger.pem"']
        lines += ["[hosts]", *(f'"{name}.{DOMAIN}" = "127.0.0.1"' for name in SERVICES)]
        (yard.folder / "aisbench.toml").write_text("\n".join(['platform = "modelarts"', "[access]", *lines]))
        env = {"HUAWEICLOUD_SDK_AK": "A", "HUAWEICLOUD_SDK_SK": "S"}
        ended = yard.pytest("suites", "--nodes", "1", cloud=False, env=env)
    assert ended.code == 4
    (line,) = [line for line in ended.out.splitlines() if line.startswith("ERROR")]
    assert f"iam.{DOMAIN}:{front.port}" in line
    assert "certificate is not trusted; name the certificate of its authority: ca_file in [access]" in line
    assert front.asked == []
