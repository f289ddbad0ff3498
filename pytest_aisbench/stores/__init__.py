"""The storage that a platform's nodes reach: where code and data are uploaded, and results come from.

Begin with the port, `model.ports.Store`, then `obs.py` (Huawei's object storage) or `shared_folder.py` (a folder that
this machine and the nodes both mount). `obs_client.py` sends single requests with the vendor's client, and
`local_files.py` reads and writes files of this machine safely. Platforms import this package; it imports `net`.
"""
