"""The job of the seed's own configuration, by the flow of ais-bench-stubs and by `--aisbench-package`, on one cloud."""

from __future__ import annotations

import json
import shutil
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import pytest
from by_wheel import STANDIN
from predecessor import CONFIG, Predecessor
from yard import Yard

from pytest_aisbench.localcloud.modelarts.jobs import Job, Jobs
from pytest_aisbench.localcloud.server import LocalCloud

ROOT = Path(__file__).resolve().parents[2]
SEEDS = ROOT / "tests/data/seeds"
BUCKET = "zgwtest"
# Old patches of ais-bench-stubs, which train by V1, and new ones, which train by V2, name the node by another variable.
NODE = {"V1": "BATCH_TASK_INDEX", "V2": "VC_TASK_INDEX"}
SCRIPT = """
import argparse, json, os, pathlib, time
import moxing as mox

parser = argparse.ArgumentParser()
for name in ("train_url", "data_url", "bert_network"):
    parser.add_argument(f"--{name}", required=True)
given = parser.parse_known_args()[0]
assert mox.file.exists(os.path.join(given.data_url, "ms_bert_large.ckpt"))
rank, size = int(os.environ["RANK_ID"]), int(os.environ["RANK_SIZE"])
node, place = os.getenv("NODE_VARIABLE", "0"), given.train_url
if os.getenv("SINGLESERVER_MODE", "") == "True":
    table, written = pathlib.Path(os.environ["RANK_TABLE_FILE"]), pathlib.Path("/tmp/tmp.txt")
    server, rank, size = rank // 8, rank % 8, 8
    if rank == 0:
        old = json.loads(table.read_text())
        table.write_text(json.dumps({**old, "server_count": "1", "server_list": [old["server_list"][server]]}))
        written.touch()
    while not written.exists():
        time.sleep(0.05)
    assert len(json.loads(table.read_text())["server_list"]) == 1
    place = os.path.join(place, node)
    mox.file.make_dirs(place)
mox.file.write(os.path.join(place, f"throughput_{rank}.json"), str(10.5 + int(node)))
if rank == 0:
    mox.file.write(os.path.join(given.train_url, f"accuracy_{node}.json"), str(0.75 - 0.125 * int(node)))
    with mox.file.File(os.path.join(given.train_url, "accuracy.json"), "w") as file:
        file.write("0.75")
    if not mox.file.exists(os.path.join(given.train_url, "ranksize.json")):
        mox.file.write(os.path.join(given.train_url, "ranksize.json"), str(size))
"""
THRESHOLDS = '[modelarts."*"]\nthroughput = { at_least = 1, unit = "sentences/s" }\naccuracy = { at_least = 0.5 }\n'
# What differs, by its path, and the word for it in the table of docs/from-ais-bench-stubs.md, which says why.
OURS = {
    "V1": {
        "job_desc": "`job_description_prefix`",
        "config.app_url": "`code_dir`",
        "config.boot_file_url": "`code_dir`",
        "config.train_url": "`out_base_url`",
        "config.log_url": "`out_base_url`",
    },
    "V2": {
        "metadata.name": "V2",
        "metadata.description": "`_jobname_`",
        "metadata.workspace_id": "`workspace_id`",
        "algorithm.code_dir": "`code_dir`",
        "algorithm.boot_file": "`code_dir`",
        "algorithm.inputs.0.access_method": "`access_method`",
        "algorithm.inputs.0.local_dir": "`local_dir`",
        "algorithm.outputs.0.remote.obs.obs_url": "`out_base_url`",
        "spec.log_export_path.obs_url": "`out_base_url`",
        "spec.auto_stop.time_unit": "`auto_stop`",
        "spec.auto_stop.duration": "`auto_stop`",
    },
}
ALONE_V2 = {"algorithm.environments", "algorithm.environments.SINGLESERVER_MODE"}  # {} there, and a variable here


@pytest.fixture
def received(monkeypatch: pytest.MonkeyPatch) -> list[dict[str, Any]]:
    """The bodies of the requests by which a cloud of this process made a job."""
    bodies: list[dict[str, Any]] = []
    accept = Jobs.accept

    def noted(jobs: Jobs, account: Any, launch: Any, body: dict[str, Any], *rest: Any, **more: Any) -> Job:
        bodies.append(json.loads(json.dumps(body)))
        return accept(jobs, account, launch, body, *rest, **more)

    monkeypatch.setattr(Jobs, "accept", noted)
    return bodies


@pytest.fixture
def cloud(received: list[dict[str, Any]]) -> Iterator[Mapping[str, str]]:
    """Its card; it has the bucket and the data set that the seed names."""
    from obs import ObsClient

    with LocalCloud() as cloud:
        card = cloud.card()
        client = ObsClient(
            access_key_id=card["access_key"], secret_access_key=card["secret_key"], server=card["obs_endpoint"]
        )
        assert client.createBucket(BUCKET).status < 300
        for name in ("train/part-0", "val/part-0", "ms_bert_large.ckpt"):
            assert client.putContent(BUCKET, f"lcm_test/dataset/enwiki_small/{name}", content=name).status < 300
        client.close()
        yield card


