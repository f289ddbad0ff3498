"""Student's t for whole degrees of freedom: the only special function that judging needs.

With a whole number of degrees the distribution is a finite sum of positive terms (Abramowitz and Stegun, 26.7.3 and
26.7.4), so nothing is approximated and nothing cancels. docs/benchmarks.md has it beside SciPy's.
"""

from __future__ import annotations

import math
from functools import lru_cache
from statistics import NormalDist

_STEPS = 200  # Newton needs three or four; heavy tails far out some more


def within(t: float, degrees: int) -> float:
    """The probability that |T| is below `t`."""
    angle = math.atan2(t, math.sqrt(degrees))
    square = degrees / (degrees + t * t)  # of the angle's cosine
    odd = degrees % 2
    term = whole = math.sqrt(square) if odd and degrees > 1 else float(not odd)
    for lower in range(2 + odd, degrees, 2):
        term *= square * (lower - 1) / lower
        whole += term
    whole *= math.sin(angle)
    return 2 / math.pi * (angle + whole) if odd else whole


@lru_cache(maxsize=1024)  # one decision after the other asks for the same few
def quantile(level: float, degrees: int) -> float:
    """The value that T stays below with this probability, which is from one half to below 1."""
    if not 0.5 <= level < 1 or degrees < 1:
        raise ValueError(f"no quantile of Student's t at {level} with {degrees} degrees of freedom")
    wanted = 2 * level - 1
    scale = math.exp(math.lgamma((degrees + 1) / 2) - math.lgamma(degrees / 2)) / math.sqrt(degrees * math.pi)
    t = NormalDist().inv_cdf(level)  # with ever more degrees T comes down to it
    for _ in range(_STEPS):
        density = scale * (1 + t * t / degrees) ** (-(degrees + 1) / 2)
        step = (wanted - within(t, degrees)) / (2 * density)
        # `within` is concave, so that Newton climbs and never passes the root: a step back is rounding.
        if step <= 1e-13 * t:
            break
        t += step
    return t
