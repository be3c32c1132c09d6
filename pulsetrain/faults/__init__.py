"""Real faults, deterministic by (rank, step), for tests, the demo and the benchmarks.

`plan` says what happens where. `inside` injects faults into the training process itself, `outside` into other
processes. `throttle` makes a node slow. `files` damages files. Importing this package loads none of them.
"""
