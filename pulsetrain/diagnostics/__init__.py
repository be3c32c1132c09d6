"""Questions put to a suspect machine."""
