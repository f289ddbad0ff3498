"""The job of an ais-bench package is the one that its guides describe: requests written by hand, V1 and V2."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from old_package import BERT, RESNET_13, RESNET_15, config, unpack

from pytest_aisbench import registry
from pytest_aisbench.config.loading import load_settings
from pytest_aisbench.config.settings import Settings
from pytest_aisbench.engine import trial as engine_trial
from pytest_aisbench.engine.staging import code_tree
from pytest_aisbench.engine.submit import job_spec, new_trial, planned_stage
from pytest_aisbench.errors import Rejected, UsageFault
from pytest_aisbench.model.case import Shape
from pytest_aisbench.platforms.modelarts import image_rules
from pytest_aisbench.platforms.modelarts import package as package_module
from pytest_aisbench.platforms.modelarts.platform import ModelArts

GOLDEN = Path(__file__).parent / "golden/package"
PACKAGES = {
    "bert": (BERT, "bert", "run_pretrain.py", "enwiki_small"),
    "resnet-r13": (RESNET_13, "resnet", "train.py", "imagenet"),
    "resnet-r15": (RESNET_15, "resnet", "train.py", "imagenet"),
}
PLATFORMS = {"local", "modelarts"}
NODES = SimpleNamespace(additions=image_rules.pre_start_files)  # what of ModelArts the code is staged for


def package(folder: Path, name: str = "bert", **files: str) -> Path:
    parameters, code, boot, data = PACKAGES[name]
    return unpack(folder, config(parameters, code=code, boot=boot, data=data), boot=boot, **files)


def frozen(folder: Path, **told: str) -> Settings:
    command_line = {"platform": "modelarts", "package": str(folder), **told}
    return load_settings(command_line, {}, {}, folder.parent, registry.of_commands())


def load(settings: Settings) -> package_module.Package:
    return package_module.load_package(settings, registry.of_commands().kind(settings.platform), PLATFORMS)


def rendered(settings: Settings, nodes: int | None = None) -> tuple[dict[str, Any], dict[str, str]]:
    """The request's body, and what four words in a golden one stand for."""
    package = load(settings)
    case = package.suite.case(Shape(nodes or package.nodes, package.suite.workload.devices))
    trial = new_trial("20261116-080000-ab12", case, 0.0)
    platform: Any = ModelArts(settings)
    try:
        stage = planned_stage(trial, platform)
        body = platform.render(job_spec(trial, stage, None)).body
    finally:
        platform.close()
    place = f"/{stage.root.bucket}/{stage.root.key}"
    code = f"/{stage.code.bucket}/{stage.code.key}".removesuffix(f"{case.workload.folder_name}/")
    assert place.startswith("/zgwtest/lcm_test/result/"), "outputs go below out_base_url"
    words = {
        # Of V1 trials are versions of the one job, as the predecessor's are.
        "<suffix>": "" if "job_name" in body else trial.name.removeprefix("aisbench-debug"),
        "<trial>": f" aisbench {case.id} trial {trial.id}",
        "<code>": code,
        "<output>": place,
    }
    return json.loads(json.dumps(body)), words


def golden(name: str, words: dict[str, str]) -> Any:
    text = (GOLDEN / f"{name}.json").read_text(encoding="utf-8")
    for word, meaning in words.items():
        text = text.replace(word, meaning)
    return json.loads(text)


@pytest.mark.parametrize("name", PACKAGES)
def test_the_v2_request_is_the_guides(tmp_path: Path, name: str) -> None:
    body, words = rendered(frozen(package(tmp_path / "package", name)))
    assert body == golden(f"{name}-v2", words)


@pytest.mark.parametrize("name", PACKAGES)
def test_the_v1_request_is_the_guides(tmp_path: Path, name: str) -> None:
    pytest.importorskip("pytest_aisbench.platforms.modelarts.jobs", reason="V1 rendering is not there yet")
    body, words = rendered(frozen(package(tmp_path / "package", name, shell="export PYTHON_COMMAND=python3\n")))
    assert body == golden(f"{name}-v1", words)


def test_nodes_change_the_count_alone(tmp_path: Path) -> None:
    body, words = rendered(frozen(package(tmp_path / "package")), nodes=2)
    wanted = golden("bert-v2", words)
    wanted["spec"]["resource"]["node_count"] = 2
    assert body == wanted


