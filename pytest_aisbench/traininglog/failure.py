"""Why a training failed, by its log: the first error of the rank that failed first.

The last line of a log is seldom the reason. MindSpore ends with a place in its C++ code, launchers end with a summary,
and the other ranks of the job print what they were doing. `read_errors` takes the errors of one log in their order,
each with its `Weight`; `first_error` chooses one of several logs.
"""

from __future__ import annotations

import enum
import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field

from pytest_aisbench.traininglog.activity import software_versions
from pytest_aisbench.traininglog.readers import MOST_CHARACTERS, last_drawn, plain_line, rank_and_rest, read_line

DIAGNOSIS = "aisbench: "  # begins a line in which our own script on a node names what is wrong
SUSPICION = "aisbench: perhaps: "  # or what may be wrong
_LONGEST = 300  # characters of a reason
_LONGEST_LEAD = 150  # of its first part, where a second part says more


class Weight(enum.IntEnum):
    """How well an error explains the failure; the smallest does it best."""

    DIAGNOSIS = 0  # our own script on the node names what is wrong with the job
    CAUSE = 1  # an exception, an error code of CANN, a signal
    EFFECT = 2  # the rank lost another one, which failed before it
    HINT = 3  # a line that calls itself an error, and may have been survived
    LAUNCHER = 4  # a launcher tells that a rank failed, and not why


@dataclass
class LoggedError:
    """One error of a log."""

    text: str
    weight: Weight
    rank: str = ""  # that printed it, if the line names one
    detail: str = ""  # what a block after the line adds

    def __str__(self) -> str:
        if not self.detail:
            return _cut(self.text, _LONGEST)
        lead = _cut(_POINTER.sub("", self.text).rstrip(), _LONGEST_LEAD)
        return _cut(f"{lead}{'' if lead.endswith(('.', ':', '!')) else ':'} {self.detail}", _LONGEST)


@dataclass
class LogErrors:
    """The errors of one log in their order; the rank that a launcher in it names as the first that failed; and what our
    own script on the node suspects."""

    errors: list[LoggedError] = field(default_factory=list)
    failed_rank: str = ""
    suspicion: str = ""

    def best(self) -> LoggedError | None:
        """The first of those that explain the failure best, and of the rank that failed first if it printed one."""
        return min(self.errors, key=lambda each: (each.weight, each.rank != self.failed_rank), default=None)


def first_error(logs: Iterable[tuple[str, LogErrors]]) -> tuple[str, LoggedError] | None:
    """The name of a log and the error in it that explains the failure best; earlier logs go before later ones."""
    best = [(name, error) for name, log in logs if (error := log.best())]
    return min(best, key=lambda each: each[1].weight, default=None)


def read_errors(lines: Iterable[str], rank: str = "") -> LogErrors:
    """The errors of a log; `rank`, if one rank alone wrote it."""
    log = LogErrors()
    streams: dict[str, _Stream] = {}
    launcher = _Launcher(log)
    for raw in lines:
        line = last_drawn(raw.rstrip())[:MOST_CHARACTERS]
        named, rest = rank_and_rest(line)
        if named:
            rest = rest.removeprefix(" ")  # torch writes `[rank0]: ` before its lines, horovodrun `[0]<stderr>:`
        name = named.rpartition(",")[2] or rank
        if not name and launcher.read(rest):
            continue
        stream = streams.setdefault(name, _Stream(name, log))
        # A rank that trains on has survived its error. Where ranks have no names, another may have printed the line.
        if name and stream.own and read_line(line):
            log.errors = [error for error in log.errors if error not in stream.own]
            stream.own.clear()
        stream.read(rest)
    return log


# Launchers tell which rank failed first.

# ModelArts' launcher; horovodrun; mpirun
_FAILED_RANK = re.compile(
    r"\bproc-rank-(\d+)-device-\d+ \(pid: \d+\) has exited with non-zero code"
    r"|^Process (\d+) exit with status code [1-9]"
    r"|^\s*Process name: \[\[\d+,\d+\],(\d+)\]"
)
_TORCHRUN_FIELD = re.compile(r"  (rank|exitcode|traceback)\s*: (.*)")
_SERVICE = "service log]"


