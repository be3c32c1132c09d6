"""The parts of `benchmarks/any_job.py`: launches under a real hub, faults from outside, scores."""