def test_a_dedicated_pool_and_shared_storage(tmp_path: Path) -> None:
    text = config(BERT, code="bert", boot="run_pretrain.py", data="enwiki_small")
    text = text.replace("'train_instance_type': 'modelarts.kat1.8xlarge'", "'train_instance_type': None")
    text = text.replace("'pool_id' : None", "'pool_id' : 'poolc90f063b'").replace(
        "    # 'nas_type' : None,",
        "'nas_type': 'nfs', 'nas_share_addr': '192.168.8.150:/', 'nas_mount_path': '/home/ma-user/nas',",
    )
    body, _ = rendered(frozen(unpack(tmp_path / "package", text)))
    assert body["spec"]["resource"] == {"pool_id": "poolc90f063b", "node_count": 1}
    nfs = {"nfs_server_path": "192.168.8.150:/", "local_path": "/home/ma-user/nas", "read_only": False}
    assert body["spec"]["volumes"] == [{"nfs": nfs}]


def test_an_image_in_the_session_is_used_and_a_stranger_is_named(tmp_path: Path) -> None:
    text = config(BERT, code="bert", boot="run_pretrain.py", data="enwiki_small")
    text = text.replace("    # 'nas_type' : None,", "'image': 'org/img:1', 'flavor': 'a', 'priority': 1,")
    settings = frozen(unpack(tmp_path / "package", text))
    body, _ = rendered(settings)
    assert body["algorithm"]["engine"] == {"image_url": "org/img:1"}
    unused = [note.split(".py:")[1] for note in load(settings).notes if "is not used" in note]
    assert [note.partition(".")[2] for note in unused] == ["flavor is not used", "priority is not used"]


def test_the_package_says_which_api_and_mode(tmp_path: Path) -> None:
    folder = package(tmp_path / "package", shell="export SINGLESERVER_MODE=True\n")
    settings = frozen(folder)
    assert (settings.modelarts_version, settings.single_server) == ("V1", True)
    assert settings.sources["single_server"].endswith("config.sh:1")
    assert frozen(folder, modelarts_version="V2").modelarts_version == "V2"


def test_the_access_comes_from_the_package_and_is_masked(tmp_path: Path) -> None:
    access = frozen(package(tmp_path / "package")).access
    assert (access.bucket, access.folder, access.region_name) == ("zgwtest", "lcm_test/result/", "cn-north-4")
    assert access.obs_endpoint == "https://obs.cn-north-4.myhuaweicloud.com"
    assert access.secret_access_key.reveal() == "legacy-secret-key"
    assert "legacy-secret-key" not in repr(access)
    assert "LEGACYACCESSKEY" not in repr(access)


def test_a_configuration_alone_gives_the_access(tmp_path: Path) -> None:
    folder = package(tmp_path / "package")
    options = {"platform": "modelarts", "config": str(folder / "code/config/modelarts_config.py")}
    assert load_settings(options, {}, {}, tmp_path, registry.of_commands()).access.project_id == "0a1b2c"


def test_a_named_configuration_replaces_the_packages_own(tmp_path: Path) -> None:
    folder = package(tmp_path / "package")
    other = tmp_path / "mine.py"
    text = (folder / "code/config/modelarts_config.py").read_text(encoding="utf-8")
    other.write_text(text.replace('"aisbench-debug"', '"mine"'), encoding="utf-8")
    assert load(frozen(folder, config=str(other))).suite.workload.name == "mine"


def test_our_own_access_wins(tmp_path: Path) -> None:
    folder = package(tmp_path / "package")
    keys = 'access_key = "A"\nsecret_access_key = "S"\nbucket = "ours"\nregion_name = "r"\n'
    (tmp_path / "aisbench.toml").write_text(f"[access]\n{keys}")
    access = frozen(folder).access
    assert (access.bucket, access.folder, access.region_name) == ("ours", "", "r")  # a folder goes with its bucket


def test_one_key_of_our_own_access_loses_nothing_of_the_packages(tmp_path: Path) -> None:
    """A computing centre: its authority is in our file, all the rest in the package."""
    folder = package(tmp_path / "package")
    before = frozen(folder).access
    (tmp_path / "ca.pem").write_text("")
    (tmp_path / "aisbench.toml").write_text('[access]\nca_file = "ca.pem"\n')
    after = frozen(folder).access
    assert after == replace(before, ca_file=str(tmp_path / "ca.pem"))
    assert after.access_key.reveal() == "LEGACYACCESSKEY"
    assert (after.obs_endpoint, after.folder) == ("https://obs.cn-north-4.myhuaweicloud.com", "lcm_test/result/")


def test_a_key_of_our_own_access_replaces_the_packages_and_may_be_unreadable_there(tmp_path: Path) -> None:
    folder = package(tmp_path / "package")
    file = folder / "code/config/modelarts_config.py"
    file.write_text(file.read_text(encoding="utf-8").replace("'legacy-secret-key'", "os.environ['SK']"), "utf-8")
    with pytest.raises(UsageFault, match=r"access_config\.secret_access_key cannot be read"):
        frozen(folder)
    own = '[access]\nsecret_access_key = "S"\nobs_endpoint = "https://obs.centre.example"\n'
    (tmp_path / "aisbench.toml").write_text(own)
    settings = frozen(folder)
    access = settings.access
    assert (access.access_key.reveal(), access.secret_access_key.reveal()) == ("LEGACYACCESSKEY", "S")
    assert (access.obs_endpoint, access.project_id) == ("https://obs.centre.example", "0a1b2c")
    assert not any("server is not used" in note for note in settings.notes)


