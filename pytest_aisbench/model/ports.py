"""The interfaces to everything outside: Platform, Store, Reporter, PowerSource, Clock; and what each may offer more.

Third parties implement them; `pytest_aisbench.testing` has the tests that an implementation must pass.
"""

from __future__ import annotations

import enum
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any, Protocol, runtime_checkable

from pytest_aisbench.errors import AisbenchError, UsageFault

if TYPE_CHECKING:
    from pytest_aisbench.model.case import Workload
    from pytest_aisbench.model.job import Job, JobSpec, LogPart, Request, Sample, StoreUrl
    from pytest_aisbench.model.results import CaseEntry, RunEntry
    from pytest_aisbench.secret import Secret


class Health(enum.Enum):
    OK = "ok"
    WARNING = "warning"
    FAILURE = "failure"


@dataclass(frozen=True)
class Check:
    """One thing that was checked, for the whole run unless `cases` names those that it is about.

    A failure that is not `lasting` may pass by itself in a minute."""

    name: str
    health: Health
    text: str
    fix: str = ""
    lasting: bool = True
    cases: tuple[str, ...] = ()  # by id

    @property
    def failed(self) -> bool:
        return self.health is Health.FAILURE

    @property
    def full_text(self) -> str:
        """The text; that of a failure names the cases."""
        return f"{', '.join(self.cases)}: {self.text}" if self.failed and self.cases else self.text


def merged(checks: Iterable[Check]) -> list[Check]:
    """Each check once, with all the cases that it is about."""
    cases: dict[Check, dict[str, None]] = {}
    for check in checks:
        cases.setdefault(replace(check, cases=()), {}).update(dict.fromkeys(check.cases))
    return [replace(check, cases=tuple(ids)) for check, ids in cases.items()]


def ok(name: str, text: str) -> Check:
    return Check(name, Health.OK, text)


def warning(name: str, text: str, fix: str = "") -> Check:
    return Check(name, Health.WARNING, text, fix)


def failure(name: str, text: str, fix: str = "") -> Check:
    return Check(name, Health.FAILURE, text, fix)


def failure_from(name: str, error: AisbenchError) -> Check:
    """An error as a failed check."""
    text = f"{error.message} ({error.trail})" if error.trail else error.message
    return Check(name, Health.FAILURE, text, error.advice, lasting=isinstance(error, UsageFault))


def checked(name: str, look: Callable[[], str]) -> Check:
    """A passed check with the text that `look` returns, or a failed one with the error that it raises."""
    try:
        return ok(name, look())
    except AisbenchError as error:
        return failure_from(name, error)


class Clock(Protocol):
    """The time; tests replace it."""

    def now(self) -> float:
        """Seconds since the epoch."""

    def sleep(self, seconds: float) -> None: ...


@dataclass(frozen=True)
class Head:
    """An object's size and metadata; `md5` is None if its ETag is no MD5."""

    url: StoreUrl
    size: int
    md5: str | None = None
    metadata: Mapping[str, str] | None = None


@dataclass(frozen=True)
class Upload:
    """One file to upload; with `md5` (hex) the Store can refuse bytes that changed on the way."""

    path: str
    url: StoreUrl
    size: int
    md5: str | None = None


class Store(Protocol):
    """Object storage. Calls raise AisbenchErrors only, and several threads may call at once."""

    def check(self, url: StoreUrl) -> None:
        """Raise, blaming the user, if the bucket does not exist or the keys may not use it."""

    def head(self, url: StoreUrl) -> Head | None:
        """The object's size and metadata; None if there is no such object."""

    def read(self, url: StoreUrl) -> bytes | None:
        """The content of a small object; None if there is no such object."""

    def write(self, url: StoreUrl, data: bytes, metadata: Mapping[str, str] | None = None) -> None: ...

    def upload(self, uploads: Sequence[Upload]) -> None:
        """Upload all files or raise; in parallel, and verify each."""

    def objects(self, url: StoreUrl) -> Iterator[Head]:
        """Every object below a folder, in key order."""

    def download(self, url: StoreUrl, folder: str) -> list[str]:
        """Download everything below `url` into `folder`, never outside it; returns the relative paths."""

    def delete(self, url: StoreUrl) -> None:
        """Delete one object, or everything below a folder; a missing object is no error."""

    def close(self) -> None:
        """May be called twice."""


