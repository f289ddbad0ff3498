"""The client's side of the Tester: what is sent, by which way, and when.

Begin with `uploader.py`: it delivers the outbox of a run, and gives the fixture `tester`. `payload.py` makes the
bodies that the Tester's contract asks for, `transports.py` sends them. The session and the commands import this
package.
"""
