"""The parts of `benchmarks/campaign.py`: the job, its faults, the looks at it, the score, the fleets."""