CONFIG_JSON = Path(__file__).parents[1] / "data/seeds/config_info.txt"  # as ais-bench-stubs prints it


def named_by_the_seed(folder: Path, **changes: str) -> None:
    """Write the config.json whose values the log of the guide shows."""
    printed = dict(
        pair.split(":", 1) for pair in CONFIG_JSON.read_text().partition("ConfigInfo ")[2].strip().split(", ")
    )
    (folder / "code/config.json").write_text(json.dumps({**printed, **changes}))


def test_a_packages_tester_is_used_or_a_line_says_why_not(tmp_path: Path) -> None:
    folder = package(tmp_path / "package")
    named_by_the_seed(folder)
    (line,) = [note for note in frozen(folder).notes if "tester_server" in note]
    assert line.startswith(f"{folder}/code/config.json: tester_server_ip 127.0.0.1:9527 is not used: ")
    assert "--aisbench-tester http://127.0.0.1:9527/" in line
    assert not frozen(folder).tester
    (line,) = [note for note in frozen(folder, platform="local").notes if "tester_server" in note]
    assert line.endswith("a run on the local cloud uploads to the Tester there")
    assert not [note for note in frozen(folder, tester="https://t.example/").notes if "tester_server" in note]
    (tmp_path / "aisbench.toml").write_text('[tester]\ntoken = "T"\n')
    settings = frozen(folder)
    assert (settings.tester, settings.tester_access.testid) == ("http://127.0.0.1:9527/", "20210126-ljp0IY")
    assert settings.sources["tester"] == f"{folder}/code/config.json: tester_server_ip"
    named_by_the_seed(folder, tester_server_ip="192.0.2.7")
    assert frozen(folder).tester == "https://192.0.2.7:9527/"  # a token does not travel in plain


@pytest.mark.parametrize(
    ("changes", "words"),
    [({"tester_server_ip": ""}, None), ({"tester_server_port": "x"}, "'http://127.0.0.1:x/' is no address")],
)
def test_a_packages_tester_that_is_none(tmp_path: Path, changes: dict[str, str], words: str | None) -> None:
    folder = package(tmp_path / "package")
    named_by_the_seed(folder, **changes)
    (tmp_path / "aisbench.toml").write_text('[tester]\ntoken = "T"\n')
    settings = frozen(folder)
    notes = [note for note in settings.notes if "tester_server" in note]
    assert not settings.tester
    assert (len(notes), not words or words in notes[0]) == (int(bool(words)), True)


@pytest.mark.parametrize(
    ("change", "words"),
    [
        (("'boot_file': '/zgwtest/lcm_test/bert/run", "'boot_file': '/zgwtest/else/run"), ["boot_file", "code_dir"]),
        (("/bert/run_pretrain.py", "/bert/missing.py"), ["boot_file", "missing.py", "code/code"]),
        (("'pool_id' : None", "'pool_id' : 'poolx'"), ["pool_id", "train_instance_type", "exclude"]),
        (("'modelarts.kat1.8xlarge'", "None"), ["train_instance_type", "missing"]),
        (("'train_instance_count': 1", "'train_instance_count': 0"), ["train_instance_count", "whole number"]),
        (('"aisbench-debug"', '"a b"'), ["job_name", "letters"]),
        (("'name': 'epoch_size'", "'name': 'bert_network'"), ["bert_network", "twice"]),
        (("'name': 'epoch_size'", "'label': 'epoch_size'"), ["parameters", "'name'"]),
        (("session_config_v2", "session_other"), ["no session_config_v2"]),
    ],
)
def test_what_is_wrong_is_one_line_with_its_place(tmp_path: Path, change: tuple[str, str], words: list[str]) -> None:
    text = config(BERT, code="bert", boot="run_pretrain.py", data="enwiki_small").replace(*change)
    with pytest.raises(UsageFault) as caught:
        load(frozen(unpack(tmp_path / "package", text)))
    message = str(caught.value)
    assert "modelarts_config.py" in message
    assert [word for word in words if word not in message] == []
    assert "\n" not in message


