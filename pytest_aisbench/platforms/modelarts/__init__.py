"""The platform ModelArts of Huawei Cloud, by its APIs V1 and V2.

Begin with `platform.py`. `kind.py` says what ModelArts needs before anything connects, `request.py` renders the request
of a job, `jobs.py` submits and watches it, `catalog.py` checks it against what is offered, `session.py` signs requests
with the vendor's client in `vendor_http.py`. `wheel.py` uses the vendor's `modelarts` wheel instead; `package.py` reads
packages of ais-bench-stubs. The registry imports `kind.py`, and collection `package.py`; the rest is private.
"""
