"""Train on ModelArts, or on this laptop, and let pytest judge the result."""

from __future__ import annotations

__version__ = "0.1.0"
