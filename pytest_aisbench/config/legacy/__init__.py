"""Parses the files of the predecessor, ais-bench-stubs, without executing them.

Begin with `modelarts_config.py`. It reads Python by `python_file.py`, and shell variables by `shell_file.py`. It
executes a file only if the user allows it (`--aisbench-trust-config`). `config.loading` and ModelArts import it.
"""
