"""Scripts import `moxing.framework.file` from here."""

from __future__ import annotations

from . import file

__all__ = ["file"]