class _Launcher:
    """Reads the lines that a launcher prints, which belong to no rank."""

    def __init__(self, log: LogErrors) -> None:
        self._log = log
        self._section = ""  # of torchrun's summary
        self._exit_code = ""
        self._traceback: _Stream | None = None

    def read(self, line: str) -> bool:
        """True if the line was a launcher's own."""
        if line.startswith(SUSPICION):
            self._log.suspicion = line.removeprefix(SUSPICION).strip()
            return True
        if line.startswith(DIAGNOSIS):
            self._log.errors.append(LoggedError(line.strip(), Weight.DIAGNOSIS))
            return True
        if match := _FAILED_RANK.search(line):
            self._log.failed_rank = self._log.failed_rank or next(filter(None, match.groups()))
            if not match[1]:
                self._log.errors.append(LoggedError(line.strip(), Weight.LAUNCHER))
            return True
        if _SERVICE in line.lower():
            return True
        if line in {"Failures:", "Root Cause (first observed failure):"}:
            self._section = line
            return True
        if not self._section:
            return False
        if line.startswith("====="):
            self._section, self._traceback = "", None
        elif self._section != "Failures:":  # those of the other ranks came later
            self._read_root_cause(line)
        return True

    def _read_root_cause(self, line: str) -> None:
        if self._traceback:
            self._traceback.read(line.removeprefix("  "))
        elif match := _TORCHRUN_FIELD.match(line):
            key, value = match.groups()
            if key == "rank":
                self._log.failed_rank = value.partition(" ")[0]
            elif key == "exitcode":
                self._exit_code = value.partition(" ")[0]
            elif value.startswith(_TRACEBACK):
                self._traceback = _Stream(self._log.failed_rank, self._log)
                self._traceback.read(value)
            else:
                killed = value.startswith("Signal")
                ending = value if killed else f"ended with exit code {self._exit_code}"
                weight = Weight.CAUSE if killed else Weight.LAUNCHER
                self._log.errors.append(
                    LoggedError(f"rank {self._log.failed_rank}: {ending}", weight, self._log.failed_rank)
                )


# What one rank prints

