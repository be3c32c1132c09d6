"""A simulated fleet that speaks to a real hub: agents, ranks and faults of any number, in one process."""
