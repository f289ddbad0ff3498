"""The rules that turn measurements into findings and a verdict. Everything here is pure: values in, values out.

Start with `evaluate.py`: it compares what one trial measured with every threshold of its case, and is the only way to a
verdict. `values.py` turns the results of ranks into the values of a case, `noise_test.py` decides in spite of noise,
`scaling.py` compares with another shape, `trend.py` looks at the history, `entries.py` makes the entries that
reporters read.

`ledger` and every package above it may import this one. `localcloud`, `tester_server` and `testing` may not: they stand
apart from the client. Nothing here opens a file, reads a clock or imports pytest.
"""
