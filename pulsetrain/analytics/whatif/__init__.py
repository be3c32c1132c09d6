"""What-if analysis: how fast a job would be without its stragglers."""
