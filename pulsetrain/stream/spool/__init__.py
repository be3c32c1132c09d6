"""What waits on a node's disk for the hub, and how it gets there."""
