"""What Slurm needs, before any of its commands runs: `[slurm]` of aisbench.toml, and `[slurm]` of workload.toml.

The table of aisbench.toml describes the site: `SlurmSite`. What jobs ask for is `Options`; both files may give these
keys, and workload.toml wins.
"""

from __future__ import annotations

import dataclasses
import re
import shlex
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any

from pytest_aisbench.config.options import parse_duration
from pytest_aisbench.config.settings import NODE_PATH, RESULTS, WORKDIRS, PlatformKind
from pytest_aisbench.errors import UsageFault

if TYPE_CHECKING:
    from pytest_aisbench.config.access import Access
    from pytest_aisbench.config.settings import Settings
    from pytest_aisbench.config.toml_document import Document
    from pytest_aisbench.platforms.slurm.platform import Slurm

NAME = "slurm"
LAUNCHERS = ("ranks", "torchrun", "horovod", "mpi")
CONTAINERS = ("pyxis", "apptainer")
_YES = {"yes": True, "no": False, "true": True, "false": False}
_WORD = re.compile(r"[A-Za-z0-9_.,:&|*()\[\]=+/-]+")
_POLL_S = 5.0
_LEAST_POLL_S = 0.1
# Options that the platform gives by itself: a second one of the user's would break a promise.
_OURS = frozenset({
    *("--job-name", "-J", "--comment", "--parsable", "--requeue", "--no-requeue", "--nodes", "-N", "--ntasks", "-n"),
    *("--ntasks-per-node", "--output", "-o", "--error", "-e", "--array", "-a", "--chdir", "-D", "--export", "--wrap"),
    *("--time", "-t", "--wait", "-W", "--test-only", "--dependency", "-d"),
})  # fmt: skip


@dataclass(frozen=True)
class Options:
    """What one job asks for."""

    partition: str = ""
    account: str = ""
    qos: str = ""
    reservation: str = ""
    constraint: str = ""
    gres: str = ""  # the name of the cards, maybe with their type: `npu`, `gpu:a100`; the shape has their number
    cpus: str = ""  # per rank; empty: the ranks of a node share all of its
    memory: str = ""  # per node
    time: str = ""  # the longest, such as 3h; --aisbench-run-timeout may be shorter
    exclusive: bool = True  # whole nodes
    nodelist: str = ""  # these must be among its nodes
    exclude: str = ""
    sbatch: str = ""  # further options of sbatch
    srun: str = ""  # further options of srun
    prologue: str = ""  # lines of bash that run first, such as module loads
    python: str = ""  # on the nodes; empty: python, or else python3, in the PATH
    container: str = ""  # how an image runs; empty: pyxis
    image: str = ""
    mounts: str = ""  # A:B,… beside the shared folder
    launcher: str = LAUNCHERS[0]
    mpi: str = "pmix"  # of the launcher mpi: what srun --mpi gets
    data_dir: str = ""  # the data are on the nodes already
    workdir: str = WORKDIRS[0]  # where ranks run: on the node's own disk, or in the shared folder
    hccn_conf: str = "/etc/hccn.conf"  # of an Ascend node; %n is the node's name

    @property
    def is_npu(self) -> bool:
        return self.gres.partition(":")[0] == "npu"

    @property
    def longest_s(self) -> float | None:
        return parse_duration(self.time) if self.time else None


OPTION_KEYS = frozenset(row.name for row in dataclasses.fields(Options))
_SITE_KEYS = ("share", "share_on_nodes", "results", "poll", "miniature")


@dataclass(frozen=True)
class SlurmSite:
    """The table of aisbench.toml."""

    share: str = ""  # the shared folder, as this machine sees it
    share_on_nodes: str = ""  # as the nodes see it; empty: under the same path
    results: str = RESULTS[0]  # where trials are staged: the shared folder, or the bucket of [access]
    poll_s: float = _POLL_S
    miniature: bool = False  # a cluster without cards: [local] says what is trained
    defaults: Mapping[str, str] = field(default_factory=dict)  # of Options

    @property
    def by_obs(self) -> bool:
        return self.results == "obs"

    @property
    def seen_by_nodes(self) -> str:
        return (self.share_on_nodes or self.share).rstrip("/")


