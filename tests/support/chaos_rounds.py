"""The rounds of chaos: who dies in which window of a run's life, and what the network does meanwhile."""

from __future__ import annotations

import random
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import chaos_proxy

Rule = Mapping[str, Any]  # a fault of the local cloud; `on` names requests as a Dialect has them


@dataclass(frozen=True)
class Dialect:
    """How to run on a platform, and what it calls the requests that windows and weathers are about."""

    options: tuple[str, ...]  # of pytest
    service: str
    requests: Mapping[str, tuple[str, ...]]  # operations of the service by what they do: create, find, look, stop
    by_obs: bool = True  # otherwise by a shared folder, and no request is sent for files

    def knows(self, window: Window) -> bool:
        return all(self.by_obs or rule.get("on") not in _OF_OBS for rule in window.rules)

    def faults(self, rule: Rule) -> Iterator[dict[str, Any]]:
        """The rule in the words of this platform's service; none if it sends no such requests."""
        words = {key: value for key, value in rule.items() if key != "on"}
        on = rule["on"]
        if on in _OF_OBS:
            if self.by_obs:
                yield {"service": "obs", **_OF_OBS[on], **words}
        elif on == "platform":
            yield {"service": self.service, **words}
        else:
            yield from ({"service": self.service, "operation": name, **words} for name in self.requests[on])


_OF_OBS: Mapping[str, Mapping[str, str]] = {
    "obs": {},
    "put": {"operation": "put-object"},
    "get": {"operation": "get-object"},
}
_MODELARTS = {"create": ("create",), "find": ("search",), "look": ("show", "search"), "stop": ("stop",)}
_APULIS = {
    "create": ("PostJob",),
    "find": ("GetJobDetailV2", "ListJobsV3"),
    "look": ("GetJobStatus", "GetJobDetailV2"),
    "stop": ("KillJob",),
}
DIALECTS = {
    "V2": Dialect((), "modelarts", _MODELARTS),
    "V1": Dialect(("--aisbench-modelarts-version", "V1"), "modelarts", _MODELARTS),
    "apulis": Dialect(("--aisbench-platform", "apulis"), "apulis", _APULIS, by_obs=False),
}


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
    rules: tuple[Rule, ...] = ()
    interrupted: bool = False  # somebody lost patience with a run that was ending after SIGTERM


def _marks(sight: Sight) -> int:
    return sight.marks


WINDOWS = {
    "whenever": Window(lambda _: 0),
    "collecting": Window(_marks),
    "staging": Window(lambda sight: sight.puts, ({"on": "put", "delay": 0.3},)),
    # The intent is in the ledger, and its request will not arrive.
    "intent": Window(lambda sight: sight.creates, ({"on": "create", "delay": 0.5, "drop": "request"},)),
    # The request is under way, and will be carried out when whoever sent it is dead.
    "request": Window(lambda sight: sight.creates, ({"on": "create", "delay": 1.0},)),
    # The same, but not before the next run has looked for the job and found none.
    "late request": Window(lambda sight: sight.creates, ({"on": "create", "delay": 4.0},)),
    # The job is there, and whoever asked for it does not come to know.
    "answer": Window(lambda sight: sight.jobs, ({"on": "create", "drop": "answer"}, {"on": "find", "drop": "request"})),
    "watching": Window(lambda sight: sight.looks),
    "harvesting": Window(lambda sight: sight.gets, ({"on": "get", "delay": 0.2},)),
    "judging": Window(_marks),
    "reporting": Window(_marks),
    "ending": Window(_marks),
    "stopping": Window(lambda sight: sight.stops, ({"on": "stop", "delay": 0.3, "drop": "request"},), True),
}
FOR_SURVIVORS = ("whenever", "collecting", "watching", "judging")  # of runs that go on after the death


@dataclass(frozen=True)
class Weather:
    """What goes wrong all the while: in the local cloud by its rules, and on the way to it by a proxy."""

    rules: tuple[Rule, ...] = ()
    chances: Mapping[str, float] = field(default_factory=dict)  # by kind of `chaos_proxy`


WEATHERS = {
    "calm": Weather(),
    "lost answers": Weather(({"on": "create", "drop": "answer", "probability": 0.5},)),
    "unavailable": Weather(
        ({"on": "platform", "status": 503, "probability": 0.1}, {"on": "obs", "status": 503, "probability": 0.1})
    ),
    "cut short": Weather(
        ({"on": "platform", "truncate": 15, "probability": 0.1}, {"on": "get", "truncate": 1, "probability": 0.1})
    ),
    "slow": Weather(
        ({"on": "platform", "delay": 0.5, "probability": 0.3}, {"on": "obs", "delay": 0.3, "probability": 0.1})
    ),
    **{kind: Weather(chances={kind: 0.1}) for kind in chaos_proxy.KINDS},
    "storm": Weather(chances=dict.fromkeys(chaos_proxy.KINDS, 0.03)),
}
BLACKOUT = ({"drop": "request"},)
VICTIMS = (*("pytest", "controller") * 3, "worker", "cloud", "cloud", "tester", "network", "nobody")
SURVIVABLE = {"worker", "cloud", "tester", "network"}  # the run goes on after the death


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

    def rules(self, dialect: Dialect) -> list[dict[str, Any]]:
        rules = [*WINDOWS[self.window].rules, *WEATHERS[self.weather].rules]
        seeded = ({**rule, "seed": self.seed} if "probability" in rule else rule for rule in rules)
        return [fault for rule in seeded for fault in dialect.faults(rule)]


def rounds(seed: int, count: int, dialect: Dialect) -> list[Round]:
    """Every victim and every window in turn, in an order that the seed decides."""
    chance = random.Random(seed)
    windows = tuple(name for name, window in WINDOWS.items() if dialect.knows(window))
    victims, for_all, for_survivors, weathers = (
        _in_turn(chance, words) for words in (VICTIMS, windows, FOR_SURVIVORS, tuple(WEATHERS))
    )
    made = []
    for _ in range(count):
        victim, weather = next(victims), next(weathers)
        if victim == "nobody":
            while weather == "calm":
                weather = next(weathers)
            made.append(Round(victim, weather=weather, seed=chance.randrange(1000)))
            continue
        window = next(for_survivors if victim in SURVIVABLE else for_all)
        if victim == "worker" and window == "whenever":  # xdist does not outlive a worker that dies while it is started
            window = "collecting"
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
