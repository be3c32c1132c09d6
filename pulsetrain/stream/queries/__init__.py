"""Every SELECT of the project: functions that take a store and return an Arrow table."""
