"""The hub's side: what becomes of each job and node, and why."""