@pytest.mark.parametrize(
    ("ours", "theirs"),
    [
        ("change flavor or framework_version in workload.toml", "change train_instance_type or framework_version in "),
        ("check bucket in [access] and data in workload.toml", "check bucket in [access] and inputs in "),
        ("entry 'data.sh' in workload.toml is not a Python file", "boot_file 'data.sh' in "),
        ("set flavor = 'x.8xlarge' in workload.toml, or 'x'", "set train_instance_type = 'x.8xlarge' in "),
        ("[modelarts] has both flavor and pool_id in workload.toml", "has both train_instance_type and pool_id in "),
        ("remove the data from workload.toml", "remove the data from "),
    ],
)
def test_a_refusal_while_the_job_is_submitted_names_the_packages_file(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, ours: str, theirs: str
) -> None:
    def refuse(*_: object) -> None:
        raise Rejected("no", advice=ours)

    monkeypatch.setattr(engine_trial, "upload_stage", refuse)
    loaded = load(frozen(package(tmp_path / "package")))
    trial = new_trial("run", loaded.suite.case(Shape(1, 8)), 0.0)
    tools: Any = SimpleNamespace(budget=None, platform=None, stager=None, clock=SimpleNamespace(now=lambda: 1.0))
    reason = engine_trial.advance(trial, tools).verdict.reason
    assert f"; {theirs}session_config_v2 of {tmp_path}/package/code/config/modelarts_config.py" in reason
    assert "workload.toml" not in reason


def test_no_claims_is_a_fault_with_an_example_that_works(tmp_path: Path) -> None:
    folder = package(tmp_path / "package", thresholds="")
    with pytest.raises(UsageFault, match="nothing is claimed") as caught:
        load(frozen(folder))
    (folder / "thresholds.toml").write_text(str(caught.value).partition("\n\n")[2])
    suite = load(frozen(folder)).suite
    case = suite.case(Shape(2, 8))
    suite.require_claims(case)
    assert case.thresholds[0].wanted(case.shape) == ">= 856.102 sentences/s"


def test_what_is_not_used_is_told(tmp_path: Path) -> None:
    folder = package(tmp_path / "package")
    file = folder / "code/config/modelarts_config.py"
    file.write_text(file.read_text(encoding="utf-8").replace("'region_name'", "'vpc': 'x', 'region_name'"))
    (folder / "code/config/mindspore_env.sh").write_text("export GLOG_v=3\n")
    settings = frozen(folder)
    assert [note for note in settings.notes if "access_config.vpc is not used" in note]
    assert [note for note in load(settings).notes if "mindspore_env.sh" in note]


def test_the_run_folder_lies_beside_the_entry_and_is_installed(tmp_path: Path) -> None:
    folder = package(tmp_path / "package")
    for name in ("Ascend-cann-nnae_5.0.2.run", "mindspore_ascend-1.3.whl", "protobuf-3.20.whl"):
        (folder / "run").mkdir(exist_ok=True)
        (folder / "run" / name).write_text(name)
    workload = load(frozen(folder)).suite.workload
    leaves = {leaf.path: leaf for leaf in code_tree(workload, NODES).files}
    assert sorted(leaves) == [
        "ma-pre-start.sh",
        "run/Ascend-cann-nnae_5.0.2.run",
        "run/mindspore_ascend-1.3.whl",
        "run/protobuf-3.20.whl",
        "run_pretrain.py",
    ]
    script = (leaves["ma-pre-start.sh"].written or b"").decode()
    order = [script.index(f"run/{name} ||") for name in ("protobuf-3.20.whl", "mindspore_ascend-1.3.whl")]
    assert order == sorted(order)
    assert script.index("Ascend-cann") > 0


def test_the_packages_own_script_is_left_alone(tmp_path: Path) -> None:
    folder = package(tmp_path / "package")
    (folder / "run").mkdir()
    (folder / "run/protobuf.whl").write_text("x")
    own = folder / "code/code/ma-pre-start.sh"
    own.write_text("TRAIN=$(find ./ -name train.py)\nexport GLOG_v=3\n")
    loaded = load(frozen(folder))
    leaves = {leaf.path: leaf for leaf in code_tree(loaded.suite.workload, NODES).files}
    assert leaves["ma-pre-start.sh"].source == str(own)
    assert "run/protobuf.whl" in leaves
    assert [note for note in loaded.notes if "looks for train.py" in note]
    own.write_text("set -x\n    export GLOG_v=4\n")
    with pytest.raises(UsageFault, match=r"ma-pre-start.sh:2: GLOG_v is none of 0 INFO"):
        load(frozen(folder))


def test_the_description_keeps_the_trial_whole(tmp_path: Path) -> None:
    settings = frozen(package(tmp_path / "package"))
    loaded = load(settings)
    case = loaded.suite.case(Shape(1, 8))
    trial = new_trial("r", case, 0.0)
    platform: Any = ModelArts(settings)
    asked = job_spec(trial, planned_stage(trial, platform), None)
    body = platform.render(replace(asked, options={**asked.options, "job_description_prefix": "x" * 300})).body
    platform.close()
    assert len(body["metadata"]["description"]) == 256
    assert body["metadata"]["description"].endswith(f" trial {trial.id}")
