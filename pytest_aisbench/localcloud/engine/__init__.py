"""Engines run jobs. Begin with `launch`: a `Launch` is what an engine gets, an `Event` what it reports, `Engine` the
protocol. `process_engine` starts a process for each node: `container` fills its folders, `node_server` forks it, `node`
is that process, `private_root` gives it the platform's paths, `processes` ends everything it started. `simulated` runs
nothing.

ModelArts, Apulis and the server import it; `aisbench doctor` asks `private_root` what this machine allows.
"""
