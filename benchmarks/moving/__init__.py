"""What moving jobs costs, and what it gives: the parts of move.py."""
