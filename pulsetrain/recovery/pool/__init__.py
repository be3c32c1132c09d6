"""Shares the devices of a pool among jobs of three tiers. Pure: hub and simulator ask the same code."""
