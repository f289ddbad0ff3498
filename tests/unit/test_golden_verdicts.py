"""The words of every kind of verdict, as people and scripts have come to know them.

A change of words shows here. If it is meant: python tests/unit/test_golden_verdicts.py > tests/unit/golden/verdicts.txt
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path

from factories import make_case, make_measurements, make_trial

from pytest_aisbench.judge.evaluate import compare_with_band, conclude
from pytest_aisbench.judge.noise_test import Noise, decide
from pytest_aisbench.judge.scaling import Speed, decide_scaling, waived_finding
from pytest_aisbench.judge.trend import find_drift, newest_level
from pytest_aisbench.judge.values import case_values
from pytest_aisbench.model.case import Mode, Shape
from pytest_aisbench.model.metric import ACCURACY, SCALING, STEADY_THROUGHPUT, THROUGHPUT, TIME_TO_ACCURACY
from pytest_aisbench.model.verdict import ExpectedFailure, Finding, Ruling, Threshold, Verdict
from pytest_aisbench.traininglog.curve import read_curve

GOLDEN = Path(__file__).parent / "golden" / "verdicts.txt"
UNIT = "images/s"
SHAPE = Shape(2, 2)
SPEED = Threshold(THROUGHPUT, UNIT, reference=1000.0, lower=-0.05, per="node")
LEARNT = Threshold(ACCURACY, at_least=0.759)
ABOUT = Threshold(ACCURACY, reference=0.77, lower=-0.01)
SCALED = Threshold(SCALING, at_least=0.9, base="1x2")
STEADY = Threshold(STEADY_THROUGHPUT, UNIT, at_least=2200.0)
SOON = Threshold(TIME_TO_ACCURACY, "s", at_most=3600.0)
OLD = ExpectedFailure("HCCL of driver 21.0.2 is slow", "2027-01-31")
LOG = "".join(f"Iter #{step}: {speed} img/sec per NPU\n" for step, speed in enumerate((200, 560, 560, 560, 560)))
EVALUATED = "eval epoch: 1, accuracy: 0.7, elapsed: 900 s\neval epoch: 2, accuracy: 0.77, elapsed: 1800.5 s\n"
STILL = "eval epoch: 1, accuracy: 0.7, elapsed: 900 s\n"
STILL_AIR, WIND = Noise(5.0, 9), Noise(40.0, 9)
QUIET, NOISY = (2010.0, 2012.0, 2008.0, 2011.0, 2009.0), (2010.0, 1850.0, 2200.0, 1900.0, 2150.0)


def verdict(
    *claims: Threshold,
    speed: float | Sequence[float] = 500.0,
    learnt: float = 0.77,
    log: str = "",
    findings: Mapping[Threshold, Finding] | None = None,
    drifts: Sequence[Finding] = (),
    today: str = "2027-01-15",
    mode: Mode = Mode.CLUSTER,
) -> Verdict:
    """Of a job whose four ranks wrote this."""
    case = make_case("2x2", *(claims or (SPEED, LEARNT)), mode=mode)
    trial = make_trial(case, measurements=make_measurements(case, speed, learnt), curve=read_curve(log))
    values = case_values(trial)
    missing = {each.metric for each in values.missing}
    pairs = [
        (
            claim,
            (findings or {}).get(claim) or compare_with_band(claim, values.values.get(claim.metric), case.judged_shape),
        )
        for claim in case.thresholds
        if claim.metric not in missing
    ]
    return conclude(values, pairs, drifts, today)[0]


def gated(history: Sequence[float], *trials: float, most: int = 3) -> Verdict:
    level = newest_level(history)
    decision = decide(SPEED, SHAPE, level.values, trials, most, left_out=level.left_out)
    return verdict(findings={SPEED: decision.finding}, speed=trials[-1] / 4)


def floored(floor: float, history: Sequence[float], trial: float) -> Verdict:
    claim = replace(SPEED, reference=None, lower=None, at_least=floor, per=None)
    return verdict(claim, LEARNT, findings={claim: decide(claim, SHAPE, history, [trial], 3).finding}, speed=trial / 4)


def scaling(speed: Speed, base: Speed) -> Verdict:
    decision = decide_scaling(SCALED, speed, base, 3, UNIT)
    return verdict(SPEED, LEARNT, SCALED, findings={SCALED: decision.finding}, speed=speed.value / 4)


def without_base() -> Verdict:
    waived = waived_finding(SCALED, make_case("2x2", SCALED), None)
    assert waived
    return verdict(SPEED, LEARNT, SCALED, findings={SCALED: waived})


def drifted() -> Finding:
    found = find_drift([2000.0 - 6 * run for run in range(20)], 2000.0)
    assert found
    return found.finding(THROUGHPUT, UNIT, "run-2")


def expected(claim: Threshold) -> Threshold:
    return replace(claim, expected_failure=OLD)


def verdicts() -> Mapping[str, Verdict]:
    base = Speed(Shape(1, 2), 1010.0, noise=STILL_AIR)
    remembered = Speed(Shape(1, 2), 1010.0, "history: 10 trials up to run r41", 10, STILL_AIR)
    return {
        "both claims are met": verdict(),
        "every node trains alone": verdict(mode=Mode.SINGLE_SERVER),
        "the throughput is too low": verdict(speed=450.0),
        "a value is above what is allowed": verdict(replace(SPEED, upper=0.05), LEARNT, speed=600.0),
        "the accuracy is too low, and speed does not count": verdict(learnt=0.7),
        "the accuracy is not decided, and speed does not count": verdict(
            SPEED, ABOUT, findings={ABOUT: decide(ABOUT, SHAPE, (0.77, 0.76, 0.765), [0.766], 3).finding}, learnt=0.766
        ),
        "the accuracy is too low, and no speed counts": verdict(SPEED, LEARNT, STEADY, learnt=0.7, log=LOG),
        "a card is slow": verdict(speed=(500.0, 500.0, 500.0, 400.0)),
        "a rank is missing": verdict(speed=(500.0, 500.0, 500.0)),
        "a value is not finite": verdict(learnt=float("nan")),
        "nothing is claimed of the accuracy": verdict(SPEED),
        "the gate is sure, and content": gated(QUIET, 2010.0),
        "the gate is sure of a loss": gated(QUIET, 1880.0),
        "the gate asks for another trial": gated(NOISY, 1920.0),
        "the gate has no trial left": gated(NOISY, 1920.0, 1905.0, 1890.0),
        "the gate knows no noise": gated((), 2010.0),
        "the gate leaves out what was a fault": gated((*QUIET, 1400.0, *QUIET), 2010.0),
        "the gate on a laptop that others work on": floored(100.0, (1773.0, 1476.0, 2875.0), 1500.0),
        "a drift fails the case": verdict(drifts=[drifted()]),
        "scaling is met": scaling(Speed(SHAPE, 2000.0, noise=STILL_AIR), base),
        "scaling is missed": scaling(Speed(SHAPE, 2000.0, noise=STILL_AIR), replace(base, value=1150.0)),
        "scaling is held against history": scaling(Speed(SHAPE, 2000.0, noise=STILL_AIR), remembered),
        "scaling asks for another trial": scaling(Speed(SHAPE, 1900.0, noise=WIND), remembered),
        "the base of scaling is too rough": scaling(Speed(SHAPE, 1900.0, noise=WIND), replace(base, noise=WIND)),
        "scaling knows no noise": scaling(Speed(SHAPE, 2000.0), replace(base, noise=None)),
        "the base of scaling is not known": without_base(),
        "steady state is claimed beside the whole run": verdict(SPEED, LEARNT, STEADY, log=LOG),
        "steady state is missed": verdict(SPEED, LEARNT, replace(STEADY, at_least=2300.0), log=LOG),
        "steady state is not told": verdict(SPEED, LEARNT, STEADY),
        "the accuracy was reached in time": verdict(SPEED, LEARNT, SOON, log=EVALUATED),
        "the accuracy was reached too late": verdict(SPEED, LEARNT, replace(SOON, at_most=1700.0), log=EVALUATED),
        "the accuracy was not seen to be reached": verdict(SPEED, LEARNT, SOON, log=STILL),
        "a throughput is missed as expected": verdict(expected(SPEED), LEARNT, speed=450.0),
        "an accuracy is missed as expected": verdict(SPEED, expected(LEARNT), learnt=0.7),
        "an expected failure has expired": verdict(expected(SPEED), LEARNT, speed=450.0, today="2027-02-01"),
        "an expected failure is met": verdict(expected(SPEED), LEARNT),
        "an expected failure does not excuse what is missing": verdict(expected(SPEED), LEARNT, speed=(500.0,)),
        "the platform is to blame": Verdict(Ruling.BROKEN, "the platform lost the job: job j does not exist"),
    }


def document() -> str:
    return "\n".join(f"## {name}\n{told}\n" for name, told in verdicts().items())


def test_every_verdict_is_worded_as_it_was() -> None:
    assert document() == GOLDEN.read_text(encoding="utf-8")


if __name__ == "__main__":
    print(document(), end="")