_TRACEBACK = "Traceback (most recent call last):"
_CAUSED = "The above exception was the direct cause of the following exception:"
_REPLACED = "During handling of the above exception, another exception occurred:"
_ASIDE = ("Exception ignored in", "Exception in thread", "--- Logging error ---")
_EXCEPTION = re.compile(r"((?:[A-Za-z_]\w*\.)*[A-Z]\w*)(?:: ?(.*))?$")
_USUAL_NAME = re.compile(r"(?:Error|Exception|Exit|Interrupt|Warning|Failure|Fault|Timeout|Expired)$|\.")
_FIGURE = re.compile(r"\s*[\[(]?[-+]?\d")
_RULE = re.compile(r"\s*-{20,}\s*$")
_TITLE = re.compile(r"\s*- ([A-Za-z+ ]+?)\s*:")
_CALL_STACK = "Python Call Stack"
# The blocks of MindSpore's errors that say more than the exception; others are for its developers.
_TELLING = {_CALL_STACK, "Ascend Error Message", "Dataset Pipeline Error Message", "Framework Error Message"}
_SUMMARY = "Error Message Summary:"  # of PaddlePaddle, behind the calls in its C++ code
_POINTER = re.compile(r"\s*(?:The details )?[Rr]efer to '[\w ]+'\.?")  # to a block whose text we add
# CANN: `EI0006: [PID: 1] 2025-04-08-18:07:20.444.436 Getting …`, `E39999 TsdOpen …`, `[PID: 1] 2025-… Name(EI0006): …`
_STAMP = r"(?:\[PID: ?\d+\]\s*)?(?:\d{4}-\d\d-\d\d-\d\d:\d\d:\d\d[\d.]*\s*)?"
_CANN = re.compile(rf"\s*{_STAMP}((?:\w+\()?(E[A-Z0-9]\d{{4}})\)?)(?:: ?|\s){_STAMP}(.*)")
_CANN_PLACE = re.compile(r"\s*\[FUNC ?:.*")  # in CANN's own code
_GENERAL = "Inner Error"  # the line after it says which
_WAITS = {"EI0002", "EI0006", "EI0009"}  # HCCL: this rank waited for another one in vain
_OF_ANOTHER = re.compile(
    r"HorovodInternalError|Horovod has been shut down|Connection ?(?:reset|closed|refused|Reset|Refused)"
    r"|Broken ?[pP]ipe|SignalException|KeyboardInterrupt|DistNetworkError|DistBackendError|EOFError"
)
_OF_LAUNCHER = re.compile(r"ChildFailedError|CalledProcessError|Horovod detected that one or more processes exited")
_SIGNAL = re.compile(
    r"(?:.*?: line \d+:\s+\d+ )?(?:Segmentation fault|Bus error|Aborted|Killed|Illegal instruction)"
    r"(?:$| \(core|\s{2}).*|Fatal Python error: .+"
)
_THROWN = "terminate called after throwing an instance of"
_REFUSED = re.compile(
    r"\S+\.py: error: .+|\S*python[\d.]*: (?:can't open file|No module named|Error while finding) ?.+"
    r"|\S+: error while loading shared libraries: .+"
    r"|(?:SyntaxError|IndentationError|TabError): .+"  # of the entry itself, which has no traceback
)
_HINT = re.compile(
    r"\[?(?:ERROR|FATAL|CRITICAL)\]?(?=[\s:(])|(?:fatal )?[Ee]rror: .|(?:\S*/)?(?:ba)?sh: .+: "
    r"|\S+\.sh: (?:line \d+: )?.+: |slurmstepd: error: .|.{1,300}: No space left on device$"
)
_ELASTIC = re.compile(r"torch[./]distributed[./]elastic")


