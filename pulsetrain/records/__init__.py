"""What is measured: the records, their units, their Arrow batches and their tables."""
