"""Where jobs run: ModelArts, Apulis, and the local cloud, which the ModelArts adapter reaches at 127.0.0.1.

Each platform has a light `PlatformKind` (`modelarts/kind.py`, `apulis/settings.py`, `local_kind.py`): begin there. It
says what must be known before anything connects: keys of workload.toml, settings, checks. Its `connect` imports the
adapter, a class with the methods of `model.ports.Platform`. What differs between platforms stays in here: no other
package compares a platform's name. `registry`, `session` and `cli` import this package; it imports `stores`, `net` and
`engine`.
"""
