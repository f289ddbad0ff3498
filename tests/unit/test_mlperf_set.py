"""A folder of MLPerf's results: what is a run, what is mentioned, what leaves a set open, how far its runs differ."""

from __future__ import annotations

import gzip
import json
import tracemalloc
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from mlperf_logs import ascend_bert, ascend_resnet, evaluation_counting_bert, nvidia_bert, nvidia_resnet

from pytest_aisbench.cli import judge as judge_module
from pytest_aisbench.cli import main
from pytest_aisbench.traininglog.mlperf_set import spread

REPOSITORY = Path(__file__).parents[2]


@pytest.fixture
def runs(tmp_path: Path) -> Path:
    """Three runs of a ResNet on Ascend, fast enough, half a percent apart."""
    folder = tmp_path / "runs"
    folder.mkdir()
    for number, speed in enumerate((15_000, 15_040, 15_075)):
        (folder / f"result_{number}.txt").write_text(ascend_resnet(speed=speed).text, encoding="utf-8")
    return folder


class Judged:
    """What `aisbench judge` says of a folder."""

    def __init__(self, capsys: pytest.CaptureFixture[str]) -> None:
        self._capsys = capsys

    def __call__(self, folder: Path, *more: str, workload: str = "resnet50") -> tuple[int, str]:
        self._capsys.readouterr()
        code = main(["judge", str(folder), "--workload", workload, "--suites", str(REPOSITORY / "suites"), *more])
        output = self._capsys.readouterr()
        return code, output.out + output.err

    def document(self, folder: Path, *more: str, workload: str = "resnet50") -> dict[str, Any]:
        document: dict[str, Any] = json.loads(self(folder, "--json", *more, workload=workload)[1])
        return document


@pytest.fixture
def judged(capsys: pytest.CaptureFixture[str]) -> Judged:
    return Judged(capsys)


def test_a_whole_set_passes_by_the_thresholds_that_we_ship(runs: Path, judged: Judged) -> None:
    code, output = judged(runs)
    assert code == 0, output
    assert "PASSED the set of 3" in output
    assert (
        "  throughput: 0.5% from the slowest run to the fastest; farthest is result_0.txt, 0.4% below the median"
        in output
    )


@pytest.mark.parametrize(
    ("name", "why"),
    [
        ("result_1.txt.bak", "no result of MLPerf's ends in '.bak'"),
        ("result_1.txt.1", "no result of MLPerf's ends in '.1'"),
        ("result_1.txt.zst", "unpack .zst first, or pack by gzip"),
        ("Result_1.TXT.orig", "no result of MLPerf's ends in '.orig'"),
        ("results.json", "no result of MLPerf's ends in '.json'"),
    ],
)
def test_what_is_named_like_a_result_and_not_read_is_mentioned(name: str, why: str, runs: Path, judged: Judged) -> None:
    (runs / name).write_bytes(b"")
    code, output = judged(runs)
    assert f"  {name} is not read: {why}\n" in output
    assert code == 0, "the runs themselves are whole"
    assert judged.document(runs)["left_out"] == [{"file": name, "why": why}]


@pytest.mark.parametrize(
    "name", ["result_3.txt", "Result_3.txt", "RESULT_3.TXT", "result_3", "result_3.log", "Result-3.OUT"]
)
def test_an_empty_result_is_a_run_that_failed_however_it_is_spelled(name: str, runs: Path, judged: Judged) -> None:
    (runs / name).write_bytes(b"")
    code, output = judged(runs)
    assert code == 1
    assert f"FAILED {name}: accuracy: there is no line with :::MLLOG" in output
    assert f"FAILED the set of 4: 1 of 4 did not pass: {name}" in output


@pytest.mark.parametrize("instead", ["", "result_1.txt.zst", "result_1.txt.bak", "result_1.txt/"])
def test_a_set_with_a_gap_is_not_green(instead: str, runs: Path, judged: Judged) -> None:
    (runs / "result_1.txt").unlink()
    if instead.endswith("/"):
        (runs / instead).mkdir()
    elif instead:
        (runs / instead).write_bytes(b"packed")
    code, output = judged(runs)
    assert code == 13
    assert "INCONCLUSIVE the set of 2: result_1 is missing: the set has a gap\n" in output
    assert not instead or f"{instead.rstrip('/')} is not read: " in output
    assert judged.document(runs)["objections"] == ["result_1 is missing: the set has a gap"]


def test_a_number_at_the_end_that_is_not_read_is_a_gap_too(runs: Path, judged: Judged) -> None:
    (runs / "result_3.txt.zst").write_bytes(b"packed")
    code, output = judged(runs)
    assert (code, "result_3 is missing: the set has a gap" in output) == (13, True)


