"""The files of the predecessor, ais-bench-stubs, read as they are and never executed unless that was asked for."""
