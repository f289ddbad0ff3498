"""A suite's two files: what is right becomes a case, what is wrong names file, line and key."""

from __future__ import annotations

import math
from pathlib import Path

import pytest

from pytest_aisbench.engine import suites
from pytest_aisbench.errors import UsageFault
from pytest_aisbench.model import codec
from pytest_aisbench.model.case import Shape, Workload
from pytest_aisbench.model.metric import LogReading

WORKLOAD = """name = "toy"
code = ["code"]
entry = "train.py"
devices = 8
parameters = { epochs = 90, rate = 0.5, boost = true }
environment = { GLOG_v = "3" }
expected = "3h"
[metrics.throughput]
unit = "images/s"
[metrics.accuracy]
unit = ""
[modelarts]
flavor = "modelarts.kat1.8xlarge"
[local]
entry = "miniature.py"
parameters = { epochs = 3 }
"""
THRESHOLDS = """[local."*"]
throughput = { at_least = 1, unit = "images/s" }
accuracy = { at_least = 0.5 }
[local."2x8"]
throughput = { reference = 100, lower = -0.1, per = "node" }
["*"."2x8"]
accuracy = { at_least = 0.9 }
"""
PLATFORMS = {"local", "modelarts"}


def _expected(told: str) -> str:
    return f"accuracy = {{ at_least = 0.5, expected_failure = {told} }}"


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    (tmp_path / "code").mkdir()
    (tmp_path / "code" / "train.py").touch()
    (tmp_path / "code" / "miniature.py").touch()
    return tmp_path


def load(folder: Path, workload: str = WORKLOAD, thresholds: str = THRESHOLDS, platform: str = "local") -> suites.Suite:
    (folder / "workload.toml").write_text(workload)
    (folder / "thresholds.toml").write_text(thresholds)
    return suites.load_suite(folder, platform, {"flavor"} if platform == "modelarts" else set(), PLATFORMS)


def test_a_platforms_section_replaces_key_by_key(folder: Path) -> None:
    local, modelarts = load(folder).workload, load(folder, platform="modelarts").workload
    assert (local.entry, local.parameters, local.environment) == ("miniature.py", {"epochs": "3"}, {"GLOG_v": "3"})
    assert modelarts.entry == "train.py"
    assert modelarts.parameters == {"epochs": "90", "rate": "0.5", "boost": "True"}
    assert modelarts.options == {"flavor": "modelarts.kat1.8xlarge"}
    assert local.expected_s == 10800


def test_the_most_specific_claim_wins_metric_by_metric(folder: Path) -> None:
    loaded = load(folder)
    wide = {claim.metric: claim for claim in loaded.case(Shape(2, 8)).thresholds}
    assert wide["throughput"].band(Shape(2, 8))[0] == 180
    assert wide["accuracy"].at_least == 0.5  # the platform's own word outranks anybody's
    assert {claim.metric: claim.at_least for claim in loaded.case(Shape(1, 8)).thresholds} == {
        "throughput": 1.0,
        "accuracy": 0.5,
    }


def test_a_case_without_a_claim_is_refused(folder: Path) -> None:
    loaded = load(folder, thresholds='[modelarts."*"]\naccuracy = { at_least = 0.5 }\n')
    with pytest.raises(UsageFault, match=r"thresholds\.toml: toy-2x8 has no claim on throughput; add it to \[local"):
        loaded.require_claims(loaded.case(Shape(2, 8)))


