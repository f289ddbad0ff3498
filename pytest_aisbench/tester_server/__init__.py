"""An open Tester: a small server that keeps results, and shows them.

It shares no code with the adapter that sends them, so that each is the referee of the other.
"""
