"""Where MoXing keeps its files."""

from __future__ import annotations

from . import file

__all__ = ["file"]