def test_runs_may_begin_with_1_and_be_in_folders_of_their_own(tmp_path: Path, judged: Judged) -> None:
    for number in (1, 2, 3):
        folder = tmp_path / "runs" / f"run{number}"
        folder.mkdir(parents=True)
        (folder / f"result_{number}.txt").write_text(ascend_resnet(speed=15_000 + number).text, encoding="utf-8")
    assert judged(tmp_path / "runs")[0] == 0
    (tmp_path / "runs" / "run2" / "result_2.txt").unlink()
    code, output = judged(tmp_path / "runs")
    assert (code, "result_2 is missing: the set has a gap" in output) == (13, True)


def test_dates_are_no_numbers_of_runs(tmp_path: Path, judged: Judged) -> None:
    for number in (20_260_101, 20_260_301):
        (tmp_path / f"result_{number}.txt").write_text(ascend_resnet(speed=15_000 + number % 9).text, encoding="utf-8")
    assert judged(tmp_path)[0] == 0


def test_one_file_is_judged_alone(runs: Path, judged: Judged) -> None:
    assert judged(runs / "result_2.txt")[0] == 0


def test_a_failed_run_weighs_more_than_a_gap(runs: Path, judged: Judged) -> None:
    (runs / "result_5.txt").write_text(ascend_resnet(speed=9_000).text, encoding="utf-8")
    code, output = judged(runs)
    assert code == 1
    assert "FAILED the set of 4: 1 of 4 did not pass: result_5.txt" in output
    assert "  result_3, result_4 are missing: the set has a gap" in output


def test_a_set_needs_as_many_runs_as_asked_for(runs: Path, judged: Judged) -> None:
    assert judged(runs, "--runs", "3")[0] == 0
    code, output = judged(runs, "--runs", "4")
    assert (code, "INCONCLUSIVE the set of 3: the set needs 4 runs, and has 3" in output) == (13, True)
    assert judged.document(runs, "--runs", "mlperf")["runs_needed"] == 5
    assert judged.document(runs)["runs_needed"] is None
    for wrong in ("0", "many"):
        with pytest.raises(SystemExit):
            judged(runs, "--runs", wrong)
    code, output = judged(runs, "--runs", "mlperf", "--platform", "local", workload="torch_mlp")
    assert (code, output.count("\n")) == (4, 1)
    assert "MLPerf has no benchmark 'torch_mlp'" in output


@pytest.mark.parametrize(
    ("key", "old", "new", "values"),
    [
        ("global_batch_size", "4096", "8192", "4096 (result_0.txt, result_1.txt), 8192 (result_2.txt)"),
        ("train_samples", "1277952", "1281167", "1277952 (result_0.txt, result_1.txt), 1281167 (result_2.txt)"),
        (
            "submission_benchmark",
            '"resnet"',
            '"resnet50"',
            "resnet (result_0.txt, result_1.txt), resnet50 (result_2.txt)",
        ),
    ],
)
def test_runs_of_another_setting_are_no_set(
    key: str, old: str, new: str, values: str, runs: Path, judged: Judged
) -> None:
    file = runs / "result_2.txt"
    text = file.read_text(encoding="utf-8")
    changed = [row.replace(f'"value": {old}', f'"value": {new}') if key in row else row for row in text.splitlines()]
    file.write_text("\n".join(changed), encoding="utf-8")
    code, output = judged(runs)
    assert code == 13
    assert f"the set of 3: the runs differ in {key}: {values}" in output


def test_the_totals_of_bert_differ_from_run_to_run(tmp_path: Path, judged: Judged) -> None:
    for number in range(3):
        (tmp_path / f"result_{number}.txt").write_text(nvidia_bert(evaluations=14 + number).text, encoding="utf-8")
    assert judged(tmp_path, workload="bert")[0] == 0


def test_a_copy_is_no_run_of_its_own_however_it_is_written(runs: Path, judged: Judged) -> None:
    text = (runs / "result_0.txt").read_text(encoding="utf-8")
    copies = {
        "a trailing blank": text.replace("}\n", "} \n"),
        "a prefix": "".join(f"0: {line}\n" for line in text.splitlines()),
        "spacing": text.replace('": ', '":'),
        "a path": text.replace("/workspace/", "/elsewhere/"),
    }
    for number, (what, copy) in enumerate(copies.items(), start=3):
        assert copy != text
        file = runs / f"result_{number}.txt"
        file.write_text(copy, encoding="utf-8")
        code, output = judged(runs)
        assert code == 1, what
        assert f"FAILED {file.name}: throughput: it is the same run as result_0.txt" in output, what


def test_a_run_apart_from_the_others_is_named_although_it_passes(tmp_path: Path, judged: Judged) -> None:
    speeds = [15_700, 15_710, 15_690, 15_010, 15_705, 15_730]
    for number, speed in enumerate(speeds):
        (tmp_path / f"result_{number}.txt").write_text(ascend_resnet(speed=speed).text, encoding="utf-8")
    code, output = judged(tmp_path)
    assert code == 0
    assert (
        "  throughput: 4.6% from the slowest run to the fastest; result_3.txt stands apart: "
        "4.4% below the median of the others, which are within 0.3%\n"
    ) in output
    apart = judged.document(tmp_path)["spread"]
    assert (apart["farthest"], apart["apart"], round(apart["off"], 3)) == ("result_3.txt", True, -0.044)


