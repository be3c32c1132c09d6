"""A process in a node's namespace: listens on its addresses, and sends where it is told to.

The first line of its input has its addresses, and each further one a request. It ends with its input.
"""

from __future__ import annotations

import json
import sys
from concurrent.futures import ThreadPoolExecutor
from dataclasses import asdict

from pulsetrain.diagnostics.transfers import Sink, send


def work() -> None:
    """What a worker does: listen on its addresses, then carry out one request for each line."""
    sinks = {a: Sink(a) for a in json.loads(sys.stdin.readline())}
    print(json.dumps({a: sink.port for a, sink in sinks.items()}), flush=True)
    for line in sys.stdin:
        request = json.loads(line)
        seconds = request["seconds"]
        with ThreadPoolExecutor(max(1, len(request["to"]))) as pool:
            sent = [
                pool.submit(send, to, port, seconds=seconds, source=own) for to, port, own in request["to"]
            ]
            print(json.dumps([asdict(future.result()) for future in sent]), flush=True)


if __name__ == "__main__":
    work()