class SlurmKind(PlatformKind):
    name = NAME
    options = OPTION_KEYS
    training_options = frozenset({"gres", "image", "launcher", "prologue", "python", "data_dir", "mpi"})
    table_keys = (*_SITE_KEYS, *sorted(OPTION_KEYS - {"data_dir"}))

    def connect(self, settings: Settings) -> Slurm:
        from pytest_aisbench.platforms.slurm.platform import Slurm

        return Slurm(settings)

    def read_table(
        self, document: Document, environment: Mapping[str, str], *, used: bool
    ) -> tuple[SlurmSite, frozenset[str]]:
        texts, taken = document.texts(NAME, self.table_keys, environment, used=used)

        def wrong(key: str, what: str, advice: str) -> UsageFault:
            return document.fault(f"slurm.{key} {texts[key]!r} {what}", NAME, key, advice=advice)

        poll_s = _POLL_S
        if "poll" in texts:
            try:
                poll_s = max(_LEAST_POLL_S, parse_duration(texts["poll"]))
            except ValueError:
                raise wrong("poll", "is not a length of time", "write such as 5s") from None
        if (results := texts.get("results", RESULTS[0])) not in RESULTS:
            raise wrong("results", "is not known", f"write one of {', '.join(RESULTS)}, or leave it out")
        if (miniature := texts.get("miniature", "no")) not in _YES:
            raise wrong("miniature", "is neither yes nor no", "write yes for a cluster without cards")
        share = str(document.path.parent / Path(texts["share"]).expanduser()) if texts.get("share") else ""
        for key, path in (("share", share), ("share_on_nodes", texts.get("share_on_nodes", ""))):
            if used and path and not NODE_PATH.fullmatch(path):
                raise wrong(key, "is not an absolute path without blanks", "write such as /data/aisbench")
        if used and share and not Path(share).is_dir():
            raise document.fault(f"slurm.share: there is no folder {share}", NAME, "share")
        defaults = {key: text for key, text in texts.items() if key not in _SITE_KEYS}
        if used:
            try:
                read_options(defaults, {})
            except UsageFault as fault:
                key = fault.message.split(" ", 2)[1]
                raise document.fault(fault.message, NAME, key, advice=fault.advice) from None
        site = SlurmSite(
            share=share,
            share_on_nodes=texts.get("share_on_nodes", ""),
            results=results,
            poll_s=poll_s,
            miniature=_YES[miniature],
            defaults=defaults,
        )
        return site, taken

    def uses_access(self, table: SlurmSite | None, *, on_local_cloud: bool) -> bool:
        return (table or SlurmSite()).by_obs

    def is_miniature(self, settings: Settings) -> bool:
        return slurm_site(settings).miniature

    def check(self, settings: Settings) -> None:
        if settings.cloud is not None:
            advice = "leave --aisbench-cloud out; scripts/slurm starts a cluster of its own to try it"
            raise UsageFault("a local cloud has no Slurm", advice=advice)
        require_slurm(slurm_site(settings), settings.access, settings.sources.get("platform", "platform"))


def slurm_site(settings: Settings) -> SlurmSite:
    site: SlurmSite = settings.tables.get(NAME, SlurmSite())
    return site


def require_slurm(site: SlurmSite, access: Access, source: str) -> None:
    """Raise unless there is a shared folder, and a bucket if results go to one. `source` chose the platform."""
    if not site.share:
        advice = "write share = '/a/folder/that/all/nodes/mount' to [slurm] in aisbench.toml"
        raise UsageFault(f"{source}: platform slurm needs a shared folder", advice=advice)
    if site.by_obs and not (access.access_key and access.bucket):
        advice = "write access_key, secret_access_key and bucket to [access], or leave results out of [slurm]"
        raise UsageFault(f"{source}: platform slurm has results = 'obs' and no bucket", advice=advice)


def read_options(defaults: Mapping[str, str], section: Mapping[str, Any]) -> Options:
    """What a job asks for: `section` is of workload.toml, `defaults` of aisbench.toml."""
    values: dict[str, Any] = {**defaults, **{key: _text(key, value) for key, value in section.items()}}
    if "exclusive" in values:
        if values["exclusive"] not in _YES:
            raise _fault("exclusive", "is neither yes nor no", "write no for nodes that others use too")
        values["exclusive"] = _YES[values["exclusive"]]
    for key, choices in (("launcher", LAUNCHERS), ("container", CONTAINERS), ("workdir", WORKDIRS)):
        if values.get(key) and values[key] not in choices:
            raise _fault(key, f"{values[key]!r} is not known", f"write one of {', '.join(choices)}")
    for key in ("partition", "account", "qos", "reservation", "constraint", "gres", "memory", "mpi"):
        if values.get(key) and not _WORD.fullmatch(values[key]):
            raise _fault(key, f"{values[key]!r} is not a name that Slurm takes", "write it without blanks")
    for key in ("nodelist", "exclude"):
        if values.get(key) and not re.fullmatch(r"[A-Za-z0-9_.,\[\]-]+", values[key]):
            raise _fault(key, f"{values[key]!r} is not a list of nodes", "write such as node[1-4,7]")
    if values.get("cpus") and not re.fullmatch(r"[1-9][0-9]{0,3}", values["cpus"]):
        raise _fault("cpus", f"{values['cpus']!r} is not a number of CPUs", "write how many each rank gets")
    for key in ("sbatch", "srun"):
        _check_extra(key, values.get(key, ""))
    if values.get("time"):
        try:
            parse_duration(values["time"])
        except ValueError as error:
            raise _fault("time", str(error), "write such as 3h") from None
    for key in ("data_dir", "python"):
        if values.get(key) and key == "data_dir" and not values[key].startswith("/"):
            raise _fault(key, f"{values[key]!r} is not an absolute path", "write it as the nodes see it")
    return Options(**values)


def _check_extra(key: str, text: str) -> None:
    try:
        words = shlex.split(text)
    except ValueError as error:
        raise _fault(key, f"cannot be split into options: {error}", "close its quotes") from None
    for word in words:
        if word.partition("=")[0] in _OURS:
            raise _fault(key, f"gives {word.partition('=')[0]}, which the platform gives", "leave it out")


def _text(key: str, value: Any) -> str:
    if isinstance(value, bool):
        return "yes" if value else "no"
    if isinstance(value, int):
        return str(value)
    if not isinstance(value, str):
        raise _fault(key, "is not text", "put it in quotes")
    return value


def _fault(key: str, what: str, advice: str) -> UsageFault:
    return UsageFault(f"[slurm] {key} {what}", advice=advice)
