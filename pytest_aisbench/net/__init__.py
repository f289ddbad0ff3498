"""How the client talks to servers: HTTP sessions, the [hosts] table, the server's clock, and the one retry policy.

Begin with `retry.py`: every client (ModelArts, OBS, Apulis, the Tester) repeats its requests by it. `http.py` opens the
sessions, and reads the headers of an answer and what they say about time. Stores, platforms and uploads import this
package; it imports none of them.
"""
