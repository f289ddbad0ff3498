"""Where code, data and results lie: OBS, or a folder that this machine shares with the nodes.

Begin with `obs.py`, which is the Store of ModelArts and of the local cloud; `obs_client.py` drives the vendor's SDK,
`local_files.py` writes downloads safely. The platforms import this package.
"""
