"""What a run was asked to do: command line, environment, ini, aisbench.toml, and files of ais-bench-stubs.

Begin with `options.py`, the table of all options, then `loading.py`, which reads them into one frozen value, the
`Settings` of `settings.py`; there is also what a platform brings to all this. `access.py` reads the tables with
addresses and keys, `toml_document.py` parses TOML with lines for messages, and `legacy/` parses the files of
ais-bench-stubs. Every layer above `model` may import this package; it opens no connection.
"""
