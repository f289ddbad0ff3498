"""`python -m pytest_aisbench` is `aisbench`."""

from __future__ import annotations

import sys

from pytest_aisbench.cli import main

sys.exit(main())
