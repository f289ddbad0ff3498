"""How the client talks to servers: HTTP sessions, the [hosts] table, the server's clock, and the one retry policy.

Begin with `retry.py`: every client (ModelArts, OBS, Apulis, the Tester) repeats its requests by it. `http.py` opens the
sessions and reads what the headers of an answer say about time, `response.py` reads the headers themselves. Stores,
platforms and uploads import this package; it imports none of them.
"""
