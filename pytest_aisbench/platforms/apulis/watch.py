"""What an Apulis platform says of a job: its state, its logs by page, its cards.

Its times are those of two clocks, each server's own, stamped as if they were UTC: only their differences are used.
"""

from __future__ import annotations

import logging
import math
import re
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime
from typing import Any

from pytest_aisbench.errors import AisbenchError
from pytest_aisbench.logs import get_logger, ignored
from pytest_aisbench.model.job import Job, LogPart, Phase
from pytest_aisbench.model.ports import Store
from pytest_aisbench.net.retry import LOOK_S
from pytest_aisbench.platforms.apulis.request import DONE, IDLE, JobFacts, job_facts
from pytest_aisbench.platforms.apulis.session import ApulisHttp, reading

_LOG = get_logger("platform")

# -- The log of an Apulis job: pages of all pods, one after the other, written anew whenever there is more. Pure.

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


def split_pods(text: str) -> dict[str, str]:
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
    return {pod: "".join(map(mask_secrets, lines)) for pod, lines in found.items()}


def text_of_node(said: Mapping[str, str], node: int) -> str:
    """Of one node. Where a launcher speaks for all, its words are the first node's."""
    by_node = {int(match[1]): text for pod, text in said.items() if (match := _WORKER.search(pod))}
    if not by_node:  # one node, whose pod is called as the job
        return next(iter(said.values()), "") if node == 0 else ""
    text = by_node.get(node, "")
    if node == 0 and IDLE in text.splitlines():
        return next((other for pod, other in said.items() if not _WORKER.search(pod)), text)
    return text


def find_endings(said: Mapping[str, str], until: str = "") -> list[Ended]:
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


def without_done_line(text: str) -> str:
    """Without our own last line: the script's last words are what somebody looks for."""
    return re.sub(rf"(?m)^{DONE} node=\d+ rc=\d+\s*", "", text)


def whole_lines(text: str) -> str:
    """Without a last line that may still grow. Our own is the last that a pod says."""
    last = text.rstrip("\r\n").rpartition("\n")[2]
    return text if _DONE.search(last) else text[: len(text.rstrip("\r\n")) - len(last)]


def mask_secrets(text: str) -> str:
    """A line, or several, without the values of variables that are secrets by their names, and without tokens."""
    return "".join(map(_clean, text.splitlines(keepends=True)))


def _clean(line: str) -> str:
    printed = _PRINTED.match(line)
    if printed and _SECRET.search(printed[2]):
        return f"{printed[1]}***{line[printed.end() :]}"
    line = _MENTIONED.sub(lambda told: f"{told[1]}{told[2]}***" if _SECRET.search(told[1]) else told[0], line)
    return _BEARER.sub(lambda told: f"{told[1]} ***" if told[1] else "***", line)


PHASES = {
    "unapproved": Phase.PENDING,
    "queued": Phase.PENDING,  # also one that runs, is preempted and waits again
    "scheduling": Phase.PENDING,
    "paused": Phase.PENDING,
    "running": Phase.RUNNING,
    "pausing": Phase.RUNNING,
    "killing": Phase.RUNNING,
    "finished": Phase.SUCCEEDED,
    "failed": Phase.FAILED,
    "error": Phase.LOST,  # it was never launched
    "killed": Phase.CANCELLED,
}
_MOST_PAGES = 500
_STEP_S, _PAST_S = 60, 86400  # of samples
_USES_BAD_INPUT = ("imagepull", "errimage", "invalidimage", "invalid jobtrainingtype", "wrong device")
_OVERTIME = "exceed pre-defined"
_SAMPLES = {
    "task_cpu_percent": "cpu",
    "task_mem_usage_percent": "memory",
    "task_device_percent": "npu",
    "task_device_mem_percent": "npu memory",
    "task_gpu_percent": "gpu",
    "task_gpu_mem_percent": "gpu memory",
}