@pytest.mark.parametrize(
    ("before", "after", "message"),
    [
        ('name = "toy"\n', "", "workload.toml: name is missing"),
        ('name = "toy"', 'name = "a/b"', "workload.toml:1: name 'a/b' is not a name"),
        ('code = ["code"]', 'code = ["cod"]', "workload.toml:2: code: there is no folder 'cod'"),
        ('code = ["code"]', "code = []", "workload.toml:2: code: [] is not a list of texts"),
        ('entry = "miniature.py"', 'entry = "mini.py"', "workload.toml:15: entry: there is no 'mini.py' in code"),
        ("devices = 8", "devices = 0", "workload.toml:4: devices: 0 is not a whole number from 1 to 128"),
        ("devices = 8", "devices = 100000000", "workload.toml:4: devices: 100000000 is not a whole number"),
        ('entry = "miniature.py"', 'entry = "../workload.toml"', "entry: there is no '../workload.toml' in code"),
        ('[metrics.accuracy]\nunit = ""', '[metrics.throughput_0]\nunit = "x"', "the name of a result file of its own"),
        ('[metrics.accuracy]\nunit = ""', '[metrics.scaling]\nunit = ""', "is reckoned, and written by no script"),
        ("devices = 8", f"devices = {'9' * 5000}", "workload.toml: not to be read"),
        ("devices = 8", "device = 8", "workload.toml:4: unknown key 'device'"),
        ('entry = "miniature.py"', 'entri = "miniature.py"', "workload.toml:15: unknown key 'entri' in [local]"),
        ("epochs = 3", "epochs = [3]", "workload.toml:16: parameters.epochs: [3] is neither text nor a number"),
        ("rate = 0.5", "rate = nan", None),
        ('expected = "3h"', 'expected = "3 hours"', "workload.toml:7: expected: '3 hours' is not a length of time"),
        ('unit = "images/s"', 'units = "images/s"', "metrics.throughput is not a metric"),
        ('unit = "images/s"', 'unit = ""', "throughput has no unit"),
        ('unit = "images/s"', 'unit = "images/s"\nlimits = 5', "metrics.throughput: unknown key 'limits'"),
        (
            'unit = "images/s"',
            'unit = "images/s"\nlimit = "5"',
            "metrics.throughput.limit: '5' is not a number above 0",
        ),
        (
            'unit = "images/s"',
            'unit = "images/s"\nlimit = inf',
            "metrics.throughput.limit: inf is not a number above 0",
        ),
        ('unit = "images/s"', 'unit = "images/s"\nlimit = 0', "metrics.throughput.limit: 0 is not a number above 0"),
        (
            'unit = "images/s"',
            'unit = "images/s"\nnoise = -1',
            "metrics.throughput.noise: -1 is not a number from 0 to below 1",
        ),
        ("[modelarts]", "[modelart]", "unknown key 'modelart'"),
        ('environment = { GLOG_v = "3" }', 'data = "images"', "data: there is no folder 'images'"),
        ('environment = { GLOG_v = "3" }', 'data = "obs://b/images"', "write obs://b/images/"),
        ('environment = { GLOG_v = "3" }', 'data = "http://b/"', "is not a place in the Store"),
        ('environment = { GLOG_v = "3" }', 'data_contains = "train/"', "is not a list of texts"),
        ('environment = { GLOG_v = "3" }', 'data_contains = ["/train/"]', "'/train/' is not in the data"),
        ('environment = { GLOG_v = "3" }', 'data_contains = ["a/../../b"]', "is not in the data"),
    ],
)
def test_a_bad_workload_is_one_line(folder: Path, before: str, after: str, message: str | None) -> None:
    changed = WORKLOAD.replace(before, after)
    assert changed != WORKLOAD
    if message is None:  # a value that the chosen platform replaces is not looked at
        load(folder, changed)
        return
    with pytest.raises(UsageFault) as caught:
        load(folder, changed)
    assert message in str(caught.value)
    assert "\n" not in str(caught.value)


PATTERN = "pattern = 'acc (.+)'"


