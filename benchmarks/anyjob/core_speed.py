"""How fast a core of this machine multiplies matrices, so that jobs get steps of about the same length."""

from __future__ import annotations

import functools
import os
import subprocess
import sys
import time

SIZE, SECONDS, TRIALS = 256, 0.1, 3
SINGLE = ("OMP_NUM_THREADS", "OPENBLAS_NUM_THREADS", "MKL_NUM_THREADS")


@functools.cache
def gflops() -> float:
    """Return the GFLOP/s of one core in products of float32 matrices, the best of a few trials.

    A process of its own measures it, because a process cannot take back how many threads it computes with.
    """
    env = os.environ | dict.fromkeys(SINGLE, "1")
    done = subprocess.run([sys.executable, __file__], env=env, capture_output=True, text=True, check=True)
    return float(done.stdout)


def _measured() -> float:
    import numpy as np

    matrix, best = np.ones((SIZE, SIZE), np.float32), 0.0
    for _ in range(TRIALS):
        count, began_s = 0, time.thread_time()
        while (took_s := time.thread_time() - began_s) < SECONDS:
            matrix @ matrix
            count += 1
        best = max(best, count * 2 * SIZE**3 / took_s / 1e9)
    return best


if __name__ == "__main__":
    print(_measured())
