"""What `elastic.py` runs: a job that shrinks and grows, kills at seeded points, and unequal replicas."""
