"""ModelArts training jobs. Begin with `v2`, which is also the endpoint as a whole, and `jobs`, the queue that V1, V2
and Apulis share. `rules` turns a request into a `Launch` for the engine; `v1` and `v1_jobs` show the same jobs by the
older API; `api` has the routes and errors that both versions use.

The server imports it, and Apulis its `jobs`, `api` and `rules`.
"""
