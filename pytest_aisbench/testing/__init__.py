"""One contract per port. Inherit the class in a test module, give it its fixtures, and it proves the adapter."""

from __future__ import annotations

from pytest_aisbench.testing.clock import ClockContract
from pytest_aisbench.testing.platform import PlatformContract
from pytest_aisbench.testing.reporter import ReporterContract
from pytest_aisbench.testing.store import StoreContract

__all__ = ["ClockContract", "PlatformContract", "ReporterContract", "StoreContract"]
