"""Tests that every platform, store, reporter and clock must pass, for plugins of third parties and for our own.

Inherit the contract class of your port in a test module and give it its fixtures; `contracts.py` has all four. This
package imports `errors` and `model` only, and nothing of ours but tests imports it.
"""

from __future__ import annotations

from pytest_aisbench.testing.contracts import ClockContract, PlatformContract, ReporterContract, StoreContract

__all__ = ["ClockContract", "PlatformContract", "ReporterContract", "StoreContract"]
