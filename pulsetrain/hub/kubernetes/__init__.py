"""Kubernetes: a thin client of its API, the scheduler, the state of several hubs, and the operator."""
