"""Real faults, deterministic by (rank, step), for tests, the demo and the benchmarks.

`plan` says what happens where, `inside` does it in a training process, `outside` does it to processes from
without, `throttle` makes a node slow, `files` damages what lies on disk. Importing this package loads none.
"""
