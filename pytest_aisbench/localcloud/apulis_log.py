"""The log of a job as Apulis keeps it: one text of all pods, cut into pages, in the job's shared folder."""

from __future__ import annotations

import threading
from typing import TYPE_CHECKING

from pytest_aisbench.localcloud.apulis_jobs import ENDED

if TYPE_CHECKING:
    from pathlib import Path

    from pytest_aisbench.localcloud.apulis_jobs import Entry
    from pytest_aisbench.localcloud.launch import Engine

LINES = 2000  # of a page
_RULE = ("=" * 57 + "\n") * 3
_INDENT = " " * 8


class JobLog:
    def __init__(self, engine: Engine) -> None:
        self._engine = engine
        self._lock = threading.Lock()

    def pages(self, entry: Entry) -> list[str]:
        """As they now are; none while one of the pods has written nothing. Those on disk are rewritten until the job
        has ended, once more then, and never again: the folder is its user's, who may have removed it."""
        ended = entry.status in ENDED
        lines = self._text(entry).splitlines(keepends=True)
        pages = ["".join(lines[start : start + LINES]) for start in range(0, len(lines), LINES)]
        with self._lock:
            if pages and entry.job and entry.job.launch.pods and entry.logged is not entry.job:
                _write(entry.job.launch.pods.mounts["/job"] / "logs", entry.id, pages)
                if ended:
                    entry.logged = entry.job
        return pages

    def _text(self, entry: Entry) -> str:
        job = entry.job
        if job is None or job.launch.pods is None:
            return ""
        pods, parts = job.launch.pods, []
        for role in sorted(pods.roles, key=lambda role: (role.name, role.index)):
            content, _ = self._engine.log(job.id, role.task) or (b"", 0)
            if not content:
                return ""
            text = content.decode(errors="replace")
            text += "" if text.endswith("\n") else "\n"
            name = pods.name(role)
            parts.append(f"{_RULE}{_INDENT}logs from pod: {name}\n{_RULE}{text}")
            parts.append(f"{_RULE}{_INDENT}end of logs from pod: {name}\n{_RULE}\n")
        return "".join(parts)


def in_raw_order(pages: list[str]) -> str:
    """As the platform joins them: by the names of their files, so page 10 comes before page 2."""
    return "".join(pages[number - 1] for number in sorted(range(1, len(pages) + 1), key=str))


def _write(folder: Path, job_id: str, pages: list[str]) -> None:
    folder.mkdir(parents=True, exist_ok=True)
    name = f"log-container-{job_id}.txt"
    for number, page in enumerate(pages, 1):
        _replace(folder / f"{name}.{number}", page)
    if len(pages) > 1:
        _replace(folder / "max_page", str(len(pages)))


def _replace(path: Path, text: str) -> None:
    draft = path.with_name(f".{path.name}")
    draft.write_text(text)
    draft.replace(path)
