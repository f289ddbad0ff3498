"""Which software trained, as far as a log tells it: CANN, the driver, the framework.

Only lines that name the software and its version together count, each by the words of whoever prints them. A path
counts for CANN, whose folder bears its version; a requirement such as `mindspore>=1.3` never does.
"""

from __future__ import annotations

import re
from collections.abc import Mapping

from pytest_aisbench.domain.log_readers import LONGEST

_VERSION = r"v?(\d{1,4}(?:\.(?:\d{1,4}|[a-zA-Z]{1,8}\d{0,4}|\d{1,4}(?:a|b|rc)\d{1,4})){1,4}(?:[-+][\w.]{1,20})?)"
_END = r"(?![\w.]*\w)"  # a version that goes on in another way is none that we know
# Words that every telling line has: of a log's millions of lines most are not looked at twice.
_HINTS = ("version", "cann", "ascend-toolkit", "npu-smi", "horovod v")

_SAYINGS: tuple[tuple[str, str], ...] = (
    # the folder that a toolkit is installed in, and the engines of ModelArts
    ("cann", rf"/Ascend/(?:ascend-toolkit/|cann-){_VERSION}(?=/|\s|$|['\":])"),
    ("cann", rf"\bcann_{_VERSION.replace('[-+]', '[+]')}(?=-py_)"),
    ("cann", rf"\bCANN(?: toolkit)?(?: version)?\s*(?:is|[:=])\s*{_VERSION}{_END}"),
    # `npu-smi info`, whose version is the driver's; `npu-smi info -t board`; nvidia-smi
    ("driver", rf"\|\s*npu-smi\s+\S+\s+Version:\s*{_VERSION}\s*\|"),
    ("driver", rf"^\s*Software Version\s*:\s*{_VERSION}\s*$"),
    ("driver", rf"\b(?:NPU |Ascend )?driver version\s*(?:is|[:=])\s*{_VERSION}{_END}"),
    ("firmware", rf"\bfirmware version\s*(?:is|[:=])\s*{_VERSION}{_END}"),
    # MindSpore's own check of what it runs on, and `mindspore.run_check()`
    ("ascend package", rf"\bAscend AI software package(?: \([^)]{{1,40}}\))?\s*version {_VERSION} does not match"),
    ("mindspore", rf"\bMindSpore version(?: is|\s*[:=])?\s*{_VERSION}{_END}"),
    ("mindspore", rf"\bmindspore_{_VERSION.replace('[-+]', '[+]')}(?=-cann_)"),
    ("paddle", rf"\bPaddle(?:Paddle)? version(?: is|\s*[:=])?\s*{_VERSION}{_END}"),
    ("tensorflow", rf"\b(?:TensorFlow|TF) version(?: is|\s*[:=])?\s*{_VERSION}{_END}"),
    ("torch", rf"\b(?:PyTorch|torch) version(?: is|\s*[:=])?\s*{_VERSION}{_END}"),
    # `horovodrun --check-build` begins so
    ("horovod", rf"\bHorovod v{_VERSION.removeprefix('v?')}:"),
    ("horovod", rf"\bHorovod version(?: is|\s*[:=])?\s*{_VERSION}{_END}"),
    ("cuda", rf"\bCUDA Version\s*:\s*{_VERSION}{_END}"),
)
_READERS = tuple((name, re.compile(saying, re.IGNORECASE)) for name, saying in _SAYINGS)


def versions(text: str) -> Mapping[str, str]:
    """By name. Where nodes or lines tell several, all of them, in order: such a job is comparable to no other."""
    found: dict[str, set[str]] = {}
    for line in text.splitlines():
        lowered = line[:LONGEST].lower()
        if not any(hint in lowered for hint in _HINTS):
            continue
        for name, reader in _READERS:
            for told in reader.finditer(line[:LONGEST]):
                found.setdefault(name, set()).add(told[1])
    return {name: ", ".join(sorted(told)) for name, told in sorted(found.items())}
