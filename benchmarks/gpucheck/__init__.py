"""Everything that needs a CUDA device, in one command: `make gpu-check`."""
