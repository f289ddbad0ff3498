"""Values and rules, pure: no files, clock, sockets or pytest."""
