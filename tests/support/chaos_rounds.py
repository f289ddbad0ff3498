"""The rounds of chaos: who dies in which window of a run's life, and what the network does meanwhile."""

from __future__ import annotations

import random
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any

_ON_CREATE = {"service": "modelarts", "operation": "create"}
_ON_OBS = {"service": "obs"}
_ON_MODELARTS = {"service": "modelarts"}


@dataclass(frozen=True)
class Sight:
    """What can be seen of a run from outside, as counts that only grow."""

    creates: int
    jobs: int
    looks: int
    puts: int
    gets: int
    stops: int
    marks: int  # of the plugin inside the run


@dataclass(frozen=True)
class Window:
    """A part of a run's life: how often it has opened, and the faults that hold it open."""

    opened: Callable[[Sight], int]
    rules: tuple[dict[str, Any], ...] = ()
    interrupted: bool = False  # somebody lost patience with a run that was ending after SIGTERM


def _marks(sight: Sight) -> int:
    return sight.marks


WINDOWS = {
    "whenever": Window(lambda _: 0),
    "collecting": Window(_marks),
    "staging": Window(lambda sight: sight.puts, ({**_ON_OBS, "operation": "put-object", "delay": 0.3},)),
    # The intent is in the ledger, and its request will not arrive.
    "intent": Window(lambda sight: sight.creates, ({**_ON_CREATE, "delay": 0.5, "drop": "request"},)),
    # The request is under way, and will be carried out when whoever sent it is dead.
    "request": Window(lambda sight: sight.creates, ({**_ON_CREATE, "delay": 1.0},)),
    # The same, but not before the next run has looked for the job and found none.
    "late request": Window(lambda sight: sight.creates, ({**_ON_CREATE, "delay": 4.0},)),
    # The job is there, and whoever asked for it does not come to know.
    "answer": Window(
        lambda sight: sight.jobs,
        ({**_ON_CREATE, "drop": "answer"}, {**_ON_MODELARTS, "operation": "search", "drop": "request"}),
    ),
    "watching": Window(lambda sight: sight.looks),
    "harvesting": Window(lambda sight: sight.gets, ({**_ON_OBS, "operation": "get-object", "delay": 0.2},)),
    "judging": Window(_marks),
    "reporting": Window(_marks),
    "ending": Window(_marks),
    "stopping": Window(
        lambda sight: sight.stops, ({**_ON_MODELARTS, "operation": "stop", "delay": 0.3, "drop": "request"},), True
    ),
}
FOR_SURVIVORS = ("whenever", "collecting", "watching", "judging")  # of runs that go on after the death
WEATHERS: dict[str, tuple[dict[str, Any], ...]] = {
    "calm": (),
    "lost answers": ({**_ON_CREATE, "drop": "answer", "probability": 0.5},),
    "lost requests": (
        {**_ON_MODELARTS, "drop": "request", "probability": 0.1},
        {**_ON_OBS, "drop": "request", "probability": 0.1},
    ),
    "unavailable": (
        {**_ON_MODELARTS, "status": 503, "probability": 0.1},
        {**_ON_OBS, "status": 503, "probability": 0.1},
    ),
    "cut short": (
        {**_ON_MODELARTS, "truncate": 15, "probability": 0.1},
        {**_ON_OBS, "operation": "get-object", "truncate": 1, "probability": 0.1},
    ),
    "slow": ({**_ON_MODELARTS, "delay": 0.5, "probability": 0.3}, {**_ON_OBS, "delay": 0.3, "probability": 0.1}),
}
BLACKOUT = ({"drop": "request"},)
VICTIMS = (*("pytest", "controller") * 3, "worker", "network", "nobody")


@dataclass(frozen=True)
class Round:
    """Who dies when, and the network meanwhile."""

    victim: str
    window: str = "whenever"
    nth: int = 0  # the window's opening that counts
    pause: float = 0.0  # seconds from there to the kill
    weather: str = "calm"
    seed: int = 0

    def __str__(self) -> str:
        moment = f"{self.window}, opening {self.nth} + {self.pause:.2f} s" if self.victim != "nobody" else "-"
        return f"{self.victim:<10} {moment:<36} {self.weather:<13}"

    @property
    def rules(self) -> list[dict[str, Any]]:
        weather = [{**rule, "seed": self.seed} if "probability" in rule else rule for rule in WEATHERS[self.weather]]
        return [*WINDOWS[self.window].rules, *weather]


def rounds(seed: int, count: int) -> list[Round]:
    """Every victim and every window in turn, in an order that the seed decides."""
    chance = random.Random(seed)
    victims, for_all, for_survivors, weathers = (
        _in_turn(chance, words) for words in (VICTIMS, tuple(WINDOWS), FOR_SURVIVORS, tuple(WEATHERS))
    )
    made = []
    for _ in range(count):
        victim, weather = next(victims), next(weathers)
        if victim == "nobody":
            while weather == "calm":
                weather = next(weathers)
            made.append(Round(victim, weather=weather, seed=chance.randrange(1000)))
            continue
        window = next(for_survivors if victim in {"worker", "network"} else for_all)
        longest = 4.0 if window == "whenever" else 0.3
        nth = {"whenever": 0, "ending": 1, "collecting": 1, "watching": chance.randint(1, 30)}.get(
            window, chance.randint(1, 4)
        )
        made.append(Round(victim, window, nth, chance.uniform(0, longest), weather, chance.randrange(1000)))
    return made


def _in_turn(chance: random.Random, words: Sequence[str]) -> Iterator[str]:
    while True:
        yield from chance.sample(words, len(words))


def campaigns(made: Sequence[Round], chance: random.Random) -> Iterator[list[Round]]:
    rest = list(made)
    while rest:
        size = chance.randint(1, 3)
        yield rest[:size]
        rest = rest[size:]
