"""The agent's side of a rank's ring."""
