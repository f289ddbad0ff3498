"""One place for each thing outside: platforms and stores."""
