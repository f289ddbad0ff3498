"""MoXing as far as training scripts need it: `mox.file`.

The local cloud puts this package on the path of its jobs; nothing else imports it. It needs only the standard library
and Python 3.7, since a job may have another interpreter than the cloud.
"""

from __future__ import annotations

import sys

from .framework import file

__all__ = ["file"]

sys.modules[f"{__name__}.file"] = file  # for `import moxing.file`
