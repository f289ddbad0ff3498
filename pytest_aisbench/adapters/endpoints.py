"""Where the vendor's services of a region are, unless `[access]` says otherwise."""

from __future__ import annotations

from pytest_aisbench.errors import UsageFault
from pytest_aisbench.settings.access import Access


def endpoint(service: str, access: Access) -> str:
    given = str(getattr(access, f"{service}_endpoint"))
    if given or access.region_name:
        return given or f"https://{service}.{access.region_name}.myhuaweicloud.com"
    if service == "iam" and access.project_id:
        return ""  # only asked for the project
    advice = "write one of the two to [access]"
    raise UsageFault(f"access.{service}_endpoint is missing, and so is region_name", advice=advice)
