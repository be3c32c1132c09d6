"""What a node's devices, kernel and logs tell."""
