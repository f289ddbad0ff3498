"""The platform Apulis, which runs jobs as pods of Kubernetes.

Begin with `platform.py`. `settings.py` reads its tables of aisbench.toml and workload.toml, `request.py` renders the
request of a job and the command of its pods, `session.py` logs in and sends requests, `watch.py` reads states, logs and
usage. The registry imports `settings.py`; nothing else outside imports this package.
"""