@runtime_checkable
class BulkStore(Protocol):
    """A Store that moves many listed objects at once with threads of its own. `read_many` and `download_listed` of this
    module use it where a Store is one, and ask one by one elsewhere."""

    def read_many(self, urls: Sequence[StoreUrl]) -> Sequence[bytes | None]:
        """As `Store.read`, for each."""

    def download_listed(self, url: StoreUrl, heads: Iterable[Head], folder: str) -> list[str]:
        """As `Store.download`, without a listing: of the objects in `heads` those below `url`."""


def read_many(store: Store, urls: Sequence[StoreUrl]) -> list[bytes | None]:
    """The contents of small objects; None for each that does not exist."""
    if isinstance(store, BulkStore):
        return list(store.read_many(urls))
    return [store.read(url) for url in urls]


def download_listed(store: Store, url: StoreUrl, heads: Iterable[Head], folder: str) -> list[str]:
    """Download everything below `url` into `folder`, never outside it; returns the relative paths. `heads` are what
    `store.objects` said of `url`, or of a folder above it."""
    if isinstance(store, BulkStore):
        return store.download_listed(url, heads, folder)
    return store.download(url, folder)


class Platform(Protocol):
    """Where jobs run. Built as `Class(settings)`; raises only AisbenchErrors.

    What it says before it is built is its `PlatformKind`. What it may have beside is a Protocol each, further down:
    `HasConsole`, `HasEndpoints`, `HasLabels`, `HasTester`, `HasTesterToken`, `HasVendorSession`, `AddsFiles`,
    `ChecksCode`, `ChecksConnection`, `ProbesNodes`, `RewritesRequests`.
    """

    name: str
    store: Store
    root: StoreUrl  # trials are staged below
    max_jobs: int  # in flight at once, unless the user says otherwise
    poll_s: float  # how often it may be asked about its jobs

    @property
    def options(self) -> Collection[str]:
        """The keys of its own that its section of workload.toml may hold."""

    @property
    def takes_environment(self) -> bool:
        """Whether a request can carry variables; a platform whose requests cannot has `AddsFiles` to bring them."""

    @property
    def platform_id(self) -> str:
        """Tells this platform from every other that may have run a job of the same name; no secret.

        Empty for one that dies with the run: nothing of it can be taken over.
        """

    def share(self) -> Mapping[str, Any]:
        """The settings with which another process of this run reaches the same platform; usually none differ."""

    def check(self) -> None:
        """Raise, blaming the user, when credentials, project or bucket cannot work; costs a request or two."""

    def vet(self, spec: JobSpec) -> Iterable[Check]:
        """What its own lists say of what a job asks for: flavor, engine, pool, nodes, quota. They are asked for once,
        however many jobs are vetted; none where there are no lists."""

    def render(self, spec: JobSpec) -> Request:
        """The request that would be sent. Pure: the same spec renders the same request, offline."""

    def submit(self, request: Request) -> str:
        """Send it once and return the job's id. Unreachable means that it may have arrived: ask `find`."""

    def find(self, request: Request) -> str | None:
        """The id of the job that this request made, if it arrived: by an exact match, never by a part of a name."""

    def named(self, name: str) -> str | None:
        """The id of the newest job with exactly this name, also one that is not ours."""

    def inspect(self, job_ids: Iterable[str]) -> Mapping[str, Job]:
        """What the platform says of each; a job it does not know is LOST."""

    def logs(self, job_id: str, node: int = 0, since: int = 0) -> LogPart:
        """A node's log from an offset; empty while there is none."""

    def usage(self, job_id: str, node: int = 0) -> Mapping[str, Sequence[float]]:
        """How busy a node was, in percent, oldest first, as far as the platform samples it: `cpu`, `memory`, `npu`,
        `npu memory`, `gpu`, `gpu memory`."""

    def events(self, job_id: str) -> Sequence[str]:
        """What the platform says happened to the job, oldest first, a line each; empty where it keeps no record."""

    def cancel(self, job_id: str) -> None:
        """Ask for the end and return at once; an ended or unknown job is a no-op."""

    def close(self) -> None:
        """May be called twice."""


@runtime_checkable
class HasFormerIds(Protocol):
    """A platform that ledgers of an older version know by another platform_id."""

    @property
    def former_platform_ids(self) -> Sequence[str]: ...


