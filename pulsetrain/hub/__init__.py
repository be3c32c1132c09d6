"""The hub: puts store, ingest, analysis, controller and dashboard together in one process tree."""
