"""Shows; holds no logic and no column names of its own. Imports ``stream`` and ``analytics``."""
