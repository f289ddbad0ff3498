"""Apulis, a platform that descends from DLWorkspace. Begin with `service` (its REST API and login), then `rules` (a
submitted job becomes a `Launch`), `jobs` (its jobs, in the queue of `modelarts.jobs`), `pods` (the inside of its pods).

The server imports it, and the engine its `pods`.
"""

VC = "platform"  # the only virtual cluster
