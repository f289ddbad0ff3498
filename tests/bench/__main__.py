"""`python -m tests.bench` runs the guard."""

from __future__ import annotations

import sys
from pathlib import Path

if __name__ == "__main__":
    # Each benchmark is also a program, and finds its siblings beside it; so they are no package.
    sys.path.insert(0, str(Path(__file__).parent))
    from guard import main

    sys.exit(main())
