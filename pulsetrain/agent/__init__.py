"""What runs on each node: supervises its ranks, obeys the hub, ships what is measured."""
