"""A metric by a pattern: which patterns are refused, what a line says, and what a whole log says."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from pytest_aisbench.traininglog.patterns import TAKES, NoNumber, PatternError, PrintedLog, read_pattern, read_printed

MNIST = r"Test set: .* Accuracy: (?P<value>\d+)/(?P<of>\d+)"
ZOO = r"per step time: (\S+) ms"


@pytest.mark.parametrize(
    ("pattern", "line", "value"),
    [
        (MNIST, "Test set: Average loss: 0.0281, Accuracy: 9913/10000 (99%)", 0.9913),
        (MNIST, "Train Epoch: 1 [640/60000 (1%)]\tLoss: 1.2", None),
        (ZOO, "14,405:INFO:epoch: [1/1] step: [10/312], loss: 2.3, lr: 0.1, per step time: 105.2 ms", 105.2),
        (r"throughput[:=] ?(\S+)", "throughput: 1.5e3", 1500.0),
        (r"throughput[:=] ?(\S+)", "throughput=-0.5;", -0.5),
        (r"tps: (\S+)", "step: 530  tps: 21,734  tflops: 23.15", 21734.0),
        (r"tps: ([\d.]+)", "step: 530  tps: 829  tflops: 23.15", 829.0),
        (r"(?i)acc@1 +(\S+)", " * Acc@1   76.126 Acc@5 92.9", 76.126),
        (r"(\S+) img/sec per \w+", "Iter #0: 26.1 img/sec per CPU", 26.1),
        (r"loss(?: is|:) ([-+.\deE]+)", "epoch: 1 step: 195, loss is 1.9601055", 1.9601055),
    ],
)  # fmt: skip
def test_a_line_gives_its_number(pattern: str, line: str, value: float | None) -> None:
    assert read_pattern(pattern).read(line) == (None if value is None else pytest.approx(value, rel=1e-12))


@pytest.mark.parametrize(
    ("pattern", "line"),
    [
        (r"acc (\S+)", "acc nan"),
        (r"acc (\S+)", "acc -inf"),
        (r"acc (\S+)", "acc 1e999"),
        (r"acc (\S+)", "acc 1" + "0" * 400),
        (r"acc (\S+)", "acc 99%"),
        (r"acc (\S+)", "acc 0,95"),
        (r"acc (\S+)", "acc n/a"),
        # A pattern for digits does not match these; the line before must not count in their place.
        (r"acc ([\d.]+)", "acc nan"),
        (r"acc ([\d.]+)%", "acc NaN%"),
        (r"acc (\d+)/100", "acc inf/100"),
        # A pattern that takes a part of a number reads another number.
        (r"acc (\d+)", "acc 0.95"),
        (r"acc ([\d.]+)", "acc 9.5e-1"),
        (r"acc .*(\d)", "acc 95"),
        (r"acc -?([\d.]+)", "acc -0.95"),
        (r"acc .(\d+)", "acc .95"),
        (r"tps: ([\d.]+)", "tps: 21,734"),
        (r"tps: \d+,(\d+)", "tps: 21,734"),
        (MNIST, "Test set: Average loss: 1, Accuracy: 0/0 (nan%)"),
        (MNIST, "Test set: Average loss: 1, Accuracy: 9913/10.5"),
    ],
)  # fmt: skip
def test_a_number_that_cannot_be_used_is_never_another_one(pattern: str, line: str) -> None:
    with pytest.raises(NoNumber):
        read_pattern(pattern).read(line)


@pytest.mark.parametrize(
    ("pattern", "why"),
    [
        ("acc (", "not a regular expression"),
        ("acc [", "not a regular expression"),
        ("acc (?P<value>x)(?P<value>y)", "not a regular expression"),
        ("accuracy", "exactly one group"),
        (r"acc (\d+)/(\d+)", "exactly one group"),
        (r"acc (?P<of>\d+)", "exactly one group"),
        (r"acc (?P<value>\d+) (\d+)", "exactly one group"),
        (r"acc (?P<top1>\d+)", "a group begins with"),
        (r"acc (?=x)(\d+)", "a group begins with"),
        (r"acc (?#x)(\d+)", "a group begins with"),
        (r"acc (\d)\1", "refers back"),
        (r"acc (\d+)?", "repeated, or may be absent"),
        (r"acc (\d)+", "repeated, or may be absent"),
        (r"(.*)", "no fixed text"),
        (r"a?(\d+)b*", "no fixed text"),
        (r"acc (\d+)|loss", "choice of whole patterns"),
        (r"acc (?:a+)+ (\d+)", "repeats a repetition"),
        (r"acc (?:\w+\s?)* (\d+)", "repeats a repetition"),
        (r"acc (?:a|b|ab)* (\d+)", "repeats a repetition"),
        (r"acc (?:(?:a?)){3,9} (\d+)", "repeats a repetition"),
        ("acc\n(\\d+)", "printable"),
        ("acc (x)" + "y" * 600, "500"),
    ],
)  # fmt: skip
def test_what_no_pattern_may_be(pattern: str, why: str) -> None:
    with pytest.raises(PatternError, match=why):
        read_pattern(pattern)


@pytest.mark.parametrize(
    ("pattern", "fixed"),
    [
        (MNIST, " Accuracy: "),
        (r"epoch time: \S+ ms, per step time: (\S+)", " ms, per step time: "),
        (r"\[Eval\]\[Epoch \d+\].*top1: ([\d.]+)", r"[Eval][Epoch "),
        (r"colou?r (\d+)", "colo"),
        (r"ab{2}c{0,3}defg+ (\d+)", "defg"),
        (r"{x} (\d+)", "{x} "),
        (r"(?i)ACC (\d+)", "acc "),
        (r"[]()|*+] value (\d+) [^]]", " value "),
    ],
)
def test_lines_are_recognised_by_the_longest_text_that_all_have(pattern: str, fixed: str) -> None:
    assert read_pattern(pattern).fixed == fixed


@given(st.text(max_size=60))
def test_any_text_is_a_pattern_or_is_refused(text: str) -> None:
    """What is accepted matches only lines that have its fixed text."""
    for source in (text, f"{text}loss: (\\d+)"):
        try:
            pattern = read_pattern(source)
        except PatternError:
            continue
        assert pattern.expression.groups == 1
        assert len(pattern.fixed.replace(" ", "")) >= 2


@given(st.floats(allow_nan=False, allow_infinity=False), st.sampled_from(["{}", "{:e}", "{:f}", "{:.3f}"]))
def test_a_number_is_read_as_it_was_printed(number: float, form: str) -> None:
    printed = form.format(number)
    expected = float(printed)
    assert read_pattern(r"loss is (\S+)").read(f"epoch 1, loss is {printed}, lr 0.1") == expected


@given(st.floats(0, 1e6), st.integers(1, 12))
def test_a_number_that_is_cut_short_is_refused_or_the_same(number: float, digits: int) -> None:
    """A pattern that ends within the number must not read another number."""
    printed = f"{number:.6f}"
    pattern = read_pattern(rf"loss is ([\d.]{{1,{digits}}})")
    try:
        assert pattern.read(f"loss is {printed} end") == float(printed)
    except NoNumber:
        assert len(printed) > digits


@pytest.mark.parametrize("char", " :1")
def test_a_line_of_any_length_ends(char: str) -> None:
    """Without a limit on the line this would take days."""
    assert read_pattern(r"acc \s*.*: (\d+(?:\.\d*)?)").read("acc " + char * 10**6) is None


@pytest.mark.parametrize(("take", "value"), [("last", 2.0), ("mean", 4.0), ("median", 3.0), ("max", 8.0)])
def test_one_number_is_taken_of_several(take: str, value: float) -> None:
    assert TAKES[take]([3.0, 3.0, 8.0, 2.0]) == value


def log(text: str, *patterns: str) -> PrintedLog:
    return read_printed([text], [read_pattern(each) for each in patterns or (r"acc (\S+)",)], lambda _: 0)


SERVICE = "[ModelArts Service Log]2026-11-18 10:00:00,000 - INFO - "


@pytest.mark.parametrize(
    ("text", "is_cut"),
    [
        (f"{SERVICE}Begin training processes\nacc 1\n{SERVICE}Training end with return code: 0\n", False),
        (f"{SERVICE}Begin training processes\nacc 1\n{SERVICE}Training end with return code: 0\n\n", False),
        (f"{SERVICE}Begin training processes\nacc 1\n", True),
        (f"{SERVICE}Begin training processes\nacc 1\n{SERVICE}Training en", True),
        (f"{SERVICE}x\nacc 1\n{SERVICE}log length overflow, process will continue running silently\n", True),
        ('time="…" level=info msg="training end" Platform=ModelArts-Service\n', False),
        ("acc 1\n", False),
        ("acc 1", True),
        ("", True),
    ],
)
def test_a_log_shows_whether_its_end_is_missing(text: str, is_cut: bool) -> None:
    assert log(text).is_cut == is_cut


def test_a_last_line_without_an_end_is_not_read() -> None:
    """`acc 0.9` may be the beginning of `acc 0.01e1`."""
    assert log("acc 0.5\nacc 0.9").numbers[r"acc (\S+)"].by_rank == {0: [0.5]}


def test_colours_bars_and_prefixes_do_not_hide_a_line() -> None:
    lines = (
        "\x1b[32macc\x1b[0m 1\n"  # between the word and its number
        "acc 7\racc 8\racc 2\n"  # a bar shows its last drawing
        "[rank3]:acc 3\r\n"
        "[1,2]<stdout>:acc 4\n"
    )
    assert log(lines, r"^acc (\S+)").numbers[r"^acc (\S+)"].by_rank == {0: [1.0, 2.0, 3.0, 4.0]}


def test_the_platforms_own_lines_give_no_value() -> None:
    assert log(f"{SERVICE}acc 5\n").numbers[r"acc (\S+)"].count == 0


def test_the_first_line_that_cannot_be_used_is_kept() -> None:
    numbers = log("acc 1\nacc nan\nacc -inf\nacc 2\n").numbers[r"acc (\S+)"]
    assert numbers.unusable == "acc nan"


@given(
    st.lists(st.sampled_from(["acc 0.5\n", "noise\n", "acc 0.75", "\n", "\r", "acc"]), max_size=30), st.integers(1, 7)
)
def test_a_log_reads_the_same_in_pieces(parts: list[str], size: int) -> None:
    text = "".join(parts)
    pieces = [text[at : at + size] for at in range(0, len(text), size)]
    whole, by_piece = log(text), read_printed(pieces, [read_pattern(r"acc (\S+)")], lambda _: 0)
    assert by_piece == whole
