"""The exit code that a gate reads: the first that applies, so that red names who must act."""

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

MEANING = {
    PASSED: "every selected case passed",
    FAILED: "a verdict is FAILED, or a test failed",
    INTERRUPTED: "interrupted",
    INTERNAL: "the run could not be recorded, or something of ours broke",
    USAGE: "usage",
    NOTHING_JUDGED: "nothing was judged",
    MISSING: "required cases are missing",
    BROKEN: "a verdict is BROKEN: the platform is to blame, try again",
    INCONCLUSIVE: "a verdict is INCONCLUSIVE: the noise is larger than the margin",
    TERMINATED: "terminated",
}
