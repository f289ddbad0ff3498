"""`aisbench`: a module for each of its commands; `register` adds it to the parser."""
