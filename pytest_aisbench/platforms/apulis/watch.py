"""Reads the state, the logs and the usage of a job on Apulis.

Its times come from two clocks, each in a zone of its own: only differences of the same clock are used. A log comes in
pages with the lines of all pods, and the platform rewrites it as it grows.
"""

from __future__ import annotations

import logging
import math
import re
import time
from collections.abc import Iterable, Mapping, Sequence
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
_HOST = re.compile(r"[A-Za-z0-9.-]+(:\d+)?")
_PORT = re.compile(r"[A-Za-z0-9_=-]+")
_USER = re.compile(r"[\w.@-]+", re.ASCII)
_LOG = get_logger("platform")
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


@dataclass(frozen=True)
class Ended:
    """A pod whose command has ended, by its log."""

    node: int
    exit_code: int


class Watch:
    """The jobs of one user."""

    def __init__(self, http: ApulisHttp, store: Store) -> None:
        self._http = http
        self._store = store
        self._ended: dict[str, Job] = {}  # the final state of jobs that have ended
        self._log_missing_since: dict[str, float] = {}  # when reading the log of an ended job first failed

    def detail(self, job_id: str, patience_s: float = LOOK_S) -> Mapping[str, Any]:
        """Empty if the platform does not know the job, or not as ours."""
        answer = self._http.ask("GetJobDetailV2", jobId=job_id, userName=self._http.access.user, patience_s=patience_s)
        with reading("a job"):
            return dict(answer or {})

    def status(self, job_id: str, patience_s: float = LOOK_S) -> Mapping[str, Any]:
        """Empty if the platform does not know the job."""
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
        text = text_of_node(self._logs_by_pod(job_id), node)
        closed = whole_lines(text)
        if closed != text and not _phase(str(self.status(job_id).get("jobStatus", ""))).is_final:
            text = closed
        return LogPart(text[since:], max(since, len(text)))

    def usage(self, job_id: str, node: int) -> Mapping[str, Sequence[float]]:
        """The mean of a node's cards, minute by minute."""
        now = int(time.time())
        usage = {}
        for metric, name in _SAMPLES.items():
            query = f'{metric}{{job_name="{job_id}"}}'
            answer = self._http.get(
                self._http.access.metrics, query=query, start=now - _PAST_S, end=now + _STEP_S, step=_STEP_S
            )
            with reading("the use of a node"):
                samples = _samples(answer, node)
            if samples:
                usage[name] = samples
        return usage

    def endpoints(self, job_id: str, wanted: Iterable[str]) -> Mapping[str, str]:
        """By name, and by pod where each has one, the addresses of the endpoints that are open."""
        answer = self._http.ask("endpoints", jobId=job_id, userName=self._http.access.user, patience_s=LOOK_S)
        addresses: dict[str, str] = {}
        with reading("the endpoints of a job"):
            rows = [dict(row) for row in answer or () if row.get("name") in set(wanted)]
            for row in rows:
                pod = _WORKER.search(str(row.get("podName") or ""))
                addresses[f"{row['name']} {pod[0]}" if pod else str(row["name"])] = _address(row)
        opened = {str(row["name"]) for row in rows}
        return dict.fromkeys((name for name in wanted if name not in opened), "") | addresses

    def events(self, job_id: str) -> Sequence[str]:
        """Messages without their times, which are of another clock, and without repetitions."""
        messages = [row.get("message") for row in _records(self.detail(job_id))]
        messages.append(self.status(job_id).get("errorMsg"))
        return list(dict.fromkeys(mask_secrets(text) for text in messages if isinstance(text, str) and text))

    def _look(self, job_id: str) -> Job:
        detail = self.detail(job_id)
        state = detail or self.status(job_id)
        word = str(state.get("jobStatus") or "")
        if not word:
            return Job(job_id, Phase.LOST, "", reason="the platform does not know the job")
        job, phase = job_facts(_table(detail.get("jobParams"))), _phase(word)
        reason, exit_code = "", None
        if job.until and word.lower() == "running" and self._outcome(self._logs_by_pod(job_id), job):
            self._http.ask("KillJob", jobId=job_id, userName=self._http.access.user, patience_s=0.0)
        if phase.is_final:
            error = self.status(job_id) if detail else state
            reason = str(error.get("errorMsg") or "")
            phase = _corrected(phase, reason)
            phase, ended = self._read_end(job_id, phase, job)
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
            ran_s=_ran_s(detail) if phase.is_final else None,
            name=str(detail.get("jobName") or ""),
        )

    def _read_end(self, job_id: str, phase: Phase, job: JobFacts) -> tuple[Phase, Ended | None]:
        """Add what the log says: which node failed, and whether a job that we killed was done.

        While an outage hides the log, the job counts as running: the Fleet asks no more once it has ended.
        """
        try:
            logs = self._logs_by_pod(job_id)
        except AisbenchError as error:
            if job.until and phase is Phase.CANCELLED:
                raise  # only the log tells whether it was done
            since = self._log_missing_since.setdefault(job_id, time.monotonic())
            waits = error.retryable and time.monotonic() - since < self._http.patience_s
            return (Phase.RUNNING if waits else phase), None
        self._save_logs(logs, job)
        ended = self._outcome(logs, job)
        if ended and job.until and phase is Phase.CANCELLED:
            phase = Phase.FAILED if ended.exit_code else Phase.SUCCEEDED
        return phase, ended if ended and ended.exit_code else None

    def _outcome(self, logs: Mapping[str, str], job: JobFacts) -> Ended | None:
        """The first pod that failed; else any pod, once all are done."""
        ended = find_endings(logs, job.until)
        failed = next((each for each in ended if each.exit_code), None)
        return failed or (ended[0] if ended and len(ended) >= job.speakers else None)

    def _logs_by_pod(self, job_id: str) -> dict[str, str]:
        """The logs of all pods, read page by page: the call for the whole log puts page 10 before page 2."""
        user, text, page = self._http.access.user, "", 1
        while page <= _MOST_PAGES:
            answer = self._http.ask("GetJobLog", jobId=job_id, userName=user, page=page, patience_s=LOOK_S)
            with reading("a log"):
                part, last = answer.get("log") or "", int(answer.get("max_page") or 0)
            if isinstance(part, dict):  # of DLWorkspace, which has no pages
                return {str(pod): mask_secrets(str(log)) for pod, log in part.items()}
            text += str(part)
            if page >= last:  # a page beyond the last repeats the last
                break
            page += 1
        return split_pods(text)

    def _save_logs(self, logs: Mapping[str, str], job: JobFacts) -> None:
        """Write the logs to the Store, where the run collects them. A failure is only a warning."""
        for node in range(min(job.nodes, len(logs))) if job.logs else ():
            text = without_done_line(text_of_node(logs, node))
            if job.logs and text:
                with ignored(_LOG, AisbenchError, "%s in the Store", job.logs, level=logging.WARNING):
                    self._store.write(job.logs / f"worker-{node}.log", text.encode(errors="replace"))


