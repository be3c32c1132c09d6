"""`pulsetrain demo`: a real training job on five local nodes, three real faults, and what became of it."""
