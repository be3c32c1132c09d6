"""Which rank, group or link is at fault when a job hangs, from live reports, dumps and stacks."""
