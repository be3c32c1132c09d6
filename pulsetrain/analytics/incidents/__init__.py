"""Findings joined into incidents, and the alerts that people are sent about them."""
