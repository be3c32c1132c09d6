"""Records in, findings out: pure functions. Imports only ``stream``."""