class _Stream:
    """Reads the lines of one rank, or of all ranks that print without a name."""

    def __init__(self, rank: str, log: LogErrors) -> None:
        self.own: list[LoggedError] = []
        self._rank = rank
        self._log = log
        self._indent: str | None = None  # of the traceback that we are in
        self._in_frame = False
        self._chained = ""
        self._aside = False
        self._open: LoggedError | None = None  # a block may still add to it
        self._block = ""
        self._continued = False  # the next line belongs to what the last one began

    def read(self, line: str) -> None:
        body = line.strip()
        if self._indent is not None:
            self._read_traceback(line, self._indent)
        elif body == _TRACEBACK:
            self._indent, self._in_frame = line[: line.index("T")], False
        elif body in {_CAUSED, _REPLACED}:
            self._chained = body
        elif body.startswith(_ASIDE):
            self._aside = True
        elif self._continued and body and self._open:
            self._continued = bool(_RULE.match(line))
            if not self._continued:
                more = _CANN_PLACE.sub("", _without_code(body)).removeprefix("what():").strip()
                self._open.detail = f"{self._open.detail} {more}".lstrip()
        elif _RULE.match(line):
            pass
        elif match := _TITLE.match(line):
            self._block = match[1]
        elif match := _CANN.match(line):
            self._read_code(match)
        elif body == _SUMMARY:
            self._block = _SUMMARY
        elif self._block == _SUMMARY and (match := _EXCEPTION.match(body)):
            self._raised(body, complete=bool(match[2]))
        elif self._block in _TELLING and self._block != _CALL_STACK and body:
            self._add_detail(body.removeprefix("[ERROR] "))
            self._block = ""
        else:
            self._read_line(body)

    def _read_traceback(self, line: str, indent: str) -> None:
        text = line.removeprefix(indent)
        if text.startswith((" ", "\t")):
            self._in_frame = True
            return
        match = _EXCEPTION.match(text)
        # Between the lines of a traceback another rank may print, such as `Epoch: 3`.
        if match and (_USUAL_NAME.search(match[1]) or (self._in_frame and not _FIGURE.match(match[2] or ""))):
            self._indent = None
            self._raised(text.rstrip(), complete=match[2] is None or bool(match[2].strip()))
        self._in_frame = False

    def _raised(self, text: str, *, complete: bool) -> None:
        chained, self._chained = self._chained, ""
        if self._block == _CALL_STACK:  # MindSpore quotes the exception of the user's own function
            self._block = ""
            self._add_detail(text)
            return
        if chained == _CAUSED and self.own:
            return
        if chained == _REPLACED and self.own:
            self._log.errors.remove(self.own.pop())
        if _OF_LAUNCHER.search(text):
            weight = Weight.LAUNCHER
        else:
            weight = Weight.EFFECT if self._aside or _OF_ANOTHER.search(text) else Weight.CAUSE
        self._aside = False
        self._report(text, weight, continued=not complete and weight is not Weight.LAUNCHER)

    def _read_code(self, match: re.Match[str]) -> None:
        name, code, reason = match.groups()
        text = _CANN_PLACE.sub("", f"{name}: {reason}")
        self._block = ""
        # A code may stand alone; where it follows an exception, as torch and MindSpore print it, it says why.
        follows = self._open and self._open.weight is Weight.CAUSE and not self._open.detail
        if self._open and follows and not _CANN.match(self._open.text):
            self._open.detail, self._continued = text, _GENERAL in reason
            if code in _WAITS:
                self._open.weight = Weight.EFFECT
            return
        if not self._open or not self._open.text.startswith(name):
            self._report(text, Weight.EFFECT if code in _WAITS else Weight.CAUSE, continued=_GENERAL in reason)

    def _read_line(self, body: str) -> None:
        if _SIGNAL.match(body) or _REFUSED.match(body):
            self._report(body, Weight.CAUSE)
        elif body.startswith(_THROWN):
            self._report(body, Weight.CAUSE, continued=True)
        elif _ELASTIC.search(body[:200]):
            if "failed (exitcode" in body:
                self._report(body, Weight.LAUNCHER)
        elif _HINT.match(body):
            self._report(body, Weight.HINT)

    def _add_detail(self, text: str) -> None:
        if self._open and not self._open.detail:
            self._open.detail = text

    def _report(self, text: str, weight: Weight, *, continued: bool = False) -> None:
        error = LoggedError(text, weight, self._rank)
        self._log.errors.append(error)
        self.own.append(error)
        if weight is not Weight.HINT:  # torch prints one between its exception and CANN's code
            self._open, self._block, self._continued = error, "", continued


def _without_code(text: str) -> str:
    match = _CANN.match(text)
    return match[3] if match else text


def _cut(text: str, limit: int) -> str:
    return text if len(text) <= limit else f"{text[: limit - 1]}…"


# Whether the nodes updated their software before they trained. A pre-start script installs the files of `run/`. One
# that fails at it and goes on trains with the old software, and its numbers are those of another system.