@pytest.mark.parametrize(
    ("keys", "where", "message"),
    [
        (
            "pattern = 'acc'\nprinted_by = 'job'",
            12,
            "pattern: 'acc': it does not have exactly one group: write the number",
        ),
        ("pattern = 'acc ('\nprinted_by = 'job'", 12, "'acc (': it is not a regular expression: missing )"),
        ("pattern = 'acc (?:a+)+ (.)'\nprinted_by = 'job'", 12, "it repeats a repetition or a choice (+)"),
        ("pattern = 7\nprinted_by = 'job'", 12, "pattern: it is not text"),
        (PATTERN, 10, 'printed_by: is missing; write printed_by = "rank", or another of rank, job'),
        (f"{PATTERN}\nprinted_by = 'node'", 13, "printed_by: 'node' is none of rank, job"),
        (f"{PATTERN}\nprinted_by = 'job'\ntake = 'first'", 14, "take: 'first' is none of last, mean, median, max"),
        (f"{PATTERN}\nprinted_by = 'job'\ntimes = 2", 14, "times: it says how many lines there are, but not which"),
        (f"{PATTERN}\nprinted_by = 'job'\ntake = 'last'\ntimes = 'epoch'", 15, "times: [parameters] has no 'epoch'"),
        (f"{PATTERN}\nprinted_by = 'job'\ntake = 'last'\ntimes = []", 15, "times: it is an empty list"),
        (f"{PATTERN}\nprinted_by = 'job'\nsamples = 0", 14, "samples: 0 is not a number above 0"),
        (f"{PATTERN}\nprinted_by = 'job'\nsamples = ['epochs', true]", 14, "samples: True is not a number above 0"),
        (f"{PATTERN}\nprinted_by = 'job'\nsamples = 'mode'", 14, "samples: the parameter mode is not a number above 0"),
        (f"{PATTERN}\nprinted_by = 'job'\nscale = -1", 14, "scale: -1 is not a number above 0"),
        (f"{PATTERN}\nprinted_by = 'job'\nscale = inf", 14, "scale: inf is not a number above 0"),
        ("take = 'last'", 12, "take: there is no pattern that it could apply to"),
        ("samples = 3\nscale = 2", 13, "scale: there is no pattern that it could apply to"),
        (
            f"{PATTERN}\nprint_by = 'job'",
            13,
            "unknown key 'print_by'; known: unit, limit, noise, pattern, take, printed_by,",
        ),
    ],
)
def test_a_bad_pattern_is_one_line(folder: Path, keys: str, where: int, message: str) -> None:
    changed = WORKLOAD.replace("parameters = { epochs = 3 }", "parameters = { epochs = 3, mode = 'x' }")
    changed = changed.replace('[metrics.accuracy]\nunit = ""', f'[metrics.accuracy]\nunit = ""\n{keys}')
    with pytest.raises(UsageFault) as caught:
        load(folder, changed)
    assert f"workload.toml:{where}: metrics.accuracy" in str(caught.value)
    assert message in str(caught.value)
    assert "\n" not in str(caught.value)


def test_a_metric_that_is_read_from_the_log_needs_its_unit(folder: Path) -> None:
    with pytest.raises(UsageFault, match=r"metrics\.accuracy is not a metric"):
        load(folder, WORKLOAD.replace('[metrics.accuracy]\nunit = ""', f"[metrics.accuracy]\n{PATTERN}"))


def test_a_pattern_is_kept_as_it_is_written(folder: Path) -> None:
    keys = (
        f"{PATTERN}\nprinted_by = 'rank'\ntake = 'mean'\ntimes = ['epochs', 31]\nscale = 0.01\nsamples = ['ranks', 2.5]"
    )
    changed = WORKLOAD.replace('[metrics.accuracy]\nunit = ""', f'[metrics.accuracy]\nunit = ""\n{keys}')
    workload = load(folder, changed).workload
    assert workload.metrics["accuracy"].log == LogReading(
        "acc (.+)", "mean", "rank", ("epochs", "31"), 0.01, ("ranks", "2.5")
    )
    assert codec.load(Workload, codec.dump(workload)) == workload  # a ledger keeps it


@pytest.mark.parametrize(("text", "wrong"), [("environment", False), ("parameter", False), ("variables", True)])
def test_how_a_script_is_given_its_urls(folder: Path, text: str, wrong: bool) -> None:
    changed = f'urls_by = "{text}"\n{WORKLOAD}'
    if wrong:
        with pytest.raises(UsageFault, match=r"workload\.toml:1: urls_by: 'variables' is neither of the two"):
            load(folder, changed)
    else:
        assert load(folder, changed).workload.urls_by == text