def _phase(word: str) -> Phase:
    return PHASES.get(word.lower(), Phase.RUNNING)


def _corrected(phase: Phase, reason: str) -> Phase:
    """Correct the phase if the reason contradicts it."""
    if phase is Phase.LOST and any(mark in reason.lower() for mark in _USES_BAD_INPUT):
        return Phase.FAILED  # another trial would fail in the same way
    return Phase.FAILED if phase is Phase.CANCELLED and _OVERTIME in reason else phase


def _records(detail: Mapping[str, Any]) -> list[Mapping[str, Any]]:
    rows = detail.get("jobStatusDetail")
    return [_table(row) for row in rows] if isinstance(rows, list) else []


def _ran_s(detail: Mapping[str, Any]) -> float | None:
    """The seconds from start to end, by one clock. If the platform restarted the job, of the last start."""
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
    """The mean over the cards of a node. Prometheus has a series per card; those of other nodes are left out."""
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


def _address(row: Mapping[str, Any]) -> str:
    """The address of an endpoint, as the platform's own page shows it but without its password; empty until it runs.

    A port is a number; some versions give the end of a path below the node's web server in its place.
    """
    host = ".".join(filter(None, (str(row.get("nodeName") or ""), str(row.get("domain") or ""))))
    port, user = str(row.get("port") or ""), str(row.get("username") or "")
    if row.get("status") != "running" or not (_HOST.fullmatch(host) and _PORT.fullmatch(port)):
        return ""
    if row["name"] == "ssh":
        return f"ssh -p {port} {user}@{host}" if port.isdecimal() and _USER.fullmatch(user) else ""
    return f"http://{host}:{port}/" if port.isdecimal() else f"http://{host}/endpoints/{port}/"


