"""Checkpoints: two slots in shared memory, a replica in a peer, files behind both."""