@pytest.mark.parametrize(
    ("claim", "message"),
    [
        ("loss = { at_most = 1 }", "thresholds.toml:2: loss: no script writes this metric"),
        ("throughput = { at_least = 'x' }", "throughput.at_least: 'x' is not a finite number"),
        ("throughput = { at_least = nan }", "throughput.at_least: 'nan' is not a finite number"),
        ("throughput = { at_least = -inf }", "is not a finite number"),
        (f"throughput = {{ at_least = {'9' * 400} }}", "is not a finite number"),
        ("throughput = { at_least = 0 }", "throughput: claims nothing: every value meets it"),
        ("throughput = { reference = 100, lower = -1 }", "throughput: claims nothing: every value meets it"),
        ("throughput = { at_most = 900 }", "throughput: has no lower bound above 0: a job that does nothing meets it"),
        ("throughput = { reference = 100, upper = 0.1 }", "give at_least, or a reference with lower above -1"),
        ("throughput = { reference = 100, lower = -1, upper = 0.1 }", "throughput: has no lower bound above 0"),
        ("accuracy = { at_most = 0.9 }", "accuracy: has no lower bound above 0"),
        ("accuracy = { at_least = -3 }", "accuracy: claims nothing: every value meets it"),
        ("accuracy = { at_least = 77 }", "accuracy: no value meets it; an accuracy without a unit is between 0 and 1"),
        ("scaling = { at_least = 0.9, base = 'banana' }", "scaling.base: 'banana' is not a shape"),
        ("throughput = { reference = 100 }", "throughput: claims nothing"),
        ("throughput = {}", "throughput: claims nothing"),
        ("throughput = { lower = -0.1 }", "throughput: lower without a reference"),
        ("throughput = { reference = 1, at_least = 1 }", "reference and at_least exclude each other"),
        ("throughput = { reference = 1, lower = 0.05 }", "throughput.lower: 0.05 is not between -1 and 0"),
        ("throughput = { reference = 1, lower = -1.5 }", "throughput.lower: -1.5 is not between"),
        ("throughput = { reference = 1, upper = -0.1 }", "throughput.upper: -0.1 is below 0"),
        ("throughput = { at_least = 2, at_most = 1 }", "no value meets it"),
        ("throughput = { reference = -5, upper = 0.5 }", "throughput: no value meets it"),
        ("throughput = { reference = -5, lower = -0.1, upper = 1.5 }", "throughput.upper: 1.5 is not between 0 and 1"),
        ("throughput = { reference = -5, lower = 0.1 }", "throughput.lower: 0.1 is above 0"),
        ("throughput = { at_least = 2, unit = 'images' }", "throughput.unit: 'images' is not the metric's unit"),
        ("throughput = { at_least = 2, per = 'card' }", "throughput.per: 'card' is neither 'node' nor 'device'"),
        ("throughput = { at_least = 2, minimum = 1 }", "throughput.minimum: unknown key"),
        ("throughput = 5", "local.*.throughput is not a table"),
        ("scaling = { at_least = 0.9 }", "a scaling claim, and only that, has a base"),
        ("steady_throughput = { at_least = 2, unit = 's' }", "'s' is not the metric's unit 'images/s'"),
        ("steady_throughput = { at_least = 0 }", "steady_throughput: claims nothing: every value meets it"),
        ("time_to_accuracy = { at_least = 0 }", "time_to_accuracy: claims nothing: every value meets it"),
        ("time_to_accuracy = { at_most = -1 }", "time_to_accuracy: no value meets it"),
        ("time_to_accuracy = { at_most = 9, per = 'node' }", "time_to_accuracy.per: it is not shared out among nodes"),
        (_expected("'soon'"), "thresholds.toml:2: accuracy.expected_failure: 'soon' is not a table"),
        (_expected("{ until = 2027-01-31 }"), "thresholds.toml:2: accuracy.expected_failure: reason is missing"),
        (_expected("{ reason = 'x' }"), "thresholds.toml:2: accuracy.expected_failure: until is missing"),
        (_expected("{ reason = ' ', until = 2027-01-31 }"), "expected_failure.reason: ' ' is not a line of 1 to 200"),
        (_expected("{ reason = 7, until = 2027-01-31 }"), "expected_failure.reason: '7' is not a line"),
        (_expected('{ reason = "a\\nb", until = 2027-01-31 }'), "is not a line of 1 to 200 characters"),
        (_expected("{ reason = 'x', until = '2027-01-31' }"), "until: '2027-01-31' is not a date without quotes"),
        (_expected("{ reason = 'x', until = 2027-01-31T08:00:00 }"), "until: '2027-01-31 08:00:00' is not a date"),
        (_expected("{ reason = 'x', until = 2027-01-31, who = 'me' }"), "expected_failure.who: unknown key"),
    ],
)
def test_a_bad_claim_is_one_line(folder: Path, claim: str, message: str) -> None:
    with pytest.raises(UsageFault) as caught:
        load(folder, thresholds=f'[local."*"]\n{claim}\n')
    assert message in str(caught.value)
    assert "thresholds.toml:2" in str(caught.value)


