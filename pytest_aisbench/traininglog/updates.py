"""Whether the nodes updated their software before they trained, by their logs.

A pre-start script installs the files of `run/`. One that fails at it and goes on trains with the old software, and
its numbers are those of another system.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping

from pytest_aisbench.traininglog.activity import software_versions
from pytest_aisbench.traininglog.readers import MOST_CHARACTERS, shown

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
    spoken = (line for hint in hints if not (line := shown(hint).strip()).startswith("+"))
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
