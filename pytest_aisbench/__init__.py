"""Train on ModelArts, or on this laptop, and let pytest judge the result.

What stands in `__all__` is what a suite, a platform or a reporter may rely on.
"""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from pytest_aisbench.config.access import Access
    from pytest_aisbench.config.settings import PlatformKind, Settings
    from pytest_aisbench.errors import AisbenchError, PlatformError, UsageFault, WorkloadError
    from pytest_aisbench.model.case import Case, Shape, Workload
    from pytest_aisbench.model.job import Job, JobSpec, LogPart, Phase, Request, Sample, Stage, StoreUrl
    from pytest_aisbench.model.metric import Measurement, Metric
    from pytest_aisbench.model.ports import (
        AddsFiles,
        Check,
        ChecksCode,
        ChecksConnection,
        Clock,
        HasConsole,
        HasEndpoints,
        HasLabels,
        HasTester,
        HasTesterToken,
        HasVendorSession,
        Head,
        Health,
        Platform,
        PowerSource,
        ProbesNodes,
        Reporter,
        RewritesRequests,
        Store,
        Upload,
    )
    from pytest_aisbench.model.results import CaseEntry, RunEntry, TrialEntry
    from pytest_aisbench.model.trial import Step, Trial
    from pytest_aisbench.model.verdict import Finding, Outcome, Ruling, Threshold, Verdict
    from pytest_aisbench.secret import Secret

__version__ = "0.1.0"

# Where each public name lives. Imported on first use: every pytest run imports this package, few use it.
_HOMES = {
    "config.access": "Access",
    "config.settings": "PlatformKind Settings",
    "errors": "AisbenchError PlatformError UsageFault WorkloadError",
    "model.case": "Case Shape Workload",
    "model.job": "Job JobSpec LogPart Phase Request Sample Stage StoreUrl",
    "model.metric": "Measurement Metric",
    "model.ports": "AddsFiles Check ChecksCode ChecksConnection Clock HasConsole HasEndpoints HasLabels HasTester "
    "HasTesterToken HasVendorSession Head Health Platform PowerSource ProbesNodes Reporter RewritesRequests Store "
    "Upload",
    "model.results": "CaseEntry RunEntry TrialEntry",
    "model.trial": "Step Trial",
    "model.verdict": "Finding Outcome Ruling Threshold Verdict",
    "secret": "Secret",
}

__all__ = [
    "Access", "AddsFiles", "AisbenchError", "Case", "CaseEntry", "Check", "ChecksCode", "ChecksConnection",
    "Clock", "Finding", "HasConsole", "HasEndpoints", "HasLabels", "HasTester", "HasTesterToken", "HasVendorSession",
    "Head", "Health", "Job", "JobSpec", "LogPart", "Measurement", "Metric", "Outcome", "Phase", "Platform",
    "PlatformError", "PlatformKind", "PowerSource", "ProbesNodes", "Reporter", "Request", "RewritesRequests", "Ruling",
    "RunEntry", "Sample", "Secret", "Settings", "Shape", "Stage", "Step", "Store", "StoreUrl", "Threshold", "Trial",
    "TrialEntry", "Upload", "UsageFault", "Verdict", "Workload", "WorkloadError",
]  # fmt: skip


def __getattr__(name: str) -> Any:
    for home, names in _HOMES.items():
        if name in names.split():
            return getattr(importlib.import_module(f"{__name__}.{home}"), name)
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
