"""What an agent says of a load."""

import threading
import time

from pulsetrain.agent.loading import Loading
from pulsetrain.protocol.messages import LOAD_CPU_S


def test_a_load_that_works_goes_on_and_one_that_waits_does_not():
    loading, go, works, waits = Loading(), threading.Event(), threading.Event(), threading.Event()

    def load():
        with loading.runs():
            until_s = time.thread_time() + 0.05
            while time.thread_time() < until_s:
                pass
            works.set()
            go.wait(10.0)
        waits.set()

    assert loading.gauges() == {LOAD_CPU_S: 0.0}
    thread = threading.Thread(target=load)
    thread.start()
    assert works.wait(10.0)
    worked_s = loading.gauges()[LOAD_CPU_S]
    assert worked_s >= 0.05
    time.sleep(0.05)
    assert loading.gauges()[LOAD_CPU_S] < worked_s + 0.02
    go.set()
    assert waits.wait(10.0)
    assert worked_s <= loading.gauges()[LOAD_CPU_S] < worked_s + 0.02
    thread.join()
