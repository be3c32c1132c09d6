"""Parts of move.py."""
