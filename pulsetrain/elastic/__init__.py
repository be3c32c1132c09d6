"""Parallelism of unequal size: what a job does with the devices that are left."""
