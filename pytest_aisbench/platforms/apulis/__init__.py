"""Apulis: jobs as pods, with a shared folder or OBS between them and us.

Begin with `settings.py` (the `[apulis]` tables, known before anything connects) and `platform.py` (the adapter).
`request.py` makes a job and the command of its pods, `watch.py` reads phases and logs, `session.py` speaks HTTP. The
registry imports this package.
"""
