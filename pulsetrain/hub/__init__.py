"""The hub: composes store, ingest, analysis, controller and dashboard into one process tree."""