# Every line that tells of a failure has one of these words, in small letters.
_HINTS = ("ret", "error", "required", "not found", "no such", "denied", "named pip", "with other software")
_FAILURES = (
    # a step of the script in the vendor's guide: `replace origin mindspore packet!!! done ret:1 !!!`
    re.compile(r"\bdone\b.{0,3}\bret\s?[:=]\s*-?0*[1-9]\d{0,9}\b", re.IGNORECASE),
    # pip, which tells of conflicts with other packages as an ERROR too, and installs all the same
    re.compile(
        r"\bERROR: (?:Could not (?:install packages|find a version|build wheels|open requirements file)"
        r"|No matching distribution|Cannot (?:un)?install|Can not perform|Failed (?:to build|building)"
        r"|Wheel '|Invalid (?:requirement|wheel)|Package '.{1,200}' requires a different Python|ResolutionImpossible"
        r"|Command errored out|Directory '.{1,200}' is not installable|THESE PACKAGES DO NOT MATCH THE HASHES"
        r"|Exception:|.{1,500} (?:is not a supported wheel on this platform|is not a valid wheel filename))"
    ),
    re.compile(r"\berror: externally-managed-environment\b|: No module named pip$"),
    # the shell, and sudo, which cannot begin a step
    re.compile(
        r"(?:^|[\s/])(?:pip[\d.]*|sudo|[\w.+-]+\.run): "
        r"(?:command not found|not found|No such file or directory|Permission denied)$"
    ),
    re.compile(r"^sudo: .{0,20}\b(?:password|terminal) is required"),
    # the installers of CANN, and the archives that they come in
    re.compile(r"\[ERROR\].{0,40}\bERR_NO:\s?0x[0-9a-fA-F]+|^\[\w+\] ?\[\d{8}-[\d:]{8}\] ?\[ERROR\]"),
    re.compile(r"\bError in (?:MD5|SHA256) checksums: "),
    # the script that the run writes, where a platform goes on after it
    re.compile(r"^aisbench: .{1,300}: the job would train with other software than it should"),
)
# The name and the version in the name of a file of `run/`, by what a log calls the software.
_FILES = (
    ("mindspore", re.compile(r"mindspore(?:[_-]\w+)?-(?P<version>\d[^-]*)-.+\.whl", re.IGNORECASE)),
    ("torch", re.compile(r"torch-(?P<version>\d[^-]*)-.+\.whl", re.IGNORECASE)),
    ("tensorflow", re.compile(r"tensorflow(?:[_-]\w+)?-(?P<version>\d[^-]*)-.+\.whl", re.IGNORECASE)),
    ("paddle", re.compile(r"paddlepaddle(?:[_-]\w+)?-(?P<version>\d[^-]*)-.+\.whl", re.IGNORECASE)),
    ("horovod", re.compile(r"horovod-(?P<version>\d[^-]*)-.+\.whl", re.IGNORECASE)),
    ("cann", re.compile(r"Ascend-cann-\w+_(?P<version>\d[^_]*)_.+\.run", re.IGNORECASE)),
)
# The name of an engine tells what its image had before the update.
_ENGINE = re.compile(r"\bmindspore_[\w.]{1,40}-cann_[\w.]{1,40}-py_\S{1,80}", re.IGNORECASE)


def failed_updates(text: str) -> list[str]:
    """The lines of a log by which a step of an update says that it failed, each once."""
    lines = (line[:MOST_CHARACTERS] for line in text.splitlines())
    hints = (line for line in lines if any(hint in line.lower() for hint in _HINTS))
    # The shell's own trace of a line begins with +.
    spoken = (line for hint in hints if not (line := plain_line(hint).strip()).startswith("+"))
    return list(dict.fromkeys(line for line in spoken if any(failure.search(line) for failure in _FAILURES)))


def expected_versions(files: Iterable[str]) -> dict[str, tuple[str, str]]:
    """The version that the log must name after the update, and the file that brings it, by software."""
    expected = {}
    for file in files:
        for software, name in _FILES:
            if match := name.fullmatch(file):
                expected[software] = (match["version"], file)
    return expected


def other_versions(text: str, expected: Mapping[str, tuple[str, str]]) -> list[tuple[str, str, str]]:
    """(software, the versions that the log names, the file with another one), where none of them is the file's."""
    if not expected:
        return []
    named = software_versions(_ENGINE.sub("", text))
    return [
        (software, named[software], file)
        for software, (version, file) in expected.items()
        if software in named and _plain(version) not in {_plain(each) for each in named[software].split(", ")}
    ]


def _plain(version: str) -> str:
    """Without the label of a build: `1.8.1+ascend` trains as 1.8.1."""
    return version.partition("+")[0].lower().replace("-", "")
