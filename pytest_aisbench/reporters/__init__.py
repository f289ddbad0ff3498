"""Turn ledger entries into files that people and programs read."""