@runtime_checkable
class HasLabels(Protocol):
    """A platform with options that change nothing of what a job does, such as its description: trials with other labels
    have the same history."""

    @property
    def label_options(self) -> Collection[str]:
        """Those of `options` that are labels."""


@runtime_checkable
class HasConsole(Protocol):
    """A platform with a web page for each job."""

    def console(self, job_id: str) -> str:
        """The address of the job's page; empty if it is not known for certain."""


@runtime_checkable
class HasEndpoints(Protocol):
    """A platform that opens ways into a running job for people: a shell, a notebook, charts."""

    def job_endpoints(self, request: Request, job_id: str) -> Mapping[str, str]:
        """By name the address of each that the request asks for, empty while the platform has opened none; it is not
        asked where the request asks for none."""


@runtime_checkable
class HasTester(Protocol):
    """A platform with a Tester of its own, which gets the results unless the settings name another."""

    tester: str  # its address; empty where there is none
    private: bool  # the platform, and its Tester, end with the run


@runtime_checkable
class HasTesterToken(Protocol):
    """A platform whose own Tester takes uploads with a token only."""

    tester: str
    tester_token: Secret


@runtime_checkable
class HasVendorSession(Protocol):
    """A platform with a signed session of the vendor's kind. The fixture `modelarts_session` gives it to tests."""

    session: Any


@runtime_checkable
class RewritesRequests(Protocol):
    """A platform that sends something else than `render` returned, which is made offline: such as its own numbers in
    place of names. `requests/` shows what was sent."""

    def to_send(self, request: Request) -> Request:
        """As `submit` would send it now; asks the platform."""

    def sent(self, request: Request) -> Request:
        """As this process sent it; unchanged if it did not. `submit` and `find` take the request that `render` made."""


@runtime_checkable
class AddsFiles(Protocol):
    """A platform whose nodes need files beside a workload's own code, such as a script that they run first."""

    def additions(self, workload: Workload, variables: Mapping[str, str]) -> Mapping[str, str | bytes]:
        """By their paths in the code: the path of a file of this machine, or the content of one that is written.

        `variables` are to reach the training, and a request cannot carry them. It must raise where it cannot either.
        """


@runtime_checkable
class ChecksCode(Protocol):
    """A platform with rules for the code of a workload."""

    def check_code(self, workload: Workload, scripts: Iterable[tuple[str, str]]) -> None:
        """Raise UsageFault for a script that would fail on the nodes; `scripts` are paths and texts."""


@runtime_checkable
class ChecksConnection(Protocol):
    """A platform that can say step by step what is wrong with the way to it. `aisbench doctor` asks."""

    def connection_checks(self) -> Iterable[Check]:
        """In place of `check`; ends where nothing further can be known."""


@runtime_checkable
class ProbesNodes(Protocol):
    """A platform that can see by a job of seconds what its nodes can do. `aisbench doctor --probe` asks."""

    def probe(self) -> Iterable[Check]: ...


class Reporter(Protocol):
    """Turns ledger entries into something. Built as `Class(config, folder)` and registered as a pytest plugin,
    so that it may implement pytest's hooks too. Its class may say more by `Ordered`, `OnWorkers` and `ActsOnce`."""

    def case(self, entry: CaseEntry) -> None:
        """A case ended."""

    def run(self, entry: RunEntry) -> None:
        """The run ended."""


@runtime_checkable
class Ordered(Protocol):
    """A reporter class with a place in the order. The built-in ones have 10, 20, …; a class without `order` has 0.

    The lowest number is built and called first. pytest calls hooks in the opposite order: the highest first.
    """

    order: int


@runtime_checkable
class OnWorkers(Protocol):
    """A reporter class that is also built in the workers of xdist if `on_workers` is true."""

    on_workers: bool


@runtime_checkable
class ActsOnce(Protocol):
    """A reporter class that acts on more than its folder if `once` is true: it is left out when the reports of an old
    run are written again."""

    once: bool


class PowerSource(Protocol):
    """Where samples of power come from: a file, a BMC, npu-smi. Built as `Class(settings)` when the run opens, so that
    one that must look while jobs run can begin to."""

    def samples(self, job_id: str, start: float, end: float) -> Iterable[Sample]:
        """Of the job's nodes and of no others, from a little before its start to a little after its end, both in
        seconds since the epoch; none where it knows of none. Whatever it raises is a reason, and breaks nothing."""

    def close(self) -> None:
        """May be called twice."""
