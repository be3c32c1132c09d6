"""Decides what a job does next, acts on its nodes, and plans from where state is restored."""
