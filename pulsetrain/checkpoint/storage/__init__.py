"""Checkpoints in files: what is written, when it counts, and how it is read back."""