class Watch:
    """Of one user's jobs."""

    def __init__(self, http: ApulisHttp, store: Store) -> None:
        self._http = http
        self._store = store
        self._ended: dict[str, Job] = {}  # an end is for ever
        self._unheard: dict[str, float] = {}  # since when the log of one that has ended could not be had

    def detail(self, job_id: str, patience_s: float = LOOK_S) -> Mapping[str, Any]:
        """Empty where the platform does not know the job, or not as ours."""
        answer = self._http.ask("GetJobDetailV2", jobId=job_id, userName=self._http.access.user, patience_s=patience_s)
        with reading("a job"):
            return dict(answer or {})

    def status(self, job_id: str, patience_s: float = LOOK_S) -> Mapping[str, Any]:
        """Empty where the platform does not know the job."""
        answer = self._http.ask("GetJobStatus", jobId=job_id, patience_s=patience_s)
        with reading("a job's state"):
            return dict(answer or {})

    def inspect(self, job_id: str) -> Job:
        if job_id not in self._ended:
            with reading("a job"):
                job = self._look(job_id)
            if not job.phase.is_final or not job.platform_phase:
                return job
            self._ended[job_id] = job
        return self._ended[job_id]

    def logs(self, job_id: str, node: int, since: int) -> LogPart:
        """Offsets count characters of a node's whole lines."""
        text = text_of_node(self._pods(job_id), node)
        closed = whole_lines(text)
        if closed != text and not _phase(str(self.status(job_id).get("jobStatus", ""))).is_final:
            text = closed
        return LogPart(text[since:], max(since, len(text)))

    def usage(self, job_id: str, node: int) -> Mapping[str, Sequence[float]]:
        """The mean of a node's cards, minute by minute."""
        now = int(time.time())
        found = {}
        for metric, name in _SAMPLES.items():
            query = f'{metric}{{job_name="{job_id}"}}'
            answer = self._http.get(
                self._http.access.metrics, query=query, start=now - _PAST_S, end=now + _STEP_S, step=_STEP_S
            )
            with reading("the use of a node"):
                samples = _samples(answer, node)
            if samples:
                found[name] = samples
        return found

    def events(self, job_id: str) -> Sequence[str]:
        """Without times, which are none of ours; and a reason that stands in two places is told once."""
        told = [row.get("message") for row in _records(self.detail(job_id))]
        told.append(self.status(job_id).get("errorMsg"))
        return list(dict.fromkeys(mask_secrets(said) for said in told if isinstance(said, str) and said))

    def _look(self, job_id: str) -> Job:
        detail = self.detail(job_id)
        told = detail or self.status(job_id)
        word = str(told.get("jobStatus") or "")
        if not word:
            return Job(job_id, Phase.LOST, "", reason="the platform does not know the job")
        job, phase = job_facts(_table(detail.get("jobParams"))), _phase(word)
        reason, exit_code = "", None
        if job.until and word.lower() == "running" and self._outcome(self._pods(job_id), job):
            self._http.ask("KillJob", jobId=job_id, userName=self._http.access.user, patience_s=0.0)
        if phase.is_final:
            error = self.status(job_id) if detail else told
            reason = str(error.get("errorMsg") or "")
            phase = _told_by_reason(phase, reason)
            phase, ended = self._settled(job_id, phase, job)
            if ended and phase is Phase.FAILED:
                exit_code = ended.exit_code
                reason = f"worker-{ended.node} ended with exit code {exit_code}: {reason}".rstrip(": ")
        return Job(
            id=job_id,
            phase=phase,
            platform_phase=word,
            known=word.lower() in PHASES,
            reason="" if phase is Phase.SUCCEEDED or not phase.is_final else reason or word,
            exit_code=exit_code,
            ran_s=_ran(detail) if phase.is_final else None,
            name=str(detail.get("jobName") or ""),
        )

    def _settled(self, job_id: str, phase: Phase, job: JobFacts) -> tuple[Phase, Ended | None]:
        """What the log adds to the platform's word: which node failed, and whether a job that we ended was done. An
        outage that hides it is waited out: once the end is told, nobody asks again."""
        try:
            said = self._pods(job_id)
        except AisbenchError as error:
            if job.until and phase is Phase.CANCELLED:
                raise  # only the log knows
            since = self._unheard.setdefault(job_id, time.monotonic())
            waits = error.retryable and time.monotonic() - since < self._http.patience_s
            return (Phase.RUNNING if waits else phase), None
        self._bring(said, job)
        ended = self._outcome(said, job)
        if ended and job.until and phase is Phase.CANCELLED:
            phase = Phase.FAILED if ended.exit_code else Phase.SUCCEEDED
        return phase, ended if ended and ended.exit_code else None

    def _outcome(self, said: Mapping[str, str], job: JobFacts) -> Ended | None:
        """The first pod that failed; else any, once all are done."""
        ended = find_endings(said, job.until)
        failed = next((each for each in ended if each.exit_code), None)
        return failed or (ended[0] if ended and len(ended) >= job.speakers else None)

    def _pods(self, job_id: str) -> dict[str, str]:
        """Read page by page: the call for the whole puts page 10 before page 2."""
        user, text, page = self._http.access.user, "", 1
        while page <= _MOST_PAGES:
            answer = self._http.ask("GetJobLog", jobId=job_id, userName=user, page=page, patience_s=LOOK_S)
            with reading("a log"):
                part, last = answer.get("log") or "", int(answer.get("max_page") or 0)
            if isinstance(part, dict):  # as DLWorkspace tells it, which has no pages
                return {str(pod): mask_secrets(str(said)) for pod, said in part.items()}
            text += str(part)
            if page >= last:  # one beyond the last is the last once more
                break
            page += 1
        return split_pods(text)

    def _bring(self, said: Mapping[str, str], job: JobFacts) -> None:
        """Into the Store, where logs are looked for. They are worth having, not worth an error."""
        for node in range(min(job.nodes, len(said))) if job.logs else ():
            text = without_done_line(text_of_node(said, node))
            if job.logs and text:
                with ignored(_LOG, AisbenchError, "%s in the Store", job.logs, level=logging.WARNING):
                    self._store.write(job.logs / f"worker-{node}.log", text.encode(errors="replace"))


