"""Who is to blame when nobody moves: from live reports, dumps and stacks."""
