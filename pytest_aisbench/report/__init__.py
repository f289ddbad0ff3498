"""The reports of a run: report.html, Allure, JUnit, the files for CI servers, results.json, and the terminal.

Begin with `columns.py`, the table of columns from which report.html, the terminal, summary.md and metrics.csv take
theirs, then `page.py`. A reporter is a class with `case(entry)` and `run(entry)`; those of pytest-html, allure-pytest
and JUnit enter their host through `host_plugins.py`. `text.py` measures, wraps and writes text for all of them.

A new column is a row in `columns.py` and its heading in each file of `i18n/`; a new reporter is a module here and a row
in `registry.py`. `tester`, `session`, `fixtures`, `registry` and `cli` import this package.
"""
