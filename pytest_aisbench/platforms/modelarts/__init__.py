"""The platform ModelArts of Huawei Cloud, by its APIs V1 and V2.

`ModelArtsKind` says what ModelArts needs before anything connects: its keys of workload.toml, and the access. Then read
`platform.py`. `request.py` renders the request of a job, `jobs.py` submits and watches it, `catalog.py` checks it
against what is offered, `session.py` signs requests with the vendor's client in `vendor_http.py`. `wheel.py` uses the
vendor's `modelarts` wheel instead; `package.py` reads packages of ais-bench-stubs. The registry imports
this file, and collection `package.py`; the rest is private.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping
from typing import TYPE_CHECKING

from pytest_aisbench.config.access import WAYS_TO_GIVE_KEYS, Access, add_keys
from pytest_aisbench.config.options import CONFIG_FILE
from pytest_aisbench.config.settings import PlatformKind, Settings
from pytest_aisbench.errors import UsageFault

if TYPE_CHECKING:
    from pytest_aisbench.platforms.modelarts.platform import ModelArts


LOCAL_OPTIONS = frozenset({"image", "command"})  # the local cloud takes these too
LABEL_OPTIONS = frozenset({"job_description_prefix", "job_name"})  # change nothing of what a job does
OPTIONS = frozenset({
    *("framework_type", "framework_version", "flavor", "pool_id"),
    *("nas_type", "nas_share_addr", "nas_mount_path"),
    *LOCAL_OPTIONS,
    *LABEL_OPTIONS,  # job_name: with V1, trials become versions of this job, as with ais-bench-stubs
})  # fmt: skip


class ModelArtsKind(PlatformKind):
    name = "modelarts"
    options: Collection[str] = OPTIONS

    def connect(self, settings: Settings) -> ModelArts:
        from pytest_aisbench.platforms.modelarts.platform import ModelArts

        return ModelArts(settings)

    def complete_access(self, access: Access, environment: Mapping[str, str]) -> tuple[Access, tuple[str, ...]]:
        return add_keys(access, environment)

    def check(self, settings: Settings) -> None:
        if settings.cloud is not None:
            sources = f"{settings.sources['cloud']} and {settings.sources['platform']}"
            raise UsageFault(f"{sources} contradict each other", advice="a running local cloud is platform local")
        access = settings.access
        missing = [] if access.bucket else ["bucket"]
        if settings.modelarts_client != "wheel":  # the wheel in a notebook has keys of its own
            keys = {"access_key": access.access_key, "secret_access_key": access.secret_access_key}
            missing = [*(name for name, value in keys.items() if not value), *missing]
        if not (access.modelarts_endpoint or access.region_name):
            missing.append("region_name (or the endpoints of a computing centre)")
        if missing:
            keyless = "access_key" in missing and "secret_access_key" in missing
            rest = "; the rest belongs to [access]" if len(missing) > 2 else ""
            advice = (
                WAYS_TO_GIVE_KEYS.format(config=CONFIG_FILE) + rest
                if keyless
                else f"write them to [access] in {CONFIG_FILE}"
            )
            source = settings.sources["platform"]
            raise UsageFault(f"{source}: platform modelarts needs {', '.join(missing)}", advice=advice)
