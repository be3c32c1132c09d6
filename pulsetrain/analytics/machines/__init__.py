"""What GPUs, networks, kernels and logs say of a machine."""
