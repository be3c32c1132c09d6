"""Decides, acts, restores. Imports ``stream``, ``diagnostics`` and ``collectors``."""
