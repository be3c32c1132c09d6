"""Kafka between nodes and the store, for many nodes."""
