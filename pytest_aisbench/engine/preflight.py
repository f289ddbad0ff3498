"""Checks before anything is uploaded, submitted or paid for: by every run, and by `aisbench doctor`."""

from __future__ import annotations

import shutil
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import replace
from functools import partial
from pathlib import Path

from pytest_aisbench.engine.staging import Tree, code_tree
from pytest_aisbench.engine.submit import job_spec, new_trial, placeholder_stage
from pytest_aisbench.errors import AisbenchError, UsageFault, raise_together
from pytest_aisbench.model.case import Case
from pytest_aisbench.model.job import JobSpec, StoreUrl
from pytest_aisbench.model.ports import Check, ChecksCode, Platform, checked, failure, failure_from, merged, ok, warning

FREE_BYTES = 16 * 1024 * 1024  # bytes; the reports of a small run and its logs


def require_checks(
    platform: Platform, cases: Iterable[Case], run_s: float, reports: Path, say: Callable[[str], None] | None = None
) -> None:
    """Raise UsageFault for all that the user must change. What may pass by itself is one line to `say`: if it does not
    pass, it ends the cases that it concerns."""
    selected = list(cases)
    # What is wrong without asking the platform is said before that: an outage would be waited for.
    for checks in (_offline_checks(platform, selected, run_s, reports), _online_checks(platform, selected, run_s)):
        faults: list[UsageFault] = []
        for each in merged(check for check in checks if check.failed):
            fault = UsageFault(each.full_text, advice=each.fix)
            if each.lasting:
                faults.append(fault)
            elif say:  # a platform that does not answer may be back in a minute; if not, its cases are BROKEN
                say(f"{platform.name} is not well, the run goes on trying: {fault}")
        raise_together(faults)


def _offline_checks(platform: Platform, cases: Sequence[Case], run_s: float, reports: Path) -> Iterator[Check]:
    yield disk_check(reports)
    yield from request_checks(platform, cases, run_s)


def _online_checks(platform: Platform, cases: Sequence[Case], run_s: float) -> Iterator[Check]:
    access = checked("access", partial(check_access, platform))
    yield access
    if not access.failed:
        yield from offer_checks(platform, cases, run_s)
        yield from data_checks(platform, cases)


def disk_check(reports: Path) -> Check:
    """A disk that fills up during the run would cost the reports of jobs that were paid for."""
    existing = next(folder for folder in (reports, *reports.parents) if folder.exists())
    free = shutil.disk_usage(existing).free
    text = f"{free / 2**20:.1f} MiB are free for the reports"
    if free < FREE_BYTES:
        fix = "free some space, or name another folder with --aisbench-reports"
        return failure("room", f"{reports}: only {text}", fix)
    return ok("room", text)


def request_checks(platform: Platform, cases: Iterable[Case], run_s: float) -> Iterator[Check]:
    """Offline, by the vendor's rules: names, addresses, shapes, commands; and the code."""
    for case in cases:
        yield _naming(case, checked("request", partial(_render, platform, case, run_s)))
        yield _naming(case, checked("code", partial(_code_size, platform, case)))


def offer_checks(platform: Platform, cases: Iterable[Case], run_s: float) -> Iterator[Check]:
    """Whether the platform offers what each request asks for; ends when the platform does not answer."""
    for case in cases:
        try:
            for vetted in platform.vet(_spec(platform, case, run_s)):
                yield _naming(case, vetted)
        except AisbenchError as error:
            yield _naming(case, failure_from("offer", error))
            if not isinstance(error, UsageFault):
                return


def data_checks(platform: Platform, cases: Iterable[Case]) -> Iterator[Check]:
    """Whether the data of each workload exist and contain what the workload requires."""
    seen: dict[tuple[str, str, tuple[str, ...]], Check] = {}  # asked about once, whatever cases share it
    for case in cases:
        workload = case.workload
        if workload.data is None:
            continue
        key = (workload.folder, workload.data, workload.data_contains)
        try:
            if key not in seen:
                seen[key] = _remote_data(platform, case) if "://" in workload.data else _local_data(case)
        except AisbenchError as error:
            seen[key] = failure_from("data", error)
            if not isinstance(error, UsageFault):
                yield _naming(case, seen[key])
                return
        yield _naming(case, seen[key])


@contextmanager
def naming_case(case_id: str) -> Iterator[None]:
    try:
        yield
    except UsageFault as fault:
        raise UsageFault(f"{case_id}: {fault.message}", advice=fault.advice) from None


def _naming(case: Case, check: Check) -> Check:
    """The check with its case, and with the names of the files that the workload is written in."""
    words = case.workload.in_its_words
    return replace(check, text=words(check.text), fix=words(check.fix), cases=(case.id,))


def check_access(platform: Platform) -> str:
    """A line that says what can be used; raises if the platform or its Store refuses."""
    platform.check()
    return f"{platform.root} can be used"


def _spec(platform: Platform, case: Case, run_s: float) -> JobSpec:
    trial = new_trial("preflight", case, 0.0)
    return job_spec(trial, placeholder_stage(trial, platform.root), run_s)


def _render(platform: Platform, case: Case, run_s: float) -> str:
    platform.render(_spec(platform, case, run_s))
    return f"{case.id} can be asked for; its results go below {platform.root}trials/"


def _code_size(platform: Platform, case: Case) -> str:
    """Raise for a FIFO, a link that leads out, or a script that breaks the platform's rules."""
    tree = code_tree(case.workload, platform)
    if isinstance(platform, ChecksCode):
        platform.check_code(case.workload, _scripts(tree))
    count, size = len(tree.files), sum(file.size for file in tree.files)
    return f"{case.workload.name}: {count} files, {size / 2**20:.1f} MiB, started by {case.workload.entry}"


def _scripts(tree: Tree) -> Iterator[tuple[str, str]]:
    """The path and the text of each script, read lazily."""
    for file in tree.files:
        if file.path.endswith((".sh", ".py")):
            content = Path(file.source).read_bytes() if file.written is None else file.written
            yield file.path, content.decode(errors="replace")


def _remote_data(platform: Platform, case: Case) -> Check:
    place, wanted = StoreUrl.parse(case.workload.data or ""), case.workload.data_contains
    if place.bucket != platform.root.bucket:
        platform.store.check(place)
    if not wanted and not _exists(platform, place):
        return warning("data", f"{place} is empty", "upload the data set, or correct data in workload.toml")
    return _data_check(str(place), wanted, [name for name in wanted if not _exists(platform, place / name)])


def _local_data(case: Case) -> Check:
    folder, wanted = Path(case.workload.folder, case.workload.data or ""), case.workload.data_contains
    missing = [n for n in wanted if not ((folder / n).is_dir() if n.endswith("/") else (folder / n).is_file())]
    return _data_check(str(folder), wanted, missing)


def _data_check(place: str, wanted: Sequence[str], missing: Sequence[str]) -> Check:
    if missing:
        fix = "upload it, or correct data in workload.toml"
        return failure("data", f"{place} has no {' and no '.join(missing)}", fix)
    return ok("data", f"{place} is there" + (f", with {', '.join(wanted)}" if wanted else ""))


def _exists(platform: Platform, url: StoreUrl) -> bool:
    if url.is_folder:
        return next(iter(platform.store.objects(url)), None) is not None
    return platform.store.head(url) is not None
