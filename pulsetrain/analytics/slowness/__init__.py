"""Who computes or transfers slower than before, or than others with the same work."""
