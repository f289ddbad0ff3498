"""What a training's log says: throughput and loss by its lines, the curve, versions, MLPerf's format. Pure.

Begin with `readers.py`: one reader per framework. The judge, the engine and the commands import this package.
"""
