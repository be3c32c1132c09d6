"""How fast a job would be without its stragglers."""
