"""`python -m tests.fuzz` judges made-up result sets, and compares the verdicts with an oracle's."""

from __future__ import annotations

import sys
from pathlib import Path

if __name__ == "__main__":
    here = Path(__file__).parent
    sys.path[:0] = [str(here), str(here.parent / "support")]
    from fuzz import main

    sys.exit(main())
