"""Questions put to a suspect machine. Imports only ``stream``."""
