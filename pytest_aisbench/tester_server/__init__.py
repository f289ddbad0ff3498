"""The open Tester: a small server that stores the results which runs upload, and shows them.

Begin with `app.py`: it builds the web application from `api.py` (uploads in, JSON out) and `pages.py` (HTML). An upload
is checked and turned into rows by `contract.py`; `schema.py` has the tables, `queries.py` all that pages ask of them,
`auth.py` tokens and the audit, `charts.py` and `formatting.py` how values look.

Only `cli/tester.py` imports this package. It shares no code with `tester/`, which sends the uploads: each checks the
other.
"""
