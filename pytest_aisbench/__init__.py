"""Train on ModelArts, or on this laptop, and let pytest judge the result.

What stands in `__all__` is what a suite, a platform or a reporter may rely on.
"""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from pytest_aisbench.domain.case import Case, Shape, Workload
    from pytest_aisbench.domain.checkup import Check, Health
    from pytest_aisbench.domain.entry import CaseEntry, RunEntry, TrialEntry
    from pytest_aisbench.domain.job import Job, JobSpec, LogPart, Phase, Request, Sample
    from pytest_aisbench.domain.metric import Measurement, Metric
    from pytest_aisbench.domain.ports import Clock, Head, Platform, PowerSource, Reporter, Store, Upload
    from pytest_aisbench.domain.stage import Stage, StoreUrl
    from pytest_aisbench.domain.threshold import Threshold
    from pytest_aisbench.domain.trial import Step, Trial
    from pytest_aisbench.domain.verdict import Finding, Outcome, Ruling, Verdict
    from pytest_aisbench.errors import AisbenchError, PlatformError, UsageFault, WorkloadError
    from pytest_aisbench.secret import Secret
    from pytest_aisbench.settings import Settings
    from pytest_aisbench.settings.access import Access

__version__ = "0.1.0"

# Where each public name lives. Imported on first use: every pytest run imports this package, few use it.
_HOMES = {
    "domain.case": ("Case", "Shape", "Workload"),
    "domain.checkup": ("Check", "Health"),
    "domain.entry": ("CaseEntry", "RunEntry", "TrialEntry"),
    "domain.job": ("Job", "JobSpec", "LogPart", "Phase", "Request", "Sample"),
    "domain.metric": ("Measurement", "Metric"),
    "domain.ports": ("Clock", "Head", "Platform", "PowerSource", "Reporter", "Store", "Upload"),
    "domain.stage": ("Stage", "StoreUrl"),
    "domain.threshold": ("Threshold",),
    "domain.trial": ("Step", "Trial"),
    "domain.verdict": ("Finding", "Outcome", "Ruling", "Verdict"),
    "errors": ("AisbenchError", "PlatformError", "UsageFault", "WorkloadError"),
    "secret": ("Secret",),
    "settings": ("Settings",),
    "settings.access": ("Access",),
}

__all__ = [
    "Access",
    "AisbenchError",
    "Case",
    "CaseEntry",
    "Check",
    "Clock",
    "Finding",
    "Head",
    "Health",
    "Job",
    "JobSpec",
    "LogPart",
    "Measurement",
    "Metric",
    "Outcome",
    "Phase",
    "Platform",
    "PlatformError",
    "PowerSource",
    "Reporter",
    "Request",
    "Ruling",
    "RunEntry",
    "Sample",
    "Secret",
    "Settings",
    "Shape",
    "Stage",
    "Step",
    "Store",
    "StoreUrl",
    "Threshold",
    "Trial",
    "TrialEntry",
    "Upload",
    "UsageFault",
    "Verdict",
    "Workload",
    "WorkloadError",
]


def __getattr__(name: str) -> Any:
    for home, names in _HOMES.items():
        if name in names:
            return getattr(importlib.import_module(f"{__name__}.{home}"), name)
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
