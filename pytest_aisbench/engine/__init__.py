"""The story, told against ports; no vendor is named here."""
