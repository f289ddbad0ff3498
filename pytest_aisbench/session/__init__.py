"""A session of pytest with workloads in it: who holds the run, what is collected, in which order, and how it ends."""
