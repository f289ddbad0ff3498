"""What is told of a case, as data: English in every file, and in another language by whoever has the words for it.

A sentence is a string, so that nobody who reads it must know more. It remembers the clauses that it was made of, each a
key of `ENGLISH` with its facts; the facts are figures and names as text, or sentences themselves.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import TYPE_CHECKING, Any, NamedTuple

if TYPE_CHECKING:
    from typing_extensions import Self

_PLAIN = "plain"  # what somebody else said, in whatever language

ENGLISH: dict[str, str] = {
    _PLAIN: "{text}",
    "and": "; {what}",
    # A claim, and what became of it
    "about": "{metric}: ",
    "value": "{metric} {value}",
    "mean": "{metric} {value}, mean of {count} trials",
    "wanted": ", wanted {wanted}",
    "below": " ({share} below)",
    "above": " ({share} above)",
    "worst": "{metric} {value}, mean of {count} trials, at worst {worst} in trial {trial}, wanted {wanted}",
    "in trial": "{metric} {value} in trial {trial}, wanted {wanted}",
    "unmeasured": "{metric}: not measured, wanted {wanted}",
    "unmeasured somewhere": "{metric}: not measured in every trial, wanted {wanted}",
    "unmeasured in trial": "{metric}: not measured in trial {trial}, wanted {wanted}",
    "bounds nothing": "{metric}: its claim bounds nothing",
    "unclaimed": "{metric}: nothing is claimed of it",
    "not learnt": "does not count: accuracy does not hold",
    "not yet learnt": "does not count: accuracy is not decided",
    "finite": "a finite number",
    "claim": "a claim",
    "steady": "no drift",
    # Noise
    "inside": ": {low} .. {high} is inside",
    "outside": ": {low} .. {high} is outside",
    "across": ": {low} .. {high} reaches across the limit: not decided after {count} of at most {most} trials",
    "across at once": ": {low} .. {high} reaches across the limit: not decided after {count} of at most {most} trial",
    "how": " ({how})",
    "noise": "± {half} = t {t} × s {deviation}",
    "noise of mean": "± {half} = t {t} × s {deviation} / √{count}",
    "never below 0": "lower end mean² / (4 × that), as it is never below 0",
    "critical": "t at {level} with {degrees} degrees",
    "in history": "{count} in history",
    "left out": ", without {values}, too far off to be noise",
    "unqualified": "unqualified: {why}",
    "no history": "no comparable history",
    "too few": "{past} in history and {now} now do not tell the noise",
    "no spread": "{past} in history and {now} now have no spread to reckon with",
    "no other": "no other trial: {why}",
    "lost trials": "{count} of {most} were lost",
    # Expected failures
    "met after all": "expected to fail until {until} ({reason}) and met: take expected_failure away",
    "expired": "the expected failure expired on {until}: {reason}",
    "as expected": "missed as expected until {until}: {reason}",
    # Scaling
    "scaled": "{metric} {share}, {value} per card at {shape} and {base_value} at {base} ({source})",
    "noise of ratio": "± {half} = {share} × t {t} × √({terms})",
    "of both": "s / mean and trials of {shape} and {base}",
    "unknown noise": "the noise of {shape} is not known",
    "unknown noises": "the noise of {shape} and {base} is not known",
    "base alone": "what is known of {base} leaves ± {half} by itself",
    "is base": "{metric}: waived, {shape} is the base itself",
    "no base": "{metric}: waived, the base {base} was measured neither in this run nor in its history",
    "unscaled": "{metric}: waived, a comparison with the base {base} is not judged by this version",
    "all alone": "{metric}: waived, every node trains alone, so nothing is scaled from {base} to {shape}",
    "this run": "this run",
    "unlike": ", unlike: {changes}",
    "history": "history: run {run}",
    "history of": "history: {count} trials until run {run}",
    # Slow cards and nodes
    "slow": "slow: {who}",
    "slow node": "node {node} at {share} of the others, which costs the whole {cost}",
    "slow card": "node {node} card {card} (rank {rank}) at {share} of the others, which costs the whole {cost}",
    "more": "and {count} more",
    # What is worth a look
    "drifted": "{metric} has drifted to {level}, {change} from the anchor {anchor}, since value {since} of {count}"
    " (CUSUM {score} > {alarm}, s {deviation})",
    "drifted in": "{drift}: from run {run} on",
    "changed": "{metric} changed by {change} at value {at}, from {before} to {after}",
    "changed in": "{change}: run {run}",
    "identical": "{metric} is {value} in all of {count} trials, identical to all digits: does each of them train, and"
    " with a seed of its own?",
    "identical past": "{metric} is {value} in the last {count} comparable trials, identical to all digits: does each of"
    " them train, and with a seed of its own?",
    "too good": "{metric} {value} is {share} above the mean {mean} of {count} trials before it: is the measurement"
    " right, and the data the same?",
    "lost within margin": "{metric} {value} is {share} below the mean {mean} of {count} trials before it: more than"
    " noise, though the claim lets it pass",
    "unpowered": "its power is not known: {why}",
    # What the log tells
    "of steady job": "in steady state by the log of the whole job, without a warm-up of {points}",
    "of steady rank": "in steady state by the log of one rank × {ranks}, without a warm-up of {points}",
    "of the whole": "over the whole run",
    "until accurate": "until the first evaluation of {target} or more",
    "one point": "1 point",
    "points": "{count} points",
    "unlogged": "not measured: {why}",
    "alone in speed": "every node trains alone, and only the first one's log is read for its speed",
    "alone in learning": "every node trains alone, and only the first one's log is read for its evaluations",
    "no speed": "the log tells no speed",
    "other speed": "the log tells {unit}, and not how many samples a step has",
    "few speeds": "the log tells too few speeds to tell the steady state from the warm-up",
    "infinite speed": "the log tells no finite speed",
    "no target": "the claim on accuracy has no lower bound to reach",
    "no evaluation": "the log tells of no evaluation",
    "no ratios": "the log's evaluations are not ratios between 0 and 1, as the accuracy is",
    "not reached": "no evaluation of the log reached {target}, the best is {best}",
    "no time": "the log does not tell when its evaluations were",
    "pace": "{whole} over the whole run",
    "pace steady": ", {value} in steady state",
    "pace warm-up": ", {value} in the warm-up of {points}",
    "pace of job": " (the whole job, by its log)",
    "pace of rank": " (one rank, by its log)",
    # Results that are not there, or cannot be
    "of rank": "{file} (rank {rank}: node {node}, card {card})",
    "missing": "{what} is missing",
    "empty": "{what} is empty",
    "too long": "{what} has {size} bytes and is no bare number",
    "not finite": "{what} says {text}, which is not finite",
    "no number": "{what} says {text}, which is not a number",
    "not above 0": "{what} says {text}, and a throughput is above 0",
    "no ratio": "{what} says {text}, and an accuracy without a unit is between 0 and 1",
    "other ranks": "{what} says {text} ranks trained, {shape} has {ranks}",
    "strange rank": "{what} is of a rank that {shape} does not have",
    "strange node": "{what} is of a node that {shape} does not have",
    "other unit": "{what} has the unit {text}, not {unit}",
    "twice": "{what} is there {count} times",
    "of others": "{what} is not of {case}",
    "unwanted": "nobody should have written this metric",
    "value of job": "the value of the job",
    "value of node": "the value of node {node}",
    "value of rank": "the value of rank {rank}",
    "value of rank there": "the value of node {node}, rank {rank}",
    # Jobs
    "lost": "the platform lost the job: {why}",
    "never seen": "it was never seen",
    "stopped": "somebody else stopped the job: {why}",
    "failed": "the job failed",
    "failed with": "the job failed with exit code {code}",
    "because": ": {why}",
    "in log": "{line} ({log})",
    "again": "tried again: {why}",
    "again after": "tried again: {why} (trial {trial}, job {job})",
    "not again": "not tried again: {why}",
    "not judged": "not judged",
    "not compared": "not compared to run {run}: {changes}",
    "no answer": "the platform did not answer for a while: {why}",
    "no receipt": "no answer when the job was submitted: {why}",
    "no logs": "its logs did not come home: {why}",
    "strange phase": "the platform says {phase}, a word we do not know; it counts as running",
    "taken over": "taken over from run {run}",
    "given away": "another run took the job over: this one had not been heard of for a while",
    "left running": "left running; the next run takes it over",
    "stopped by run": "stopped by run {run}",
    "another day": "the job ended on another day: its results prove nothing today",
    "stopped by hand": "stopped by `aisbench stop`",
    "cloud ended": "the private local cloud ended with its run {run}",
    "silent": "no sign of life since {when}",
    "silent at": "no sign of life since {when}, at {where}",
    "went on": "went on at {when}",
    "not stopped": "job {job} could not be stopped: {why}",
    "unknown stop": "nobody knows whether job {job} stopped: {why}",
    "untold stop": "the platform did not say whether the job stopped: {why}",
    "still there": "job {job} was asked to stop and is still {phase}",
    "may run": "job {job} was asked to stop and may still run ({phase})",
    "unknown job": "nobody knows whether job {job} was created: {why}",
    "test failed": "its test failed in {when}: {why}",
}  # fmt: skip


class Clause(NamedTuple):
    key: str
    facts: Mapping[str, str]


class Sentence(str):
    """Made by `tell`; longer by `+`, whatever is added."""

    __slots__ = ("clauses",)
    clauses: tuple[Clause, ...]

    def __new__(cls, *clauses: Clause) -> Self:
        made = super().__new__(cls, "".join(ENGLISH[key].format(**facts) for key, facts in clauses))
        made.clauses = clauses
        return made

    def __add__(self, more: str) -> Sentence:
        return Sentence(*self.clauses, *clauses(more))

    def __getnewargs__(self) -> tuple[Clause, ...]:  # type: ignore[override]
        return self.clauses


def tell(key: str, /, **facts: str) -> Sentence:
    return Sentence(Clause(key, facts))


def clauses(text: str) -> tuple[Clause, ...]:
    if isinstance(text, Sentence):
        return text.clauses
    return (Clause(_PLAIN, {"text": text}),) if text else ()


def joined(texts: Iterable[str]) -> Sentence:
    """One after the other, those that are empty left out."""
    made = Sentence()
    for text in filter(None, texts):
        made += tell("and", what=text) if made else text
    return made


def written(sentence: Sentence) -> dict[str, Any]:
    """As JSON data."""
    said = [
        [key, {name: written(fact) if isinstance(fact, Sentence) else fact for name, fact in facts.items()}]
        for key, facts in sentence.clauses
    ]
    return {"text": str(sentence), "said": said}


def read(data: Mapping[str, Any]) -> str:
    """What was written; the bare text where a newer version wrote what this one has no words for."""
    try:
        made = Sentence(
            *(
                Clause(key, {name: read(fact) if isinstance(fact, Mapping) else fact for name, fact in facts.items()})
                for key, facts in data["said"]
            )
        )
    except (KeyError, IndexError):
        return str(data["text"])
    return made if made == data["text"] else str(data["text"])