def unpack(folder: Path, card: Mapping[str, str], version: str, nodes: int, *, single_server: bool) -> Path:
    """The package with the seed's two files, filled in as their comments say."""
    config = (SEEDS / "modelarts_config.txt").read_text(encoding="utf-8")
    keys = {"access_key": card["access_key"], "secret_access_key": card["secret_key"], "server": card["obs_endpoint"]}
    keys |= {"region_name": card["region"], "project_id": card["project_id"]}
    keys |= {name: card[name] for name in ("iam_endpoint", "obs_endpoint")}
    for name, value in keys.items():
        assert f"'{name}': ''" in config
        config = config.replace(f"'{name}': ''", f"'{name}': '{value}'")
    config = config.replace("'modelarts_endpoint' : ''", f"'modelarts_endpoint' : '{card['modelarts_endpoint']}'")
    config = config.replace("'train_instance_count': 1,", f"'train_instance_count': {nodes},")
    shell = (SEEDS / "config.sh").read_text(encoding="utf-8")
    if not single_server:
        shell = shell.replace("SINGLESERVER_MODE=True", "SINGLESERVER_MODE=False")
    for name, text in {
        CONFIG: config,
        "code/config/config.sh": shell + ("export MODELARTS_VERSION=V2\n" if version == "V2" else ""),
        "code/code/run_pretrain.py": SCRIPT.replace("NODE_VARIABLE", NODE[version]),
        "thresholds.toml": THRESHOLDS,
    }.items():
        (folder / name).parent.mkdir(parents=True, exist_ok=True)
        (folder / name).write_text(text, encoding="utf-8")
    (folder / CONFIG).chmod(0o600)
    return folder


def flat(value: Any, path: str = "") -> dict[str, Any]:
    """Every field of a request by its path."""
    pairs = value.items() if isinstance(value, dict) else enumerate(value) if isinstance(value, list) else None
    if not pairs:
        return {path: value}
    return {key: each for name, part in pairs for key, each in flat(part, f"{path}.{name}".lstrip(".")).items()}


def differences(one: dict[str, Any], other: dict[str, Any]) -> set[str]:
    first, second = flat(one), flat(other)
    return {path for path in first.keys() | second.keys() if first.get(path) != second.get(path)}


@pytest.mark.slow(seconds=6)
@pytest.mark.parametrize("version", ["V1", "V2"])
@pytest.mark.parametrize(
    ("nodes", "single_server", "ours_first"),
    [
        pytest.param(1, False, True, id="one-node"),
        pytest.param(2, False, False, id="two-nodes"),
        pytest.param(1, True, True, id="single-server-one-node"),  # the seed's files as they are printed
        pytest.param(2, True, False, id="single-server"),
    ],
)
def test_the_same_job_with_the_same_results(
    tmp_path: Path,
    cloud: Mapping[str, str],
    received: list[dict[str, Any]],
    monkeypatch: pytest.MonkeyPatch,
    version: str,
    nodes: int,
    single_server: bool,
    ours_first: bool,
) -> None:
    yard = Yard(tmp_path, tmp_path)
    package = unpack(tmp_path / "package", cloud, version, nodes, single_server=single_server)
    shutil.copytree(ROOT / "suites/package", tmp_path / "suites/package")
    monkeypatch.syspath_prepend(STANDIN)
    reported: dict[str, float] = {}

    def by_ais_bench_stubs() -> None:
        reported.update(Predecessor(package, version, single_server=single_server).run(tmp_path / "copy"))

    def by_us() -> None:
        given = ("--aisbench-package", "package", "--aisbench-platform", "modelarts")
        ended = yard.pytest("suites/package", *given, cloud=False)
        assert ended.code == 0, ended.out
        (case,) = ended.results["cases"]
        assert case["id"] == f"aisbench-debug-{nodes}x8" + ("-single" if single_server else "")
        named = any(f"accuracy_{node}.json" in ended.out for node in range(nodes))
        assert named is not single_server  # beside accuracy.json, in a note
        values = {name: case["metrics"][name]["value"] for name in ("throughput", "accuracy")}
        (file,) = (ended.reports / "requests").glob("*.json")
        request = json.loads(file.read_text(encoding="utf-8"))
        assert request["body"] == received[-1], "requests/ shows what the platform got"
        made = "training-jobs/1001/versions" if version == "V1" and not ours_first else "training-jobs"
        assert request["path"].endswith(made)
        ours.append(values)

    ours: list[dict[str, float]] = []
    for flow in (by_us, by_ais_bench_stubs) if ours_first else (by_ais_bench_stubs, by_us):
        flow()
    assert reported == ours[0]
    first, second = received
    if version == "V1":  # the second makes a version of the first one's job
        assert second["config"].pop("pre_version_id") == 5001
        assert (first.pop("job_name"), first.pop("workspace_id", "0")) == ("aisbench-debug", "0")
        assert {type(first["config"][key]) for key in ("spec_id", "engine_id")} == {int}
    alone = ALONE_V2 if version == "V2" and single_server else set()
    assert differences(first, second) == OURS[version].keys() | alone


@pytest.mark.parametrize("page", ["from-ais-bench-stubs.md", "from-ais-bench-stubs.zh-CN.md"])
def test_the_guide_names_every_difference(page: str) -> None:
    section = (ROOT / "docs" / page).read_text(encoding="utf-8").partition("## 2.")[2].partition("\n## ")[0]
    table = [line for line in section.splitlines() if line.startswith("|")]
    words = {*OURS["V1"].values(), *OURS["V2"].values(), "`SINGLESERVER_MODE`"}
    assert {word for word in words if not any(word in line.split("|")[1] for line in table)} == set()
