"""Which sections of workload.toml and thresholds.toml count where a local cloud plays another platform."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest

from pytest_aisbench import Settings
from pytest_aisbench.engine import suites
from pytest_aisbench.errors import UsageFault
from pytest_aisbench.model.case import Shape
from pytest_aisbench.platforms.apulis.settings import ApulisKind

WORKLOAD = """name = "toy"
code = ["code"]
entry = "train.py"
framework = "mindspore"
devices = 8
parameters = { epochs = 90 }
[metrics.throughput]
unit = "images/s"
[apulis]
image = "of/the:centre"
devices = 4
data_dir = "/data/theirs"
command = "./run_8p.sh"
expected = "3h"
environment = { GLOG_v = "3" }
"""
LOCAL = """[local]
entry = "miniature.py"
framework = "python"
devices = 2
parameters = { epochs = 3 }
image = "of/the:machine"
[local.mindspore]
entry = "train.py"
parameters = { synthetic = 64 }
"""
CENTRE = """[apulis."*"]
throughput = { at_least = 9000 }
accuracy = { at_least = 0.9 }
[apulis."2x4"]
throughput = { at_least = 18000 }
"""
HERE = """[local."*"]
throughput = { at_least = 10 }
accuracy = { at_least = 0.5 }
[local.mindspore."*"]
throughput = { at_least = 5 }
"""
CLOUD = Settings(platform="apulis", cloud=Path("card.json"))


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    (tmp_path / "code").mkdir()
    for name in ("train.py", "miniature.py"):
        (tmp_path / "code" / name).touch()
    return tmp_path


def load(
    folder: Path, settings: Settings, *frameworks: str, workload: str = WORKLOAD + LOCAL, claims: str = CENTRE + HERE
) -> suites.Suite:
    (folder / "workload.toml").write_text(workload)
    (folder / "thresholds.toml").write_text(claims)
    return suites.load_suite(
        folder,
        settings.platform,
        ApulisKind.options,
        {"local", "modelarts", "apulis"},
        frameworks=frameworks,
        stand_in=suites.stand_in(settings, ApulisKind()),
    )


def wanted(loaded: suites.Suite) -> dict[str, float]:
    case = loaded.case(Shape(2, 4))
    return {claim.metric: claim.band(case.shape)[0] for claim in case.thresholds}


def test_a_centre_trains_what_its_own_section_says(folder: Path) -> None:
    loaded = load(folder, replace(CLOUD, cloud=None))
    workload = loaded.workload
    assert (workload.entry, workload.framework, workload.devices) == ("train.py", "mindspore", 4)
    assert workload.options == {"image": "of/the:centre", "data_dir": "/data/theirs", "command": "./run_8p.sh"}
    assert wanted(loaded) == {"throughput": 18000, "accuracy": 0.9}


def test_on_a_local_cloud_the_centres_section_makes_the_pods_and_the_local_one_says_what_they_train(
    folder: Path,
) -> None:
    loaded = load(folder, CLOUD)
    workload = loaded.workload
    assert (workload.entry, workload.framework, workload.devices) == ("miniature.py", "python", 4)
    assert (dict(workload.parameters), dict(workload.environment)) == ({"epochs": "3"}, {})
    assert workload.expected_s == 0.0
    assert workload.options == {"image": "of/the:centre"}
    assert wanted(loaded) == {"throughput": 10, "accuracy": 0.5}


def test_a_framework_that_is_asked_for_has_its_section_there_too(folder: Path) -> None:
    loaded = load(folder, CLOUD, "mindspore")
    workload = loaded.workload
    assert (workload.entry, workload.framework) == ("train.py", "mindspore")
    assert workload.parameters == {"synthetic": "64"}
    assert wanted(loaded) == {"throughput": 5, "accuracy": 0.5}


def test_without_a_local_section_the_local_cloud_does_as_a_centre_would(folder: Path) -> None:
    loaded = load(folder, CLOUD, workload=WORKLOAD, claims=CENTRE)
    assert loaded.workload.options["command"] == "./run_8p.sh"
    assert loaded.workload.expected_s == 3 * 3600
    assert wanted(loaded)["throughput"] == 18000


@pytest.mark.parametrize(
    ("workload", "line"),
    [
        (WORKLOAD.replace("devices = 4", "devices = 0") + LOCAL, "devices = 0"),
        (WORKLOAD + LOCAL.replace("epochs = 3", "epochs = [3]"), "parameters = { epochs = [3] }"),
        (WORKLOAD + "colour = 1\n" + LOCAL, "colour = 1"),
    ],
)
def test_a_fault_names_the_line_of_the_section_that_counts(folder: Path, workload: str, line: str) -> None:
    number = workload.splitlines().index(line) + 1
    with pytest.raises(UsageFault, match=rf"workload\.toml:{number}: "):
        load(folder, CLOUD, workload=workload)
