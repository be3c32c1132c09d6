"""A node's ranks as processes: forked by a zygote that has imported torch, watched, ended."""
