"""The SQLite file that remembers every run, trial, job and upload, across runs and crashes.

Begin with `ledger.py`; `database.py` opens the file and has its schema, `history.py` reads earlier trials,
`lease.py` knows which runs live, `journal.py` records what the file takes no more, `outbox.py` keeps uploads,
`runs.py` lists runs and jobs for the commands. The engine, the reports and the commands
import this package.
"""
