"""Uploads to a Tester, the server that collects the results of many runs.

Begin with `uploader.py`: when uploads are made and sent. `payload.py` writes the body of an upload, `transports.py`
brings it to the Tester by HTTP, into a folder, or through ais-bench-stubs.

`session`, `fixtures` and `cli` import this package. It shares no code with `tester_server`, which receives the uploads.
"""
