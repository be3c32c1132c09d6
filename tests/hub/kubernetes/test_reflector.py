import threading

import pytest

from pulsetrain.hub.kubernetes.objects import CONFIG_MAPS
from pulsetrain.hub.kubernetes.reflector import LONGEST_WAIT_S, Reflector
from tests.agent.real_processes import until
from tests.hub.kubernetes.emulator import Refused
from tests.hub.kubernetes.test_api import config_map


@pytest.fixture
def reflector(api):
    """One whose turns run on a thread until the test ends. `waits` are what its turns return."""
    reflector = Reflector(api, CONFIG_MAPS, lambda: None)
    reflector.waits, end = [], threading.Event()

    def run():
        while not end.is_set():
            reflector.waits.append(reflector.turn())
            end.wait(0.005)

    thread = threading.Thread(target=run, daemon=True)
    thread.start()
    yield reflector
    end.set()


def names(reflector):
    return [item["metadata"]["name"] for item in reflector.items()]


def test_the_copy_follows_what_happens(api, server, reflector):
    api.create(CONFIG_MAPS, config_map("a"))
    api.create(CONFIG_MAPS, config_map("b"))
    assert until(lambda: names(reflector) == ["a", "b"])
    api.patch(CONFIG_MAPS, "b", {"data": {"x": "1"}})
    assert until(lambda: reflector.items()[1].get("data") == {"x": "1"})
    api.delete(CONFIG_MAPS, "a")
    assert until(lambda: names(reflector) == ["b"])
    assert server.watches == 1


def test_what_was_missed_is_listed_anew(api, server, cluster, reflector):
    api.create(CONFIG_MAPS, config_map("a"))
    assert until(lambda: names(reflector) == ["a"])
    with cluster.changed:  # the watch cannot be told of the deletion: it is forgotten at once
        cluster.remove("configmaps", "train", "a")
        cluster.forget()
    assert until(lambda: names(reflector) == [])
    api.create(CONFIG_MAPS, config_map("b"))
    assert until(lambda: names(reflector) == ["b"])


def test_while_the_api_is_away_each_turn_waits_longer(api, server):
    reflector = Reflector(api, CONFIG_MAPS, lambda: None)
    server.fails = lambda method, path: Refused(503, "ServiceUnavailable", "starting")
    waits = [reflector.turn() for _ in range(9)]
    assert waits[:3] == [0.5, 1.0, 2.0]
    assert waits[-1] == LONGEST_WAIT_S
    assert not reflector.listed.is_set()


def test_a_bookmark_lets_a_watch_go_on_after_a_compaction(api, server, cluster, reflector):
    assert until(lambda: server.watches == 1)
    start = cluster.version
    for number in range(3):  # of another kind: only a bookmark tells their versions
        cluster.create("pods", "train", pod(f"p{number}"))
    assert until(lambda: int(reflector.version) >= start + 3)
    lists = sum(1 for method, path, _ in server.requests if method == "GET")
    cluster.forget()
    api.create(CONFIG_MAPS, config_map("a"))
    assert until(lambda: names(reflector) == ["a"])
    assert sum(1 for method, path, _ in server.requests if method == "GET") == lists


def pod(name):
    return {"metadata": {"name": name}, "spec": {"containers": [{"name": "agent", "image": "pulsetrain"}]}}
