"""The values that all other packages pass to each other, and the Protocols at which something outside is met.

Begin with `case.py` (what is trained), `trial.py` (one attempt at it) and `ports.py` (Platform, Store, Reporter,
PowerSource, Clock). Pure but for `clock.py`: no file, socket or pytest. Every package may import this one; it imports
`errors`, `secret` and `i18n`.
"""
