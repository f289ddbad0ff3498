"""HCCL's rank tables: which card of which server is which rank.

Begin with `table.py`, the values. `check.py` reads a file and finds what HCCL would refuse, and
`environment.py` compares a rank's environment with its table before training begins.

The commands and training scripts import this package. It is pure, but for `environment.py`, which runs on a node.
"""
