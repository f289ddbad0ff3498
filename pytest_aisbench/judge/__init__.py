"""The rules that turn measurements into findings and a verdict. Everything here is pure: values in, values out.

Start with `evaluate.py`: it compares what one trial measured with every threshold of its case. `values.py` turns the
results of ranks into the values of a case, `noise_test.py` decides in spite of noise, `trend.py` looks at the history,
`entries.py` makes the entries that reporters read.

Every package above `domain` may import this one, except those that stand apart from the client (`localcloud`,
`tester_server`, `testing`). Nothing here opens a file, reads a clock or imports pytest.
"""
