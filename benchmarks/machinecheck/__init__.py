"""What `benchmarks/machines.py` is made of."""
