"""Pictures, logs and documents that go with an Allure result."""

from __future__ import annotations

import json
import os
import uuid
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from pytest_aisbench.domain.entry import CaseEntry, TrialEntry
from pytest_aisbench.domain.messages import plain
from pytest_aisbench.domain.verdict import Verdict
from pytest_aisbench.i18n import Language
from pytest_aisbench.report.text import write_bytes
from pytest_aisbench.reporters import results
from pytest_aisbench.reporters.page_charts import charts
from pytest_aisbench.services.folder import request_name

MOST_LOGS = 16  # of a trial
LONGEST = 256_000  # bytes of a log; its end is what matters, and the whole lies among the reports
_TYPES = {"svg": "image/svg+xml", "txt": "text/plain", "json": "application/json"}


class Attachments:
    """Named by what they are of: a run that is told again writes the same files again."""

    def __init__(self, place: Path, folder: Path, of: str, say: Language) -> None:
        """`place` is where the results are, `folder` the run's own."""
        self._place, self._folder, self._of, self._say = place, folder, of, say

    def add(self, result: dict[str, Any], case: CaseEntry) -> None:
        """What is of the case on top, what is of a trial with its step."""
        ours = [self._attached("case", *each) for each in self._of_case(case)]
        mine = {attachment["source"] for attachment in ours}
        theirs = [each for each in result.get("attachments", ()) if each["source"] not in mine]
        result["attachments"] = [*ours, *theirs]
        for step, trial in zip(result["steps"], case.trials, strict=False):
            step["attachments"] = [
                self._attached(f"trial {trial.trial}", *each) for each in self._of_trial(case, trial)
            ]

    def _attached(self, whose: str, name: str, body: str | bytes, kind: str) -> dict[str, str]:
        file = f"{uuid.uuid5(uuid.NAMESPACE_OID, f'{self._of} {whose} {name}')}-attachment.{kind}"
        data = body if isinstance(body, bytes) else body.encode("utf-8", "replace")
        write_bytes(self._place / file, [data])
        return {"name": name, "source": file, "type": _TYPES[kind]}

    def _of_case(self, case: CaseEntry) -> Iterator[tuple[str, str | bytes, str]]:
        for name, picture, _ in charts(case, self._say):
            if picture:
                yield plain(name.removeprefix(case.id).lstrip(":： ")), picture, "svg"
        yield "verdict", str(Verdict(case.verdict, case.reason, case.findings)) if case.verdict else case.reason, "txt"
        yield "case", json.dumps(results.case_document(case), ensure_ascii=True, indent=1), "json"

    def _of_trial(self, case: CaseEntry, trial: TrialEntry) -> Iterator[tuple[str, str | bytes, str]]:
        request = self._folder / "requests" / f"{request_name(case.id, trial.trial)}.json"
        if request.is_file():
            yield "request", request.read_bytes(), "json"
        if trial.events:
            yield "what the platform says happened", "\n".join(map(plain, trial.events)), "txt"
        logs = [log for log in trial.logs if self._is_there(log)]
        for log in logs[:MOST_LOGS]:
            yield plain(Path(log).name), self._end_of(self._folder / log), "txt"
        if trial.last_lines and not logs:
            yield "last lines", "\n".join(map(plain, trial.last_lines)), "txt"

    def _is_there(self, log: str) -> bool:
        """And below the run's folder: a name in the ledger may be anything."""
        path = Path(log)
        return not path.is_absolute() and ".." not in path.parts and (self._folder / path).is_file()

    def _end_of(self, path: Path) -> bytes:
        with path.open("rb") as file:
            left_out = file.seek(0, os.SEEK_END) - LONGEST
            file.seek(max(left_out, 0))
            body = file.read(LONGEST)
        note = f"({left_out} bytes before are in {path.relative_to(self._folder)})\n" if left_out > 0 else ""
        return note.encode() + body
