"""Which trials are comparable by their traits, and what changed from one run to the next."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path
from typing import Any, cast

import pytest
from factories import make_case_entry, make_trial
from hypothesis import given
from hypothesis import strategies as st

from pytest_aisbench import Access, Platform, Settings
from pytest_aisbench.engine.collect import beginning_of_logs
from pytest_aisbench.engine.takeover import Fingerprints, Traits, address_of
from pytest_aisbench.judge.comparison import (
    RunDifference,
    SpeedChange,
    VerdictChange,
    compare_runs,
    family_key,
    trait_differences,
    traits_key,
    traits_of,
)
from pytest_aisbench.ledger.ledger import Ledger
from pytest_aisbench.model.case import Case, Mode, Shape
from pytest_aisbench.model.metric import LogReading, Metric
from pytest_aisbench.model.results import CaseBrief, CaseEntry, PreviousRun, Value
from pytest_aisbench.model.verdict import Ruling, Threshold
from pytest_aisbench.platforms.modelarts.platform import ModelArts
from pytest_aisbench.secret import Secret
from pytest_aisbench.traininglog.activity import software_versions

words = st.dictionaries(st.text(max_size=8), st.text(max_size=8), max_size=5)


@pytest.fixture
def modelarts() -> Platform:
    access = Access(Secret("ACCESSKEYID"), Secret("secret-key"), region_name="cn-central-221", bucket="acceptance")
    platform: Any = ModelArts(Settings(platform="modelarts", access=access))
    return cast(Platform, platform)


def traits(case: Case, **changes: str) -> dict[str, str]:
    return traits_of(case, **{"platform": "modelarts", "place": "centre", "code": "c" * 64, **changes})


def test_everything_that_decides_a_speed_is_told_apart(case: Case) -> None:
    once = LogReading("Accuracy: (.+)")
    logged = Metric("accuracy", "", log=once)
    work = replace(
        case.workload,
        metrics={**case.workload.metrics, "accuracy": logged},
        parameters={"epoch_size": "90"},
        environment={"GLOG_v": "3"},
        data="obs://bucket/imagenet/",
        options={"flavor": "kat1", "framework_version": "mindspore_1.3"},
    )
    old = traits(replace(case, workload=work))
    changed: dict[str, dict[str, Any]] = {
        "nodes: 2 -> 4": {"shape": Shape(4, 2)},
        "devices: 2 -> 8": {"shape": Shape(2, 8)},
        "mode: cluster -> single-server": {"mode": Mode.SINGLE_SERVER},
        "parameter epoch_size: 90 -> 10": {"workload": replace(work, parameters={"epoch_size": "10"})},
        "environment GLOG_v: 3 -> none": {"workload": replace(work, environment={})},
        "data: obs://bucket/imagenet/ -> obs://bucket/other/": {"workload": replace(work, data="obs://bucket/other/")},
        "framework: python -> mindspore": {"workload": replace(work, framework="mindspore")},
        "unit of throughput: images/s -> images/min": {
            "workload": replace(work, metrics={**work.metrics, "throughput": Metric("throughput", "images/min")})
        },
        "entry: train.py -> other.py": {"workload": replace(work, entry="other.py")},
        "urls_by: none -> environment": {"workload": replace(work, urls_by="environment")},
        "take of accuracy: none -> max": {
            "workload": replace(
                work, metrics={**work.metrics, "accuracy": replace(logged, log=replace(once, take="max"))}
            )
        },
        "framework_version: mindspore_1.3 -> mindspore_1.5": {
            "workload": replace(work, options={"flavor": "kat1", "framework_version": "mindspore_1.5"})
        },
    }
    for line, change in changed.items():
        new = traits(replace(case, **{"workload": work, **change}))
        assert trait_differences(old, new) == (line,)
        assert traits_key(old) != traits_key(new)
    for name in ("platform", "place", "code"):
        assert len(trait_differences(old, traits(replace(case, workload=work), **{name: "another"}))) == 1


def test_claims_are_no_traits(case: Case) -> None:
    other = replace(case, thresholds=(Threshold("accuracy", at_least=0.1),))
    work = replace(case.workload, expected_s=99.0, folder="/elsewhere")
    assert traits(case) == traits(other) == traits(replace(case, workload=work))


def test_labels_are_no_traits(case: Case, modelarts: Platform) -> None:
    of = Traits(modelarts, Fingerprints(None)).of
    named, larger = (
        replace(case, workload=replace(case.workload, options=options))
        for options in ({"job_name": "nightly", "job_description_prefix": "mine"}, {"flavor": "modelarts.kat1.8xlarge"})
    )
    assert of(case) == of(named)
    assert of(case) != of(larger)


def test_shapes_of_a_workload_are_one_family(case: Case) -> None:
    wide = replace(case, shape=Shape(8, 8))
    assert family_key(traits(case)) == family_key(traits(wide)) != traits_key(traits(case))
    assert family_key(traits(case)) != family_key(traits(case, place="elsewhere"))


def test_no_secret_is_told_and_a_changed_one_is_a_difference(case: Case) -> None:
    def with_secrets(word: str) -> dict[str, str]:
        environment = {"API_TOKEN": word, "DATASET": f"https://me:{word}@host/data", "HF_KEY": word, "LEVEL": "3"}
        work = replace(case.workload, environment=environment, parameters={"password": word})
        return traits(replace(case, workload=work))

    old, new = with_secrets("geheim-1"), with_secrets("geheim-2")
    assert "geheim" not in json.dumps([old, new, trait_differences(old, new)])
    assert old["environment LEVEL"] == "3"
    assert [line.partition(":")[0] for line in trait_differences(old, new)] == ["what is hidden"]
    assert family_key(with_secrets("geheim-1")) == family_key(old)


def test_what_is_long_is_cut_and_still_told_apart(case: Case) -> None:
    def long(end: str) -> dict[str, str]:
        return traits(replace(case, workload=replace(case.workload, parameters={"text": "x" * 500 + end})))

    assert traits_key(long("a")) != traits_key(long("b"))
    assert len(long("a")["parameter text"]) < 100


@given(words, words)
def test_keys_are_alike_where_nothing_differs(old: dict[str, str], new: dict[str, str]) -> None:
    assert (traits_key(old) == traits_key(new)) == (not trait_differences(old, new))
    assert traits_key(dict(reversed(old.items()))) == traits_key(old)
    assert (traits_key(old) == "") == (not old)


@pytest.mark.parametrize(
    ("place", "known"),
    [
        ("modelarts https://modelarts.north.example.com obs://bucket/aisbench/ V1", "modelarts.north.example.com"),
        ("apulis https://me:word@apulis.example:8443/x me file:///", "apulis.example:8443"),
        ("a platform of somebody else's", "a platform of somebody else's"),
    ],
)
def test_a_platform_is_known_by_its_address(place: str, known: str) -> None:
    assert address_of(place) == known


@pytest.mark.parametrize(
    "place", ["", "local http://127.0.0.1:4711 obs://b/", "apulis http://localhost:99 me obs://b/"]
)
def test_a_platform_on_this_machine_is_the_machine_whatever_its_port(place: str) -> None:
    assert address_of(place).endswith(" cores")
    assert "127" not in address_of(place)


def test_another_line_of_code_is_another_trait(case: Case, modelarts: Platform) -> None:
    before = Traits(modelarts, Fingerprints(None)).of(case)
    (Path(case.workload.folder) / "code" / "train.py").write_text("print('better')\n")
    after = Traits(modelarts, Fingerprints(None)).of(case)
    assert [line.partition(":")[0] for line in trait_differences(before, after)] == ["code"]


def test_the_logs_of_all_nodes_tell_what_trained(case: Case, tmp_path: Path) -> None:
    for node, driver in enumerate(("21.0.2", "21.0.4")):
        (tmp_path / f"worker-{node}.log").write_text(f"CANN version: 5.0.2\ndriver version: {driver}\n")
    trial = make_trial(case, logs=("worker-0.log", "worker-1.log", "worker-2.log", "other.txt"))
    assert software_versions(beginning_of_logs(trial, tmp_path)) == {"cann": "5.0.2", "driver": "21.0.2, 21.0.4"}


PASSED, FAILED = Ruling.PASSED, Ruling.FAILED


def test_what_came_went_turned_and_moved_is_told() -> None:
    before = PreviousRun(
        "run-1",
        "2026-01-01T00:00:00Z",
        (
            CaseBrief("kept", PASSED, 100.0, "images/s"),
            CaseBrief("slower", PASSED, 100.0, "images/s"),
            CaseBrief("gone", PASSED, 1.0, "images/s"),
            CaseBrief("renamed", PASSED, 100.0, "samples/s"),
            CaseBrief("mended", None, None, "images/s"),
        ),
        earlier=frozenset({"back"}),
    )
    now = [
        CaseBrief("kept", PASSED, 101.0, "images/s"),
        CaseBrief("slower", FAILED, 50.0, "images/s"),
        CaseBrief("new", PASSED, 5.0, "images/s"),
        CaseBrief("back", PASSED, 5.0, "images/s"),
        CaseBrief("renamed", PASSED, 200.0, "images/s"),
        CaseBrief("mended", PASSED, 7.0, "images/s"),
    ]

    found = compare_runs(before, now)

    assert found == RunDifference(
        new=("new",),
        back=("back",),
        gone=("gone",),
        turned=(VerdictChange("slower", PASSED, FAILED), VerdictChange("mended", None, PASSED)),
        moved=(SpeedChange("slower", 100.0, 50.0, "images/s"), SpeedChange("kept", 100.0, 101.0, "images/s")),
    )
    assert found.moved[0].share == pytest.approx(-0.5)


@pytest.mark.parametrize("value", [0.0, -1.0, float("nan"), float("inf"), None])
def test_what_is_no_speed_has_not_moved(value: float | None) -> None:
    before = PreviousRun("run-1", "", (CaseBrief("a", PASSED, value, ""),))

    assert compare_runs(before, [CaseBrief("a", PASSED, 1.0, "")]).moved == ()


def entry(verdict: Ruling | None) -> CaseEntry:
    return make_case_entry("1x1", "a", verdict=verdict, metrics={"throughput": Value(12.5, "images/s")})


def test_the_last_run_that_ended_with_a_verdict_on_the_same_platform_is_the_one_before(tmp_path: Path) -> None:
    ledger = Ledger(tmp_path / "ledger.db")
    here, elsewhere = {"platform": "local", "region": ""}, {"platform": "modelarts", "region": "cn-north-4"}
    for at, (run, settings, verdict, ended) in enumerate(
        [
            ("oldest", here, PASSED, True),
            ("the one", here, FAILED, True),
            ("elsewhere", elsewhere, PASSED, True),
            ("unjudged", here, None, True),
            ("killed", here, PASSED, False),
            ("now", here, PASSED, False),
            ("later", here, PASSED, True),
        ]
    ):
        ledger.begin(run, settings, 1000.0 + at)
        ledger.save_case(run, 0, entry(verdict))
        if ended:
            ledger.finish(run, 0, 2000.0 + at)

    found = ledger.entry("now").before
    first, alone = ledger.previous("oldest"), ledger.previous("elsewhere")
    ledger.close()

    assert found == PreviousRun("the one", "1970-01-01T00:16:41.000Z", (CaseBrief("a-1x1", FAILED, 12.5, "images/s"),))
    assert first is None
    assert alone is None
