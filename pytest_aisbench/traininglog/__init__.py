"""What the log of a training job says: progress, loss, speed, accuracy, software versions.

Begin with `readers.py`: it turns one line of any framework's log into a `LogLine`. On top of it, `curve.py` reads how
far a training is, and its loss and speed on the way; `activity.py` follows a job that still runs. `patterns.py` reads
the metrics that workload.toml describes, `failure.py` why a job failed and whether software was updated before;
`mlperf.py` reads and writes MLPerf's result files, and `mlperf_set.py` tells which files of a folder make a
set of them.

The package is pure: it opens no file and reads no clock. It imports `model` only; every layer above may import it.
"""
