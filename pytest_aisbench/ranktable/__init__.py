"""HCCL's rank tables: read, checked, converted, and compared with the environment of a rank.

Begin with `table.py`. The commands and training scripts import this package; it is pure but for `environment.py`,
which runs on a node.
"""