def _phase(word: str) -> Phase:
    return PHASES.get(word.lower(), Phase.RUNNING)


def _told_by_reason(phase: Phase, reason: str) -> Phase:
    """Where the platform's word and its reason do not blame the same."""
    if phase is Phase.LOST and any(mark in reason.lower() for mark in _USES_BAD_INPUT):
        return Phase.FAILED  # another try would end as this one
    return Phase.FAILED if phase is Phase.CANCELLED and _OVERTIME in reason else phase


def _records(detail: Mapping[str, Any]) -> list[Mapping[str, Any]]:
    told = detail.get("jobStatusDetail")
    return [_table(row) for row in told] if isinstance(told, list) else []


def _ran(detail: Mapping[str, Any]) -> float | None:
    """From start to end by the same clock; the last time, where the platform started the job again by itself."""
    for row in reversed(_records(detail)):
        with ignored(_LOG, (AttributeError, KeyError, TypeError, ValueError), "how long a job ran"):
            seconds = (_moment(row["finishedAt"]) - _moment(row["startedAt"])).total_seconds()
            return seconds if seconds > 0 else None
    return None


def _moment(text: str) -> datetime:
    # Python 3.10 reads no Z, and 3 or 6 digits of a second only.
    whole, _, rest = text.replace("Z", "+00:00").partition(".")
    digits = rest[: len(rest) - len(rest.lstrip("0123456789"))]
    return datetime.fromisoformat(f"{whole}.{digits[:6]:0<6}{rest[len(digits) :]}" if digits else whole)


def _samples(answer: Any, node: int) -> list[float]:
    """Of Prometheus: a series per card. Those that name a pod or a task of another node are left out."""
    by_time: dict[float, list[float]] = {}
    for each in _table(_table(answer).get("data")).get("result") or ():
        labels = _table(each["metric"])
        index = labels.get("task_index")
        pod = str(labels.get("pod_name") or labels.get("pod") or "")
        if (index not in {None, str(node), node}) or ("worker" in pod and not pod.endswith(f"worker{node}")):
            continue
        for moment, value in each["values"]:
            if math.isfinite(sample := float(value)) and sample >= 0:
                by_time.setdefault(float(moment), []).append(min(100.0, sample))
    return [sum(values) / len(values) for _, values in sorted(by_time.items())]


def _table(value: Any) -> Mapping[str, Any]:
    return value if isinstance(value, dict) else {}
