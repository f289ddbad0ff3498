"""The life of a run and its trials: suites, preflight, staging, submission, watching, collecting, cancelling.

Begin with `run.py`, then `fleet.py`, which moves all trials of a run, and `trial.py`, the steps of one. No vendor is
named here: platforms and stores come by the Protocols of `model.ports`. The platforms, the reports and the session
import this package.
"""
