"""What benchmarks/cluster.py measures."""
