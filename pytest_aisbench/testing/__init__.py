"""One contract per port. Inherit the class in a test module, give it its fixtures, and it proves the adapter."""

from __future__ import annotations

from pytest_aisbench.testing.contracts import ClockContract, PlatformContract, ReporterContract, StoreContract

__all__ = ["ClockContract", "PlatformContract", "ReporterContract", "StoreContract"]
