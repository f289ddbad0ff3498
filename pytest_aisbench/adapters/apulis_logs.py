"""The log of an Apulis job: pages of all pods, one after the other, written anew whenever there is more. Pure."""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass

from pytest_aisbench.adapters.apulis_command import DONE, IDLE

_RULE = "=" * 57
_POD = re.compile(r"\s*(end of )?logs from pod: (\S+)\s*")
_WORKER = re.compile(r"worker-?(\d+)\Z")
_DONE = re.compile(rf"{DONE} node=(\d+) rc=(\d+)")
_CODE = re.compile(r"\brc=(\d+)")
# The platform gives every container bearer tokens, and scripts print their environment.
_NAME = r"[A-Z][A-Z0-9_]{0,63}"
_PRINTED = re.compile(
    rf"((?:\[\d+\]<std\w+>:)?(?:export |declare -x )?({_NAME})=).*"
)  # as `env` does: to the line's end
_MENTIONED = re.compile(rf"""\b({_NAME})(["']?[=:] ?)("[^"]*"?|'[^']*'?|[^\s"']+)""")
_SECRET = re.compile(r"TOKEN|PASSWORD|PASSWD|SECRET|ACCESS_KEY|(^|_)[AS]K$")
_BEARER = re.compile(r"(?i:\b(bearer) +)[\w.~+/=-]{16,}|\beyJ[\w-]{8,}\.[\w-]+\.[\w-]*")


@dataclass(frozen=True)
class Ended:
    """A pod that said that its command is done."""

    node: int
    exit_code: int


def pods(text: str) -> dict[str, str]:
    """What each pod said, without secrets; a text without headings is that of a pod without a name."""
    found: dict[str, list[str]] = {}
    name, rules = "", 0  # rules: how many lines of a heading may still come
    for line in text.splitlines(keepends=True):
        if heading := _POD.fullmatch(line.rstrip("\r\n")):
            said = found.get(name, [])
            for _ in range(3):
                if said and said[-1].rstrip() == _RULE:
                    said.pop()
            name, rules = ("" if heading[1] else heading[2]), 3
            found.setdefault(name, [])
        elif rules and line.rstrip() == _RULE:
            rules -= 1
        else:
            rules = 0
            found.setdefault(name, []).append(line)
    if len(found) > 1 and not "".join(found.get("", [])).strip():
        found.pop("", None)  # what stands between the pods
    return {pod: "".join(map(clean, lines)) for pod, lines in found.items()}


def node_text(said: Mapping[str, str], node: int) -> str:
    """Of one node. Where a launcher speaks for all, its words are the first node's."""
    by_node = {int(match[1]): text for pod, text in said.items() if (match := _WORKER.search(pod))}
    if not by_node:  # one node, whose pod is called as the job
        return next(iter(said.values()), "") if node == 0 else ""
    text = by_node.get(node, "")
    if node == 0 and IDLE in text.splitlines():
        return next((other for pod, other in said.items() if not _WORKER.search(pod)), text)
    return text


def endings(said: Mapping[str, str], until: str = "") -> list[Ended]:
    """Who is done: by our own last line, or by one that begins with `until`."""
    found = {}
    for pod, text in said.items():
        worker = _WORKER.search(pod)
        for match in _DONE.finditer(text):
            found[pod] = Ended(int(match[1]), int(match[2]))
        for line in text.splitlines() if until and pod not in found else ():
            if line.strip().startswith(until):
                code = _CODE.search(line)
                found[pod] = Ended(int(worker[1]) if worker else 0, int(code[1]) if code else 0)
                break
    return sorted(found.values(), key=lambda ended: ended.node)


def spoken(text: str) -> str:
    """Without our own last line: the script's last words are what somebody looks for."""
    return re.sub(rf"(?m)^{DONE} node=\d+ rc=\d+\s*", "", text)


def whole_lines(text: str) -> str:
    """Without a last line that may still grow. Our own is the last that a pod says."""
    last = text.rstrip("\r\n").rpartition("\n")[2]
    return text if _DONE.search(last) else text[: len(text.rstrip("\r\n")) - len(last)]


def clean(text: str) -> str:
    """A line, or several, without the values of variables that are secrets by their names, and without tokens."""
    return "".join(map(_clean, text.splitlines(keepends=True)))


def _clean(line: str) -> str:
    printed = _PRINTED.match(line)
    if printed and _SECRET.search(printed[2]):
        return f"{printed[1]}***{line[printed.end() :]}"
    line = _MENTIONED.sub(lambda told: f"{told[1]}{told[2]}***" if _SECRET.search(told[1]) else told[0], line)
    return _BEARER.sub(lambda told: f"{told[1]} ***" if told[1] else "***", line)
