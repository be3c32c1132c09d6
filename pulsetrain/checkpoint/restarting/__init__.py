"""A rank that outlives its attempt: its training function is called again in the same process."""
