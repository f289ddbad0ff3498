"""What all reports are made of: the table of columns of a case, and text as reports write it.

Start with `columns.py`: the columns that report.html, the terminal, summary.md and metrics.csv show of a case. To add
a column, add a row there and its heading to each file of `i18n/`. `text.py` measures, wraps and writes text.

The reporters import this package, and the packages above them may; it imports `judge`, `domain` and `i18n`.
"""
