"""Replicas in other nodes' memory: who holds whose, when they are sent, and how they travel."""
