"""A case: a workload (what is trained) at a shape (on how many nodes and cards), with the thresholds it must meet."""

from __future__ import annotations

import enum
import hashlib
import re
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from functools import cached_property
from typing import Any

from pytest_aisbench.errors import UsageFault
from pytest_aisbench.model.metric import Metric
from pytest_aisbench.model.verdict import Threshold

WORKLOAD_FILE = "workload.toml"
_KEYS_OF_FILE = re.compile(
    rf"(?P<keys>\w+(?:(?:, | and | or )\w+)*)(?P<rest>(?: =)?(?: '[^']*')? in {re.escape(WORKLOAD_FILE)})"
)
_SECTION = re.compile(r"(^|[:;] )\[\w+\] ")  # a message about a key of a section begins so
NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9_.-]{0,39}\Z")
_SHAPE = re.compile(r"([1-9][0-9]{0,4})x([1-9][0-9]{0,4})\Z")
_NO_FILE_NAME = re.compile(r"[^A-Za-z0-9_.-]+")
_LONGEST_VALUE = 40  # characters of an argument in the id of its case
_DIGITS = 6


@dataclass(frozen=True, order=True)
class Shape:
    """Nodes × cards per node, written `2x8`."""

    nodes: int
    devices: int

    @classmethod
    def parse(cls, text: str) -> Shape:
        match = _SHAPE.match(text)
        if not match:
            raise UsageFault(f"{text!r} is not a shape", advice="write nodes x cards per node, such as 2x8")
        return cls(int(match[1]), int(match[2]))

    @property
    def world(self) -> int:
        """How many ranks train together."""
        return self.nodes * self.devices

    def __str__(self) -> str:
        return f"{self.nodes}x{self.devices}"


class Mode(enum.Enum):
    """Whether all nodes train together, or each alone."""

    CLUSTER = "cluster"
    SINGLE_SERVER = "single-server"  # each node alone, with its own cards


@dataclass(frozen=True)
class Update:
    """Software that the nodes install before they train, and variables that they export."""

    files: tuple[str, ...] = ()  # .whl and .run, relative to the workload's folder, installed in this order
    exports: Mapping[str, str] = field(default_factory=dict)
    installed: bool = True  # False: the workload's own script installs them; they are only uploaded

    @property
    def is_written(self) -> bool:
        """True if a script must be written for the nodes."""
        return bool((self.installed and self.files) or self.exports)


@dataclass(frozen=True)
class Workload:
    """What is trained, as one platform gets it: without the sections of other platforms."""

    name: str
    folder: str  # that relative paths start from
    code: tuple[str, ...]
    entry: str
    framework: str
    devices: int
    metrics: Mapping[str, Metric]
    parameters: Mapping[str, str] = field(default_factory=dict)
    environment: Mapping[str, str] = field(default_factory=dict)
    data: str | None = None
    data_contains: tuple[str, ...] = ()  # files, and folders with a `/` at the end, that the data must contain
    expected_s: float = 0.0
    options: Mapping[str, Any] = field(default_factory=dict)  # the platform's own keys: flavor, framework_version
    folder_name: str = ""  # of the code on the nodes, if not the workload's name
    update: Update | None = None
    urls_by: str = "parameter"  # how the entry is given `train_url` and `data_url`: `--train_url=…`, or as variables
    # The framework that its file names at the top, if the platform's section trains another entry in plain Python; and
    # whether `--aisbench-frameworks` can train with that framework. Neither changes what the job does.
    miniature_of: str = field(default="", compare=False, metadata={"stored": False})
    has_real_section: bool = field(default=False, compare=False, metadata={"stored": False})
    # If other files than workload.toml describe it: their name, by `workload.toml`, and their names of our keys.
    names: Mapping[str, str] = field(default_factory=dict, compare=False, metadata={"stored": False})

    @property
    def code_name(self) -> str:
        return self.folder_name or self.name

    def in_its_words(self, text: str) -> str:
        """A message that names workload.toml and its keys, with the file and the keys that describe this workload."""
        if not self.names or WORKLOAD_FILE not in text:
            return text

        def renamed(match: re.Match[str]) -> str:
            return re.sub(r"\w+", lambda key: self.names.get(key[0], key[0]), match["keys"]) + match["rest"]

        return _KEYS_OF_FILE.sub(renamed, _SECTION.sub(r"\1", text)).replace(WORKLOAD_FILE, self.names[WORKLOAD_FILE])


@dataclass(frozen=True)
class Case:
    """Workload × shape × mode with its thresholds: one pytest item."""

    workload: Workload
    shape: Shape
    thresholds: tuple[Threshold, ...]
    mode: Mode = Mode.CLUSTER
    arguments: Mapping[str, str] = field(default_factory=dict)  # parameters of the job that the test's own marks give

    @cached_property  # asked for very often
    def id(self) -> str:
        return f"{self.workload.name}-{self.shape}{'-single' if self.single_server else ''}{self.argument_text}"

    @property
    def argument_text(self) -> str:
        """Such as `[batch_size=16]`: files are named after it too, so a value that cannot be in a name is shortened."""
        pairs = (f"{name}={as_name(value)}" for name, value in self.arguments.items())
        return f"[{','.join(pairs)}]" if self.arguments else ""

    @cached_property
    def slug(self) -> str:
        """The id for paths and texts of platforms, which refuse `[`, `=` and `]`; the id itself without arguments."""
        if not self.arguments:
            return self.id
        return f"{_NO_FILE_NAME.sub('-', self.id).strip('-')}-{_digest(self.id)}"

    def with_arguments(self, arguments: Mapping[str, str], thresholds: tuple[Threshold, ...]) -> Case:
        """The case whose job gets these parameters too, with its own thresholds."""
        parameters = {**self.workload.parameters, **arguments}
        workload = replace(self.workload, parameters=parameters)
        return replace(self, workload=workload, thresholds=thresholds, arguments=arguments)

    @property
    def single_server(self) -> bool:
        """True if every node trains alone; the case's value is then the mean over its nodes."""
        return self.mode is Mode.SINGLE_SERVER

    @property
    def judged_shape(self) -> Shape:
        """The shape that the case's value refers to: the whole cluster, or one node."""
        return Shape(1, self.shape.devices) if self.single_server else self.shape

    def __repr__(self) -> str:  # pytest prints it beside failures
        return f"<Case {self.id}>"


def as_name(value: str) -> str:
    """The value where it can be part of a file's name; else what is left of it, and a digest."""
    name = _NO_FILE_NAME.sub("-", value)[:_LONGEST_VALUE]
    return value if name == value and value else f"{name}~{_digest(value)}"


def _digest(text: str) -> str:
    return hashlib.sha256(text.encode()).hexdigest()[:_DIGITS]
