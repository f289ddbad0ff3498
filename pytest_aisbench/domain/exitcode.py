"""The exit codes of a run; `i18n` has their meaning in words."""

from __future__ import annotations

PASSED = 0
FAILED = 1
INTERRUPTED = 2
INTERNAL = 3
USAGE = 4
NOTHING_JUDGED = 5
MISSING = 11
BROKEN = 12
INCONCLUSIVE = 13
TERMINATED = 143