@given(st.lists(st.integers(1, 10**6), min_size=3, max_size=40, unique=True))
def test_the_farthest_run_is_the_slowest_or_the_fastest(speeds: list[int]) -> None:
    runs = spread({str(number): speed for number, speed in enumerate(speeds)})
    assert runs is not None
    assert speeds[int(runs.farthest)] in (min(speeds), max(speeds))
    assert (runs.off < 0) == (speeds[int(runs.farthest)] == min(speeds))


def test_two_runs_have_no_odd_one() -> None:
    assert spread({"a": 1.0, "b": 2.0}) is None
    same = spread({"a": 1.0, "b": 1.0, "c": 1.0})
    assert same is not None
    assert (same.relative, same.apart) == (0.0, False)


def test_memory_does_not_depend_on_what_a_packed_file_holds(
    runs: Path, judged: Judged, monkeypatch: pytest.MonkeyPatch
) -> None:
    """64 MiB without a line end, from 64 KiB: with the run after them, and as a file that goes on."""
    monkeypatch.setattr(judge_module, "_LARGEST_UNPACKED", 128 << 20)
    log = nvidia_resnet(speed=15_100).text.encode()
    (runs / "result_3.txt.gz").write_bytes(gzip.compress(b"\0" * (64 << 20) + log))
    tracemalloc.start()
    try:
        code, output = judged(runs)
        _, peak = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()
    assert "PASSED result_3.txt.gz" in output
    assert code == 13, "another batch size than the others"
    assert peak < 24 << 20
    monkeypatch.setattr(judge_module, "_LARGEST_UNPACKED", 16 << 20)
    code, output = judged(runs)
    assert (code, output.count("\n")) == (4, 1)
    assert "result_3.txt.gz unpacks to more than 16 MiB" in output


def test_a_file_of_events_without_end_is_no_log_of_a_run(
    runs: Path, judged: Judged, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("pytest_aisbench.traininglog.mlperf._MOST_EVENTS", 30)
    code, output = judged(runs / "result_0.txt")
    assert code == 1
    assert "it has more than 30 events: no log of one run" in output


def test_an_event_between_two_pieces_of_a_long_line_is_seen(
    tmp_path: Path, judged: Judged, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A progress bar without line ends, and then an event: where the pieces meet does not matter."""
    monkeypatch.setattr(judge_module, "_LONGEST_LINE", 4096)
    lines = list(ascend_resnet().lines)
    for length in range(4085, 4100):
        lines[-1] = "#" * length + ascend_resnet().lines[-1]
        (tmp_path / "result_0.txt").write_text("\n".join(lines), encoding="utf-8")
        assert "run_stop is missing" not in judged(tmp_path)[1], length


def test_accuracy_before_the_run_does_not_pass_bert(tmp_path: Path, judged: Judged) -> None:
    text = ascend_bert(accuracy=0.60).text.replace('"value": 0.3409', '"value": 0.75')
    (tmp_path / "result_0.txt").write_text(text, encoding="utf-8")
    code, output = judged(tmp_path, workload="bert")
    assert (code, "accuracy 0.6, wanted" in output) == (1, True)


def test_what_a_reader_sees_of_a_set_in_disorder(runs: Path, judged: Judged) -> None:
    (runs / "result_1.txt").rename(runs / "result_1.txt.bak")
    (runs / "result_3.txt").write_text(evaluation_counting_bert().text.replace('"bert"', '"resnet"'), encoding="utf-8")
    (runs / "result_4.txt").write_text(ascend_resnet(speed=15_050).text[:3000], encoding="utf-8")
    code, output = judged(runs, "--runs", "mlperf")
    assert code == 1
    blocks = "eval_accuracy says 6 epochs, and its blocks say 5685 to 6822"
    assert [line.partition(" images/s, wanted")[0] for line in output.splitlines()] == [
        "PASSED result_0.txt: throughput 15000",
        "PASSED result_2.txt: throughput 15075",
        "FAILED result_3.txt: accuracy 0.71212, wanted >= 0.759 (6.2% below)",
        "FAILED result_4.txt: accuracy: line 15 is not an event of MLPerf's",
        "  throughput is train_samples × epochs / (run_stop − run_start)",
        "  result_1.txt.bak is not read: no result of MLPerf's ends in '.bak'",
        "  result_1 is missing: the set has a gap",
        "  the runs differ in train_samples: 1277952 (result_0.txt, result_2.txt and 1 more), 3565320 (result_3.txt)",
        "  the runs differ in global_batch_size: 4096 (result_0.txt, result_2.txt and 1 more), 440 (result_3.txt)",
        "  the set needs 5 runs, and has 4",
        "FAILED the set of 4: 2 of 4 did not pass: result_3.txt, result_4.txt",
    ]
    document = judged.document(runs)
    assert document["files"][2]["contradictions"] == [blocks]
    assert [each["samples"] for each in document["files"]] == [1_277_952 * 40, 1_277_952 * 40, None, None]
