"""What a run was asked to do: command line, environment, ini, aisbench.toml, and files of ais-bench-stubs.

Begin with `options.py`, the table of all options, then `loading.py`, which reads them into one frozen value, the
`Settings` of `settings.py`; there is also what a platform brings to all this. `access.py` reads the tables with
addresses and keys, `toml_document.py` parses TOML with lines for messages, and `legacy/` parses the files of
ais-bench-stubs. Every layer above `model` may import this package; it opens no connection.
"""

from __future__ import annotations

from pathlib import Path


def start_hint(folder: Path) -> str:
    """How to begin in a folder that holds nothing but hidden files and virtual environments; "" for any other."""
    try:
        visible = [each for each in folder.iterdir() if not each.name.startswith(".")]
        if not all((each / "pyvenv.cfg").is_file() for each in visible):
            return ""
    except OSError:  # a folder that cannot be listed gets no hint, and pytest goes on
        return ""
    return "this folder is empty; `aisbench init` writes a suite that runs"