def _table(value: Any) -> Mapping[str, Any]:
    return value if isinstance(value, dict) else {}


# The log of all pods, as text


def split_pods(text: str) -> dict[str, str]:
    """The log of each pod by its name, without secrets; a text without headings has one pod, without a name."""
    logs: dict[str, list[str]] = {}
    name, rules = "", 0  # rules: how many lines of `=` may follow
    for line in text.splitlines(keepends=True):
        if heading := _POD.fullmatch(line.rstrip("\r\n")):
            lines = logs.get(name, [])
            for _ in range(3):
                if lines and lines[-1].rstrip() == _RULE:
                    lines.pop()
            name, rules = ("" if heading[1] else heading[2]), 3
            logs.setdefault(name, [])
        elif rules and line.rstrip() == _RULE:
            rules -= 1
        else:
            rules = 0
            logs.setdefault(name, []).append(line)
    if len(logs) > 1 and not "".join(logs.get("", [])).strip():
        logs.pop("", None)  # what stands between the pods
    return {pod: "".join(map(mask_secrets, lines)) for pod, lines in logs.items()}


def text_of_node(logs: Mapping[str, str], node: int) -> str:
    """The log of one node. A launcher's log counts as the first node's."""
    by_node = {int(match[1]): text for pod, text in logs.items() if (match := _WORKER.search(pod))}
    if not by_node:  # one node, whose pod is called as the job
        return next(iter(logs.values()), "") if node == 0 else ""
    text = by_node.get(node, "")
    if node == 0 and IDLE in text.splitlines():
        return next((other for pod, other in logs.items() if not _WORKER.search(pod)), text)
    return text


def find_endings(logs: Mapping[str, str], until: str = "") -> list[Ended]:
    """The pods that have ended: by our own last line, or by one that begins with `until`."""
    ended_by_pod = {}
    for pod, text in logs.items():
        worker = _WORKER.search(pod)
        for match in _DONE.finditer(text):
            ended_by_pod[pod] = Ended(int(match[1]), int(match[2]))
        for line in text.splitlines() if until and pod not in ended_by_pod else ():
            if line.strip().startswith(until):
                code = _CODE.search(line)
                ended_by_pod[pod] = Ended(int(worker[1]) if worker else 0, int(code[1]) if code else 0)
                break
    return sorted(ended_by_pod.values(), key=lambda ended: ended.node)


def without_done_line(text: str) -> str:
    """The log without our own last line, so that it ends with the script's last lines."""
    return re.sub(rf"(?m)^{DONE} node=\d+ rc=\d+\s*", "", text)


def whole_lines(text: str) -> str:
    """The log without a last line that may still grow. After our own line a pod prints nothing."""
    last = text.rstrip("\r\n").rpartition("\n")[2]
    return text if _DONE.search(last) else text[: len(text.rstrip("\r\n")) - len(last)]


def mask_secrets(text: str) -> str:
    """The text without bearer tokens, and without the values of variables whose names mean a secret."""
    return "".join(map(_clean, text.splitlines(keepends=True)))


def _clean(line: str) -> str:
    printed = _PRINTED.match(line)
    if printed and _SECRET.search(printed[2]):
        return f"{printed[1]}***{line[printed.end() :]}"
    line = _MENTIONED.sub(lambda match: f"{match[1]}{match[2]}***" if _SECRET.search(match[1]) else match[0], line)
    return _BEARER.sub(lambda match: f"{match[1]} ***" if match[1] else "***", line)
