"""MoXing, as far as training scripts need it: `mox.file`.

The local cloud puts this package on the path of its jobs. It needs nothing but the standard library, and runs on
Python 3.7, since the interpreter of a job need not be the one of the cloud.
"""

from __future__ import annotations

import sys

from .framework import file

__all__ = ["file"]

sys.modules[f"{__name__}.file"] = file  # for `import moxing.file`
