"""What people see of a hub in a terminal: the status as lines, and a live view of one screen."""
