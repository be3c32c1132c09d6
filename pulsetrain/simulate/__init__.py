"""Fleets and failures on paper: what is made here is marked as simulated."""
