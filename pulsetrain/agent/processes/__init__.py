"""A node's ranks as processes: forked from a parked one, watched, ended."""
