"""One place for each thing outside: platforms and stores."""

from __future__ import annotations
