"""Gives the ranks of a world of another size the parts that they need of what the old ranks have saved."""
