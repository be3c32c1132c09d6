"""Where records rest: what is written once, and what may be read."""