@pytest.mark.parametrize(
    ("table", "message"),
    [
        ('[lokal."*"]', "unknown platform 'lokal'"),
        ('[local."two"]', "'two' is not a shape"),
        ("local = 1", "not a table"),
    ],
)
def test_a_bad_scope_is_one_line(folder: Path, table: str, message: str) -> None:
    with pytest.raises(UsageFault, match=message):
        load(folder, thresholds=f"{table}\n")


@pytest.mark.parametrize("missing", ["workload.toml", "thresholds.toml"])
def test_a_missing_file_is_named(folder: Path, missing: str) -> None:
    load(folder)
    (folder / missing).unlink()
    with pytest.raises(UsageFault, match=rf"{missing}: there is no such file"):
        suites.load_suite(folder, "local", (), PLATFORMS)


def test_an_expected_failure_says_why_until_when_and_where(folder: Path) -> None:
    claimed = _expected("{ reason = 'the old data', until = 2027-01-31 }")
    case = load(folder, thresholds=f'[local."*"]\n{claimed}\n').case(Shape(1, 8))
    expected = case.thresholds[0].expected_failure
    assert expected
    assert (expected.reason, expected.until) == ("the old data", "2027-01-31")
    assert suites.expired_claims([case], "2027-01-31") == []
    assert suites.expired_claims([case, case], "2027-02-01") == [
        f"{folder}/thresholds.toml:2: accuracy was expected to fail until 2027-01-31 (the old data): it counts"
    ]


def test_a_day_that_there_is_not_is_told_with_its_line(folder: Path) -> None:
    claimed = _expected("{ reason = 'x', until = 2027-02-31 }")
    with pytest.raises(UsageFault, match=r"thresholds\.toml: not valid TOML: invalid date or datetime \(at line 2"):
        load(folder, thresholds=f'[local."*"]\n{claimed}\n')


def test_what_is_reckoned_has_its_unit(folder: Path) -> None:
    claimed = '[local."*"]\nsteady_throughput = { at_least = 9, per = "node" }\ntime_to_accuracy = { at_most = 3600 }\n'
    case = load(folder, thresholds=claimed).case(Shape(2, 8))
    assert [claim.wanted(case.shape) for claim in case.thresholds] == [">= 18 images/s", "<= 3600 s"]


@pytest.mark.parametrize(
    ("claim", "band"),
    [
        ("{ reference = -100, lower = -0.05 }", (-105.0, math.inf)),
        ("{ reference = -100, lower = -2, upper = 0.05 }", (-300.0, -95.0)),
        ("{ reference = -100, upper = 1 }", (-math.inf, 0.0)),
        ("{ reference = 100, lower = -0.05, upper = 2 }", (95.0, 300.0)),
        ("{ at_most = -3 }", (-math.inf, -3.0)),
        ("{ at_least = -3 }", (-3.0, math.inf)),
    ],
)
@pytest.mark.parametrize("metric", ["likelihood", "accuracy"])
def test_a_reference_below_0_is_read_as_reframe_reads_it(
    folder: Path, metric: str, claim: str, band: tuple[float, float]
) -> None:
    """The bounds are what `assert_reference` of ReFrame 4 allows: `lower` is below the reference whatever its sign."""
    nats = WORKLOAD.replace('[metrics.accuracy]\nunit = ""', f'[metrics.{metric}]\nunit = "nats"')
    loaded = load(folder, nats, thresholds=f'[local."*"]\n{metric} = {claim}\n')
    (threshold,) = loaded.case(Shape(1, 8)).thresholds
    assert threshold.band(Shape(1, 8)) == pytest.approx(band)
